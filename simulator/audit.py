"""Compare allocation annotations with the kubelet's state, and find slots held twice. Pure."""

from collections.abc import Iterable, Mapping

from agent.allocator.slots import Slot
from contract.allocation import Allocation, decode_allocations
from contract.names import Names
from simulator.kubelet.trace import TraceEvent
from simulator.manifests import Json
from simulator.objects import annotations

ContainerKey = tuple[str, str]
"""(pod UID, container name)."""

Holdings = Mapping[ContainerKey, Mapping[str, frozenset[str]]]
"""Container -> resource name -> device IDs."""


def holdings_of(trace: Iterable[TraceEvent]) -> dict[ContainerKey, dict[str, frozenset[str]]]:
    """Return each container's devices: a later ``Allocate`` replaces an earlier one.

    A kubelet that was killed before it wrote its checkpoint allocates for the container again.
    """
    held: dict[ContainerKey, dict[str, frozenset[str]]] = {}
    for call in trace:
        if call.rpc == "Allocate" and not call.error:
            container_key = call.pod_uid, call.container
            held.setdefault(container_key, {})[call.resource] = frozenset(call.ids)
    return held


def records_of(pods: Iterable[Json], names: Names) -> dict[ContainerKey, Allocation]:
    """Read the allocation annotations of pods."""
    return {
        (pod["metadata"]["uid"], container): allocation
        for pod in pods
        for container, allocation in decode_allocations(
            annotations(pod).get(names.gpu_allocation, "{}")
        ).items()
    }


def per_card(held: Mapping[str, frozenset[str]]) -> dict[str, dict[str, int]]:
    """Count one container's slots: card UUID -> resource name -> number of slots."""
    cards: dict[str, dict[str, int]] = {}
    for resource, ids in held.items():
        for device_id in ids:
            slots = cards.setdefault(Slot.parse(device_id).card, {})
            slots[resource] = slots.get(resource, 0) + 1
    return cards


def held_twice(held: Holdings) -> list[str]:
    """List every slot that two pods hold."""
    owners: dict[tuple[str, str], str] = {}
    return [
        f"{resource} {device_id}: {owner} and {uid}"
        for (uid, _), resources in sorted(held.items())
        for resource, ids in resources.items()
        for device_id in sorted(ids)
        if (owner := owners.setdefault((resource, device_id), uid)) != uid
    ]


def unequal_records(
    held: Holdings, records: Mapping[ContainerKey, Allocation], names: Names
) -> list[str]:
    """List every container whose devices differ from its allocation, or that has no allocation."""
    wrong = []
    for container_key, resources in sorted(held.items()):
        cores, blocks = (len(resources.get(each, ())) for each in (names.core, names.memory))
        truth = frozenset(per_card(resources)), cores, blocks
        annotated = records.get(container_key)
        if annotated is None or _amounts(annotated) != truth:
            wrong.append(f"{container_key}: recorded {annotated}, holds {truth}")
    return wrong


def _amounts(allocation: Allocation) -> tuple[frozenset[str], int, int]:
    return frozenset(allocation.cards), allocation.cores, allocation.memory_blocks
