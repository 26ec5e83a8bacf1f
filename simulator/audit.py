"""Whether what is recorded on pods is what the kubelet holds, and nothing is held twice. Pure."""

from collections.abc import Iterable, Mapping

from agent.allocator.slots import Slot
from contract.allocation import Allocation, decode_allocations
from contract.names import Names
from simulator.kubelet.trace import TraceEvent
from simulator.manifests import Json
from simulator.objects import annotations

Who = tuple[str, str]
"""A pod, by its UID, and a container of it."""

Holdings = Mapping[Who, Mapping[str, frozenset[str]]]
"""Container -> resource name -> device IDs."""


def holdings_of(trace: Iterable[TraceEvent]) -> dict[Who, dict[str, frozenset[str]]]:
    """Return what each container got: a later answer for it replaces an earlier one.

    A kubelet that died before it wrote its checkpoint asks again for the same container.
    """
    held: dict[Who, dict[str, frozenset[str]]] = {}
    for call in trace:
        if call.rpc == "Allocate" and not call.error:
            who = call.pod_uid, call.container
            held.setdefault(who, {})[call.resource] = frozenset(call.ids)
    return held


def records_of(pods: Iterable[Json], names: Names) -> dict[Who, Allocation]:
    """Read what the agent has recorded on pods."""
    return {
        (pod["metadata"]["uid"], container): allocation
        for pod in pods
        for container, allocation in decode_allocations(
            annotations(pod).get(names.gpu_allocation, "{}")
        ).items()
    }


def per_card(held: Mapping[str, frozenset[str]]) -> dict[str, dict[str, int]]:
    """Count one container's places: card UUID -> resource name -> places."""
    cards: dict[str, dict[str, int]] = {}
    for resource, ids in held.items():
        for device_id in ids:
            places = cards.setdefault(Slot.parse(device_id).card, {})
            places[resource] = places.get(resource, 0) + 1
    return cards


def held_twice(held: Holdings) -> list[str]:
    """List every place that two pods hold."""
    owners: dict[tuple[str, str], str] = {}
    return [
        f"{resource} {device_id}: {owner} and {uid}"
        for (uid, _), resources in sorted(held.items())
        for resource, ids in resources.items()
        for device_id in sorted(ids)
        if (owner := owners.setdefault((resource, device_id), uid)) != uid
    ]


def unequal_records(held: Holdings, records: Mapping[Who, Allocation], names: Names) -> list[str]:
    """List every container that holds something else than is recorded of it, or has no record."""
    wrong = []
    for who, resources in sorted(held.items()):
        cores, blocks = (len(resources.get(each, ())) for each in (names.core, names.memory))
        truth = frozenset(per_card(resources)), cores, blocks
        got = records.get(who)
        if got is None or (frozenset(got.cards), got.cores, got.memory_blocks) != truth:
            wrong.append(f"{who}: recorded {got}, holds {truth}")
    return wrong
