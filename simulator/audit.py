"""Whether what is recorded on pods is what the kubelet holds, and nothing is held twice. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent.allocator.slots import Slot
from contract.allocation import decode_allocations
from contract.names import Names
from contract.requests import read_pod_demand
from simulator.attribution import Call, Who

Json = dict[str, Any]
Holdings = Mapping[Who, Mapping[str, frozenset[str]]]
"""Container -> resource name -> device IDs."""


def holdings_of(calls: Iterable[Call]) -> dict[Who, dict[str, frozenset[str]]]:
    """Return what each container holds: a later answer for it replaces an earlier one.

    A kubelet that died before it wrote its checkpoint asks again for the same container.
    """
    held: dict[Who, dict[str, frozenset[str]]] = {}
    for call in calls:
        held.setdefault(call.who, {})[call.resource] = call.ids
    return held


def per_card(held: Mapping[str, frozenset[str]]) -> dict[str, dict[str, int]]:
    """Count one container's places: card UUID -> resource name -> places."""
    cards: dict[str, dict[str, int]] = {}
    for resource, ids in held.items():
        for device_id in ids:
            places = cards.setdefault(Slot.parse(device_id).card, {})
            places[resource] = places.get(resource, 0) + 1
    return cards


def held_twice(held: Holdings, live: Iterable[tuple[str, str]]) -> list[str]:
    """List every place that two live pods hold."""
    alive = set(live)
    owners: dict[tuple[str, str], tuple[str, str]] = {}
    found = []
    for (namespace, pod, _), resources in sorted(held.items()):
        if (namespace, pod) not in alive:
            continue
        for resource, ids in resources.items():
            for device_id in sorted(ids):
                owner = owners.setdefault((resource, device_id), (namespace, pod))
                if owner != (namespace, pod):
                    found.append(f"{resource} {device_id}: {owner} and {(namespace, pod)}")
    return found


def unequal_records(pods: Sequence[Json], held: Holdings, names: Names) -> list[str]:
    """List every container whose allocation record differs from the kubelet's."""
    wrong = []
    for pod in pods:
        metadata = pod["metadata"]
        text = (metadata.get("annotations") or {}).get(names.gpu_allocation, "{}")
        recorded = decode_allocations(text)
        for container in read_pod_demand(pod["spec"], names)[0].containers:
            who = (metadata["namespace"], metadata["name"], container.name)
            resources = held.get(who, {})
            truth = (
                frozenset(per_card(resources)),
                len(resources.get(names.core, ())),
                len(resources.get(names.memory, ())),
            )
            got = recorded.get(container.name)
            if got is None or (frozenset(got.cards), got.cores, got.memory_blocks) != truth:
                wrong.append(f"{who}: recorded {got}, holds {truth}")
    return wrong
