"""Holdings of the device plugin's door: the slots of a snapshot as amounts of cards. Pure.

Beyond this module nothing depends on device IDs.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from agent.allocator.grants import Grant
from agent.allocator.interfaces import Containers, HeldSlots
from agent.allocator.slots import DeviceTable
from agent.allocator.snapshot import AllocationSnapshot
from agent.allocator.snapshot_pod import NO_SLOTS, NOTHING
from agent.holdings.annotation import allocation_of
from agent.holdings.holding import (
    NO_KEY,
    ContainerRef,
    Holding,
    HoldingKey,
    NodeHoldings,
    are_whole,
    make_key,
)
from contract.allocation import Allocation, Evidence
from contract.demand import ContainerDemand, ContainerKind
from contract.inventory import Amounts
from contract.resource import RESOURCES, Resource
from contract.wishes import NO_WISHES, Wishes
from placement.pods import PodId, PodInfo

EvidenceOf: TypeAlias = Callable[[str, Resource], Evidence]
"""Returns the evidence for a container's slots, by the container's name and the resource."""


def key_of(core_ids: Collection[str]) -> HoldingKey:
    """Return the key of a holding with these core slots, the same in any order; empty without any.

    It depends only on the slots, so an agent whose disk was wiped makes the same paths again, which
    the kubelet still uses (fact K12).
    """
    return make_key("\n".join(sorted(core_ids))) if core_ids else NO_KEY


def holding_of(
    ref: ContainerRef, slots: HeldSlots, table: DeviceTable, info: PodInfo | None
) -> Holding:
    """Return the holding of a container with these slots.

    Unreadable device IDs in *slots* are left out.
    """
    cards = table.amounts(slots)
    return Holding(
        ref,
        key_of(slots.get(Resource.CORE, NOTHING)),
        cards,
        are_whole(cards),
        info.wishes.core_limit if info is not None else None,
        info.runtime_uid if info is not None else "",
        processes=info.wishes.processes if info is not None else 1,
    )


def _are_readable(slots: HeldSlots, cards: Mapping[str, Amounts]) -> bool:
    """Return whether *cards* has all of these slots: none is of another device plugin."""
    return all(
        len(ids) == sum(resource.count_in(each) for each in cards.values())
        for resource, ids in slots.items()
    )


def granted(
    ref: ContainerRef,
    ids: Collection[str],
    grant: Grant,
    *,
    is_whole: bool,
    wishes: Wishes = NO_WISHES,
) -> Holding:
    """Return what one call gives a container: cores or memory, without the other.

    *grant* has the same slots as *ids*; *is_whole* is whether the container certainly gets whole
    cards. *wishes* are its pod's, as far as they are known.
    """
    amounts = {
        each.card: Amounts(each.slots, 0)
        if grant.resource is Resource.CORE
        else Amounts(0, each.slots)
        for each in grant.by_card
    }
    key = key_of(ids if grant.resource is Resource.CORE else ())
    whole = is_whole or are_whole(amounts)
    return Holding(ref, key, amounts, whole, wishes.core_limit, processes=wishes.processes)


def read_holdings(snapshot: AllocationSnapshot, table: DeviceTable) -> NodeHoldings:
    """Sum up a snapshot; it is immutable, so no lock is needed."""
    held = [table.count(each, snapshot.held[each]) for each in RESOURCES]
    cards = table.inventory.cards
    return NodeHoldings(
        tuple(sorted(_holders(snapshot, table), key=lambda each: each.ref)),
        {card.uuid: Amounts(*(each.get(card.uuid, 0) for each in held)) for card in cards},
        cards,
        table.block,
    )


def _holders(snapshot: AllocationSnapshot, table: DeviceTable) -> Iterator[Holding]:
    for pod in snapshot.pods:
        runs = pod.info is not None and pod.info.running
        for name, slots in pod.held.items():
            made = holding_of(ContainerRef(pod.id, name), slots, table, pod.info)
            # Limits that cannot be known are not looked up.
            uid = made.runtime_uid or pod.uid if _are_readable(slots, made.cards) else ""
            # The slots of an init container are reusable: later containers have them (K7).
            yield replace(made, runtime_uid=uid, superseded=runs and pod.is_init(name))


def starting(
    pod: PodId, info: PodInfo | None, held: Containers, ids: frozenset[str], table: DeviceTable
) -> list[Holding]:
    """Return the containers that may be about to start with these core slots, in their order.

    *held* has the slots of the pod's containers; several may hold *ids*, the core slots (K7).
    """
    order = [each.name for each in info.demand.containers] if info is not None else sorted(held)
    found = [
        holding_of(ContainerRef(pod, name), held[name], table, info)
        for name in order
        if held.get(name, {}).get(Resource.CORE) == ids
    ]
    return [
        each
        for each in found
        if each.is_on(table.order) and _are_readable(held[each.ref.container], each.cards)
    ]


def allocations_of(
    held: Containers, table: DeviceTable, info: PodInfo, *, evidence: EvidenceOf
) -> dict[str, Allocation] | None:
    """Return the allocation of each container of a pod, once all have their whole request.

    An ordinary init container may be missing if a later container has been served: without the
    checkpoint its slots cannot be known (K4).

    Returns:
        Container name -> allocation; ``None`` while something is missing, or if the node has lost
        a card.
    """
    found: dict[str, Allocation] = {}
    for at, container in enumerate(info.demand.containers):
        slots = held.get(container.name, NO_SLOTS)
        allocation = _allocation(slots, table, container, evidence)
        if allocation is not None:
            found[container.name] = allocation
        elif container.kind is not ContainerKind.INIT or not any(
            held.get(each.name) for each in info.demand.containers[at + 1 :]
        ):
            return None
    return found


def _allocation(
    slots: HeldSlots, table: DeviceTable, container: ContainerDemand, evidence: EvidenceOf
) -> Allocation | None:
    wanted = {each for each in Resource if each.count_in(container.demand)}
    if not wanted or set(slots) != wanted:
        return None
    cards = table.amounts(slots)
    if not cards.keys() <= table.order.keys() or not _are_readable(slots, cards):
        return None
    weakest = max((evidence(container.name, each) for each in slots), key=list(Evidence).index)
    return allocation_of(cards, container.demand, weakest)
