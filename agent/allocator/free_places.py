"""What is free of each card: by the record, and by what the kubelet offers. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from agent.allocator.model.containers import ContainerRef
from agent.allocator.model.pod_view import PodId
from agent.allocator.model.tickets import DeviceTable, card_of
from agent.allocator.record import Record
from contract.resource import Resource


def free_places(record: Record, table: DeviceTable, resource: Resource) -> dict[str, int]:
    """Count the places of each card that nobody holds."""
    held = by_card(record.held(resource))
    return {card: max(len(ids) - held[card], 0) for card, ids in table.by_card(resource).items()}


def by_card(ids: Iterable[str]) -> Counter[str]:
    """Count device IDs by card."""
    return Counter(map(card_of, ids))


def left_over(pod: PodId, resource: Resource, record: Record) -> Mapping[str, int]:
    """Count the places of each card that the pod's ordinary init containers have left over.

    The kubelet makes the next container take them (fact K7), asked for or not.
    """
    return by_card(record.reusable(pod, resource))


def within_reach(
    ref: ContainerRef, resource: Resource, available: AbstractSet[str], record: Record
) -> AbstractSet[str]:
    """Return what the kubelet offers a container, less what another holds (K15)."""
    return available - record.taken(ref, resource, record.held(resource) & available)
