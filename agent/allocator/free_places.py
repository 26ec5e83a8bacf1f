"""What is free of each card: by the record, and by what the kubelet offers. Pure."""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from agent.allocator.interfaces import ContainerRef
from agent.allocator.slots import DeviceTable
from agent.allocator.snapshot import AllocationSnapshot
from contract.resource import Resource, count_of
from placement.pods import PodId


def free_places(
    record: AllocationSnapshot, table: DeviceTable, resource: Resource
) -> dict[str, int]:
    """Count the places of each card that nobody holds."""
    held = table.count(resource, record.held[resource])
    return {
        card.uuid: table.places(resource, card) - held.get(card.uuid, 0)
        for card in table.inventory.cards
    }


def left_over(
    pod: PodId, resource: Resource, record: AllocationSnapshot, table: DeviceTable
) -> Mapping[str, int]:
    """Count the places of each card that the pod's ordinary init containers have left over.

    The kubelet makes the next container take them (fact K7), asked for or not.
    """
    return table.count(resource, record.reusable(pod, resource))


def reserved(
    record: AllocationSnapshot, table: DeviceTable
) -> Mapping[Resource, Mapping[str, int]]:
    """Count the places of each card that pods need to which a restarted kubelet is yet to come.

    What their ordinary init containers have left over the next one must take (K7, K11), so it has
    to be on the same card.
    """
    found = {each: Counter[str]() for each in Resource}
    for pod in record.changing:
        container = None if pod.listed is not None or pod.ended else pod.find_lacking()
        if container is None or not container.demand.is_share:
            continue
        left = {each: left_over(pod.id, each, record, table) for each in Resource}
        for card in {card for counts in left.values() for card in counts}:
            for each in Resource:
                more = count_of(container.demand, each) - left[each].get(card, 0)
                found[each][card] += max(more, 0)
    return found


def within_reach(
    ref: ContainerRef, resource: Resource, available: AbstractSet[str], record: AllocationSnapshot
) -> AbstractSet[str]:
    """Return what the kubelet offers a container, less what another holds (K15)."""
    return available - record.taken(ref, resource, available)
