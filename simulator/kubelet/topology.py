"""What a topology manager concludes from the devices' NUMA nodes (K23).

Pure, after ``topology_hints.go`` of the device manager and ``policy.go`` of the topology manager,
of scope ``container``. What is counted are devices, of whatever card they are places.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, product
from typing import Literal, TypeAlias

from simulator.kubelet.numa import Device

TopologyPolicy: TypeAlias = Literal["none", "best-effort", "restricted", "single-numa-node"]

Nodes: TypeAlias = frozenset[int]


@dataclass(frozen=True, slots=True)
class Hint:
    """Some NUMA nodes that would do, ``None`` for any, and whether that is as few as possible."""

    nodes: Nodes | None
    preferred: bool


ANY = Hint(None, preferred=True)


def hints_for(
    devices: Mapping[str, Device],
    available: Collection[str],
    reusable: Collection[str],
    size: int,
    nodes: Nodes,
) -> list[Hint] | None:
    """Return the sets of NUMA nodes on which there are devices enough of one resource.

    Args:
        devices: all of them.
        available: those that are free.
        reusable: those that an init container of the pod has left; all must be on the nodes.
        size: how many are asked for.
        nodes: the machine's NUMA nodes.

    Returns:
        ``None`` when no device says where it is.
    """
    if not any(device.nodes for device in devices.values()):
        return None
    fewest, found = len(nodes), list[Nodes]()
    for mask in _masks(nodes):
        if sum(not mask.isdisjoint(each.nodes) for each in devices.values()) >= size:
            fewest = min(fewest, len(mask))
        left = [devices[each] for each in reusable if devices[each].nodes]
        if any(mask.isdisjoint(each.nodes) for each in left):
            continue
        free = sum(not mask.isdisjoint(devices[each].nodes) for each in available)
        if free + len(left) >= size:
            found.append(mask)
    return [Hint(mask, len(mask) == fewest) for mask in found]


def align(
    policy: TopologyPolicy, hints: Sequence[list[Hint] | None], nodes: Nodes
) -> tuple[Nodes | None, bool]:
    """Merge the hints of a container's resources.

    Returns:
        The NUMA nodes it should stay on, and whether the pod is admitted.
    """
    if policy == "none":
        return None, True
    each_of = [
        [ANY] if found is None else (found or [Hint(None, preferred=False)]) for found in hints
    ]
    if policy == "single-numa-node":
        each_of = [
            [one for one in found if one.preferred and (one.nodes is None or len(one.nodes) == 1)]
            for found in each_of
        ]
    best = Hint(nodes, preferred=False)
    for merged in (_merge(some, nodes) for some in product(*each_of)):
        if merged.nodes and _is_better(merged, best):
            best = merged
    admitted = policy == "best-effort" or best.preferred
    return (None if best.nodes == nodes else best.nodes), admitted


def _masks(nodes: Nodes) -> Iterator[Nodes]:
    for count in range(1, len(nodes) + 1):
        yield from map(frozenset, combinations(sorted(nodes), count))


def _merge(hints: Sequence[Hint], nodes: Nodes) -> Hint:
    masks = [each.nodes for each in hints if each.nodes is not None]
    alike = all(each == masks[0] for each in masks)
    return Hint(
        reduce(Nodes.intersection, masks, nodes), alike and all(each.preferred for each in hints)
    )


def _is_better(one: Hint, other: Hint) -> bool:
    """Prefer what is preferred, then the fewest nodes, then the lowest."""

    def key(hint: Hint) -> tuple[bool, int, list[int]]:
        return not hint.preferred, len(hint.nodes or ()), sorted(hint.nodes or ())

    return key(one) < key(other)
