"""Devices that ordinary init containers leave to later containers of their pod (fact K7). Pure.

The kubelet gives a container first what init containers before it have left and nobody has taken
since, without asking which of these devices, and takes only the rest anew. Who works out what a
pod holds, what it holds at most, what is reusable, or what can never be served, asks here.

On which cards that binds a container follows in :func:`placement.search.bound_cards`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, TypeVar

from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind, Demand, PodDemand
from contract.inventory import Amounts
from contract.resource import RESOURCES, Resource, count_of

CardKey = TypeVar("CardKey")


class ReceivedDevices(NamedTuple):
    """What one container was given of one resource, of one card or of all.

    Attributes:
        reused: what init containers had left.
        fresh: what was taken anew.
        reusable: what is left for the containers after it.
    """

    reused: int
    fresh: int
    reusable: int


def serve(kind: ContainerKind, count: int, reusable: int) -> ReceivedDevices:
    """Give a container *count* devices, those that are *reusable* first."""
    reused = min(count, reusable)
    return _served(kind, reused, count - reused, reusable)


def _served(kind: ContainerKind, reused: int, fresh: int, reusable: int) -> ReceivedDevices:
    left = reusable + fresh if kind is ContainerKind.INIT else reusable - reused
    return ReceivedDevices(reused, fresh, left)


def serve_on_cards(
    kind: ContainerKind, amounts: Sequence[int], reusable: Sequence[int]
) -> list[ReceivedDevices]:
    """Give a container devices of several cards.

    What is reusable is used before others, even where a card then gives more than its part.

    Args:
        kind: of the container.
        amounts: of each card, its part of the request.
        reusable: of each card, what init containers have left.
    """
    reused, fresh, _ = serve(kind, sum(amounts), sum(reusable))
    served = []
    for amount, left in zip(amounts, reusable, strict=True):
        again = min(left, reused)
        anew = min(max(amount - again, 0), fresh)
        reused, fresh = reused - again, fresh - anew
        served.append(_served(kind, again, anew, left))
    return served


def most_at_once(demand: PodDemand, resource: Resource) -> int:
    """Return what a pod holds when it holds most: all that it takes anew."""
    reusable = most = 0
    for container in demand.containers:
        count = count_of(container.demand, resource)
        _, fresh, reusable = serve(container.kind, count, reusable)
        most += fresh
    return most


def held_on_cards(
    demand: PodDemand, cards: Mapping[str, Sequence[CardKey]]
) -> dict[tuple[str, CardKey], Amounts]:
    """Return what each container holds of each of its cards, once all have been served.

    What an ordinary init container has left counts with the container that has taken it since. The
    rest is the init container's, until the pod has ended (K4).

    Args:
        demand: the pod's.
        cards: of each container whose cards are known.

    Returns:
        By container and card.
    """
    held: dict[tuple[str, CardKey], list[int]] = {}
    for at, resource in enumerate(RESOURCES):
        reusable: dict[CardKey, int] = {}
        for container in demand.containers:
            on = cards.get(container.name, ())
            left = [reusable.get(card, 0) for card in on]
            amounts = amounts_per_card(container.demand, resource, len(on))
            for card, each in zip(on, serve_on_cards(container.kind, amounts, left), strict=True):
                reusable[card] = each.reusable
                is_init = container.kind is ContainerKind.INIT
                row = held.setdefault((container.name, card), [0, 0])
                row[at] = each.fresh if is_init else each.reused + each.fresh
        for container in demand.containers:
            if container.kind is ContainerKind.INIT:
                for card in cards.get(container.name, ()):
                    row = held[container.name, card]
                    row[at] = min(row[at], reusable[card])
                    reusable[card] -= row[at]
    return {key: Amounts(*row) for key, row in held.items()}


def amounts_per_card(demand: Demand, resource: Resource, cards: int) -> tuple[int, ...]:
    """Return what a container has of each of so many cards; of whole cards all cores."""
    if resource is Resource.CORE:
        return (demand.cores if demand.is_share else CORES_PER_CARD,) * cards
    amounts = demand.per_card(resource, cards)
    return amounts + (0,) * (cards - len(amounts))


def reusable_ids(held: Iterable[tuple[bool, AbstractSet[str]]]) -> frozenset[str]:
    """Return the device IDs that ordinary init containers of a pod have left.

    Args:
        held: of each container, whether it is an ordinary init container, and its device IDs.
    """
    left, kept = set[str](), set[str]()
    for is_init, ids in held:
        (left if is_init else kept).update(ids)
    return frozenset(left - kept)


# --- what can never be served ---------------------------------------------------------

SPLIT, NO_ROOM = "split-over-cards", "no-room-on-card"


class LeftoverConflict(NamedTuple):
    """Why what init containers leave keeps a container from being served.

    Attributes:
        rule: ``SPLIT``, or ``NO_ROOM``.
        detail: the rule and what to do instead, one line.
    """

    rule: str
    detail: str


def find_leftover_conflicts(
    containers: Iterable[ContainerDemand],
) -> Iterator[tuple[ContainerDemand, LeftoverConflict]]:
    """Yield the containers that init containers before them keep from being served on any node.

    All cards of that node may be empty. A container that is given reusable devices is bound to
    their card; any other may have an empty card. Memory is not counted: at creation nobody knows
    how much a card has.
    """
    cores = memory = 0  # reusable: of one card, or of several that are whole
    held = 0  # cores of that card which containers keep
    apart = False  # whether the cores are of another card than the memory, which is *held*'s
    for container in containers:
        kind, asked = container.kind, container.demand
        of_cores, of_memory = serve(kind, asked.cores, cores), serve(kind, asked.memory, memory)
        bound = of_memory.reused or (of_cores.reused and not apart)
        room = 0 if apart else CORES_PER_CARD - held
        conflict = None
        if cores > CORES_PER_CARD and 0 < of_cores.reused < cores:
            conflict = LeftoverConflict(SPLIT, _split(cores))
        elif bound and room < min(asked.cores, CORES_PER_CARD):
            left = cores if of_cores.reused and not apart else 0
            detail = _no_room(left, memory if of_memory.reused else 0, room)
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


def _split(left: int) -> str:
    return (
        f"init containers before it leave {left} cores over, and the kubelet would hand "
        f"it some of these, from several cards: ask for {left} or more here, or for at "
        f"most {CORES_PER_CARD} there"
    )


def _no_room(cores: int, memory: int, room: int) -> str:
    counts = ((cores, "core"), (memory, "memory block"))
    left = " and ".join(_count(count, unit) for count, unit in counts if count)
    has = f"only {_count(room, 'core')}" if room else "no cores"
    less = f"at most {room} here, or for " if room else ""
    return (
        f"init containers before it leave {left} over, the kubelet would hand it these first, and "
        f"their card has {has} for it: ask for {less}so little there that nothing is left over"
    )


def _count(count: int, unit: str) -> str:
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
