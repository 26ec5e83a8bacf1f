"""Reusable devices: those that ordinary init containers leave to later containers (fact K7). Pure.

The kubelet gives a container first the devices that init containers before it held and that no
container has reused since. The plugin cannot choose among them. Only the rest is allocated fresh.
This module computes what a pod holds, what it holds at most, what is reusable, and which
containers can never be served.

:func:`placement.search.bound_cards` computes the cards to which this binds a container.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, TypeVar

from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind, Demand, PodDemand
from contract.inventory import Amounts
from contract.resource import RESOURCES, Resource, count_of
from contract.text import format_count

CardKey = TypeVar("CardKey")


class ReceivedDevices(NamedTuple):
    """The numbers of one resource's devices that a container received, on one card or on all.

    Attributes:
        reused: devices that init containers held before.
        fresh: devices that the pod did not hold before.
        reusable: devices that later containers can reuse.
    """

    reused: int
    fresh: int
    reusable: int


def serve(kind: ContainerKind, count: int, reusable: int) -> ReceivedDevices:
    """Give a container *count* devices, the *reusable* ones first."""
    reused = min(count, reusable)
    return _served(kind, reused, count - reused, reusable)


def _served(kind: ContainerKind, reused: int, fresh: int, reusable: int) -> ReceivedDevices:
    still_reusable = reusable + fresh if kind is ContainerKind.INIT else reusable - reused
    return ReceivedDevices(reused, fresh, still_reusable)


def serve_on_cards(
    kind: ContainerKind, amounts: Sequence[int], reusable: Sequence[int]
) -> list[ReceivedDevices]:
    """Give a container devices of several cards.

    Reusable devices are used first, even if a card then provides more than its part.

    Args:
        kind: the container's.
        amounts: each card's part of the request.
        reusable: the reusable devices of each card.
    """
    reused, fresh, _ = serve(kind, sum(amounts), sum(reusable))
    served = []
    for amount, card_reusable in zip(amounts, reusable, strict=True):
        card_reused = min(card_reusable, reused)
        card_fresh = min(max(amount - card_reused, 0), fresh)
        reused, fresh = reused - card_reused, fresh - card_fresh
        served.append(_served(kind, card_reused, card_fresh, card_reusable))
    return served


def most_at_once(demand: PodDemand, resource: Resource) -> int:
    """Return the most devices that a pod holds at one time: all that are allocated fresh."""
    reusable = most = 0
    for container in demand.containers:
        count = count_of(container.demand, resource)
        _, fresh, reusable = serve(container.kind, count, reusable)
        most += fresh
    return most


def held_on_cards(
    demand: PodDemand, cards: Mapping[str, Sequence[CardKey]]
) -> dict[tuple[str, CardKey], Amounts]:
    """Return what each container holds of each of its cards, after all have been served.

    Devices of an ordinary init container that a later container reuses count as the later
    container's. The rest stays the init container's until the pod has ended (K4).

    Args:
        demand: the pod's.
        cards: the cards of each container, if known.

    Returns:
        Amounts by container name and card.
    """
    held: dict[tuple[str, CardKey], list[int]] = {}
    for column, resource in enumerate(RESOURCES):
        reusable: dict[CardKey, int] = {}
        for container in demand.containers:
            own = cards.get(container.name, ())
            before = [reusable.get(card, 0) for card in own]
            amounts = amounts_per_card(container.demand, resource, len(own))
            received = serve_on_cards(container.kind, amounts, before)
            for card, each in zip(own, received, strict=True):
                reusable[card] = each.reusable
                is_init = container.kind is ContainerKind.INIT
                row = held.setdefault((container.name, card), [0, 0])
                row[column] = each.fresh if is_init else each.reused + each.fresh
        for container in demand.containers:
            if container.kind is ContainerKind.INIT:
                for card in cards.get(container.name, ()):
                    row = held[container.name, card]
                    row[column] = min(row[column], reusable[card])
                    reusable[card] -= row[column]
    return {key: Amounts(*row) for key, row in held.items()}


def amounts_per_card(demand: Demand, resource: Resource, cards: int) -> tuple[int, ...]:
    """Return what a container has on each of its *cards* cards; all cores of whole cards."""
    if resource is Resource.CORE:
        return (demand.cores if demand.is_share else CORES_PER_CARD,) * cards
    amounts = demand.per_card(resource, cards)
    return amounts + (0,) * (cards - len(amounts))


def reusable_ids(held: Iterable[tuple[bool, AbstractSet[str]]]) -> frozenset[str]:
    """Return the device IDs that later containers of a pod can reuse.

    Args:
        held: for each container, whether it is an ordinary init container, and its device IDs.
    """
    of_init, of_others = set[str](), set[str]()
    for is_init, ids in held:
        (of_init if is_init else of_others).update(ids)
    return frozenset(of_init - of_others)


# --- containers that can never be served ----------------------------------------------

SPLIT, NO_ROOM = "split-over-cards", "no-room-on-card"


class LeftoverConflict(NamedTuple):
    """Why a container cannot be served after the init containers before it.

    Attributes:
        rule: ``SPLIT``, or ``NO_ROOM``.
        detail: the rule and what to do instead, one line.
    """

    rule: str
    detail: str


def find_leftover_conflicts(
    containers: Iterable[ContainerDemand],
) -> Iterator[tuple[ContainerDemand, LeftoverConflict]]:
    """Yield the containers that no node can serve, because of the init containers before them.

    This assumes a node on which all cards are empty. A container that reuses devices is bound to
    their card; any other may get an empty card. Memory is not compared with a card's size, which
    is unknown at creation.
    """
    cores = memory = 0  # reusable: of one card, or of several whole cards
    held = 0  # cores that non-init containers hold on the card of the reusable devices
    apart = False  # whether the reusable cores are on another card than the memory (and *held*)
    for container in containers:
        kind, asked = container.kind, container.demand
        of_cores, of_memory = serve(kind, asked.cores, cores), serve(kind, asked.memory, memory)
        bound = of_memory.reused or (of_cores.reused and not apart)
        free = 0 if apart else CORES_PER_CARD - held
        conflict = None
        if cores > CORES_PER_CARD and 0 < of_cores.reused < cores:
            conflict = LeftoverConflict(SPLIT, _split(cores))
        elif bound and free < min(asked.cores, CORES_PER_CARD):
            reusable_cores = cores if of_cores.reused and not apart else 0
            detail = _no_room(reusable_cores, memory if of_memory.reused else 0, free)
            conflict = LeftoverConflict(NO_ROOM, detail)
        if conflict:
            yield container, conflict
        if kind is ContainerKind.INIT:
            if not cores and not of_memory.reused:
                apart = memory > 0
        elif bound and not conflict:
            held += min(asked.cores, CORES_PER_CARD)
        cores, memory = of_cores.reusable, of_memory.reusable
        if kind is not ContainerKind.INIT:
            apart = apart and cores > 0
            if not cores and not memory:
                held = 0


def _split(reusable: int) -> str:
    return (
        f"the kubelet would reuse some of the {reusable} cores of init containers before it, from "
        f"several cards: request {reusable} or more here, or at most {CORES_PER_CARD} in those"
    )


def _no_room(cores: int, memory: int, free: int) -> str:
    counts = ((cores, "core"), (memory, "memory block"))
    reusable = " and ".join(format_count(count, unit) for count, unit in counts if count)
    has = f"only {format_count(free, 'core')}" if free else "no core"
    fewer = f"at most {free} here, or " if free else ""
    return (
        f"the kubelet would first reuse {reusable} of init containers before it, but their card "
        f"has {has} free: request {fewer}so few in those that none remain for this container"
    )
