"""Reusable devices: those that ordinary init containers leave to later containers (fact K7). Pure.

The kubelet gives a container first the devices that init containers before it held and that no
container has reused since. The plugin cannot choose among them. Only the rest is allocated fresh.
This module computes what a pod holds, what it holds at most, what is reusable, and which
containers can never be served.

:func:`placement.search.bound_cards` computes the cards to which this binds a container.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, TypeVar

from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind, Demand, PodDemand
from contract.inventory import Amounts
from contract.resource import RESOURCES, Resource
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

    Reusable devices are used first: on each card up to its part, and the others even if a card
    then provides more. If some are not needed, the kubelet may choose worse ones.

    *amounts* has each card's part of the request, *reusable* the reusable devices of each card.
    """
    reused, fresh, _ = serve(kind, sum(amounts), sum(reusable))
    within_parts = min(reused, sum(map(min, amounts, reusable)))
    surplus = reused - within_parts
    served = []
    for amount, card_reusable in zip(amounts, reusable, strict=True):
        card_within = min(amount, card_reusable, within_parts)
        card_surplus = min(card_reusable - card_within, surplus)
        card_reused = card_within + card_surplus
        card_fresh = min(max(amount - card_reused, 0), fresh)
        within_parts, surplus = within_parts - card_within, surplus - card_surplus
        fresh -= card_fresh
        served.append(_served(kind, card_reused, card_fresh, card_reusable))
    return served


def most_at_once(demand: PodDemand, resource: Resource) -> int:
    """Return the most devices that a pod holds at one time: all that are allocated fresh."""
    reusable = most = 0
    for container in demand.containers:
        count = resource.count_in(container.demand)
        _, fresh, reusable = serve(container.kind, count, reusable)
        most += fresh
    return most


def held_on_cards(
    demand: PodDemand, cards: Mapping[str, Sequence[CardKey]]
) -> dict[tuple[str, CardKey], Amounts]:
    """Return what each container holds of each of its cards, after all have been served.

    Devices of an ordinary init container that a later container reuses count as the later
    container's. The rest stays the init container's until the pod has ended (K4).

    *cards* has the cards of each container, if known.

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
    """Return what a container has of each of its *cards* cards; all cores of whole cards."""
    if resource is Resource.CORE:
        return (demand.cores_per_card,) * cards
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

_MOST_CARDS = 64
"""Most cards of a container whose conflicts are looked for: no node has so many."""


class LeftoverConflict(NamedTuple):
    """Why a container cannot be served after the init containers before it.

    Attributes:
        container: the container.
        rule: ``SPLIT`` if the kubelet might choose well among the reusable devices, by luck;
            ``NO_ROOM`` if no choice is good.
        detail: the rule and what to do instead, one line.
    """

    container: ContainerDemand
    rule: str
    detail: str


@dataclass(slots=True)
class _UsedCard:
    """A card, empty at first, that containers of the pod use.

    Attributes:
        reusable: cores and memory that later containers can reuse.
        held: cores that sidecars and containers keep.
    """

    reusable: list[int] = field(default_factory=lambda: [0] * len(RESOURCES))
    held: int = 0


def find_leftover_conflict(containers: Iterable[ContainerDemand]) -> LeftoverConflict | None:
    """Return why no node can serve a container, because of the init containers before it.

    Only the first such container is reported: what later ones can reuse is unknown then. All cards
    of the node are assumed to be empty. A container that reuses devices is bound to their cards;
    its other cards may be empty ones. Memory is not compared with a card's size, which is unknown
    at creation.
    """
    listed = tuple(containers)
    if not any(each.kind is ContainerKind.INIT for each in listed[:-1]):
        return None
    if any(each.demand.cards > _MOST_CARDS for each in listed):
        return None
    used: list[_UsedCard] = []  # cards with something reusable
    for container in listed:
        demand = container.demand
        wanted = [column for column, each in enumerate(RESOURCES) if each.count_in(demand)]
        bound = [card for card in used if any(card.reusable[column] for column in wanted)]
        conflict = _find_conflict(container, bound) if bound else None
        if conflict:
            return conflict
        empty = [_UsedCard() for _ in range(demand.cards - len(bound))]
        used += empty
        _serve_all(container, [*bound, *empty])
        used = [card for card in used if any(card.reusable)]
    return None


def _serve_all(container: ContainerDemand, cards: Sequence[_UsedCard]) -> None:
    """Give a container its devices of its cards, the reusable ones first."""
    demand, is_init = container.demand, container.kind is ContainerKind.INIT
    for column, resource in enumerate(RESOURCES):
        amounts = amounts_per_card(demand, resource, len(cards))
        before = [card.reusable[column] for card in cards]
        for card, each in zip(cards, serve_on_cards(container.kind, amounts, before), strict=True):
            card.reusable[column] = each.reusable
    for card in cards:
        card.held += 0 if is_init else demand.cores_per_card


def _find_conflict(
    container: ContainerDemand, bound: Sequence[_UsedCard]
) -> LeftoverConflict | None:
    """Return why a container cannot have the cards to which reusable devices bind it."""
    demand = container.demand
    cores, memory = (_Reuse(demand, each, column, bound) for column, each in enumerate(RESOURCES))
    if cores.is_partial:
        whole = CORES_PER_CARD in cores.amounts and demand.split == 1
        text = _split_text(cores.total) if whole else _over_cards_text(cores, memory)
        return LeftoverConflict(container, SPLIT, text)
    # If it reuses only some memory, the kubelet may choose that on the card with most free cores.
    free_cores = [CORES_PER_CARD - card.held for card in bound]
    free = max(free_cores) if memory.is_partial else min(free_cores)
    if free < min(demand.cores, demand.cores_per_card):  # memory without cores fits
        return LeftoverConflict(container, NO_ROOM, _no_room_text(cores.total, memory.total, free))
    # The cards that it has, whatever the kubelet chooses.
    certain = {*cores.cards, *(() if memory.is_partial else memory.cards)}
    certainly_uneven = cores.is_uneven or (memory.is_uneven and not memory.is_partial)
    if len(certain) > demand.cards or certainly_uneven:
        on_one_card_each = demand.split == 1 and all(
            len(each.cards) < 2 for each in (cores, memory)
        )
        text = (
            _no_room_text(0, memory.total, 0)
            if on_one_card_each
            else _over_cards_text(cores, memory)
        )
        return LeftoverConflict(container, NO_ROOM, text)
    if len(bound) > demand.cards or memory.is_uneven:
        return LeftoverConflict(container, SPLIT, _over_cards_text(cores, memory))
    return None


class _Reuse:
    """What a container reuses of one resource.

    Attributes:
        resource: the resource.
        amounts: what it can reuse of each of the cards to which it is bound.
        cards: positions of those with any.
        total: the sum of the amounts.
        most: the largest of them.
        is_partial: whether it reuses only some, and they are on several cards: the kubelet chooses.
        is_uneven: whether a card would provide more than its part of a divided share.
    """

    def __init__(
        self, demand: Demand, resource: Resource, column: int, bound: Sequence[_UsedCard]
    ) -> None:
        count = resource.count_in(demand)
        self.resource = resource
        self.amounts = [card.reusable[column] if count else 0 for card in bound]
        self.cards = [position for position, each in enumerate(self.amounts) if each]
        self.total, self.most = sum(self.amounts), max(self.amounts)
        self.is_partial = count < self.total and len(self.cards) > 1
        self.is_uneven = demand.split > 1 and self.most > count // demand.split


def _split_text(reusable: int) -> str:
    return (
        f"the kubelet would reuse some of the {reusable} cores of init containers before it, "
        f"from several cards: request {reusable} or more here, "
        f"or at most {CORES_PER_CARD} in those"
    )


def _over_cards_text(*reuses: _Reuse) -> str:
    reusable, each = (
        " and ".join(
            reuse.resource.format_count(count)
            for reuse, count in zip(reuses, counts, strict=True)
            if count
        )
        for counts in ([reuse.total for reuse in reuses], [reuse.most for reuse in reuses])
    )
    cards = len({*chain.from_iterable(reuse.cards for reuse in reuses)})
    return (
        f"the kubelet would first reuse {reusable} of init containers before it, "
        f"from {format_count(cards, 'card')}: "
        f"request at least {each} of each of so many cards or more here, "
        "or so few in those that none remain for this container"
    )


def _no_room_text(cores: int, memory: int, free: int) -> str:
    counts = ((cores, "core"), (memory, "memory block"))
    reusable = " and ".join(format_count(count, unit) for count, unit in counts if count)
    has = f"only {format_count(free, 'core')}" if free else "no core"
    fewer = f"at most {free} here, or " if free else ""
    return (
        f"the kubelet would first reuse {reusable} of init containers before it, "
        f"but their card has {has} free: "
        f"request {fewer}so few in those that none remain for this container"
    )
