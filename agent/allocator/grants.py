"""Grants: translates device IDs, and checks them against each other and the request. Pure.

A grant is all slots of one resource that a container holds.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from agent.allocator.slots import DeviceTable, Slot, per_card
from agent.errors import GrantError
from contract.demand import CORES_PER_CARD, Demand
from contract.resource import Resource


@dataclass(frozen=True, slots=True)
class CardGrant:
    """The number of slots of one resource on one card."""

    card: str
    slots: int


@dataclass(frozen=True, slots=True)
class Grant:
    """A set of device IDs, summed up by card.

    Attributes:
        by_card: the slots on each card; cards by index, as in every response.
    """

    resource: Resource
    by_card: tuple[CardGrant, ...]

    @property
    def cards(self) -> tuple[str, ...]:
        """The cards, by index."""
        return tuple(each.card for each in self.by_card)

    @property
    def slots(self) -> int:
        """The number of slots on all cards."""
        return sum(each.slots for each in self.by_card)

    @property
    def most_per_card(self) -> int:
        """The number of slots on the card with most."""
        return max(each.slots for each in self.by_card)

    @property
    def is_even(self) -> bool:
        """Whether it has the same number of slots on each card, as whole cards have of cores."""
        return len({each.slots for each in self.by_card}) == 1

    @property
    def is_whole(self) -> bool:
        """Whether these cores are whole cards, not shares of cards."""
        return self.is_even and self.most_per_card == CORES_PER_CARD

    @property
    def by_card_text(self) -> str:
        """The slots on each card, for messages."""
        return ", ".join(f"{each.slots} on {each.card}" for each in self.by_card)


def translate(resource: Resource, slots: Sequence[Slot]) -> Grant:
    """Sum up slots, which are sorted by card index, to a grant.

    Raises:
        GrantError: there are none, or one is repeated.
    """
    if not slots:
        raise GrantError(f"no {resource.unit} were named")
    if len(set(slots)) < len(slots):
        raise GrantError(f"{resource.unit} are named twice")
    return Grant(resource, tuple(CardGrant(*each) for each in per_card(slots).items()))


def grant_of(table: DeviceTable, resource: Resource, held: frozenset[str] | None) -> Grant | None:
    """Return the grant of a container's device IDs; ``None`` if it has none.

    Raises:
        GrantError: they are not IDs of this node's cards.
    """
    return None if held is None else translate(resource, table.read(resource, held))


def check_together(grants: Iterable[Grant]) -> None:
    """Check the grants of one container against each other.

    Raises:
        GrantError: the memory is on a card on which the container has no cores.
    """
    by_resource = {each.resource: each for each in grants}
    cores, memory = by_resource.get(Resource.CORE), by_resource.get(Resource.MEMORY)
    if cores is None or memory is None:
        return
    stray = [card for card in memory.cards if card not in cores.cards]
    if stray:
        raise GrantError(
            f"memory on {', '.join(stray)}, but the container's cores are on "
            f"{', '.join(cores.cards)}"
        )


def check_request(demand: Demand, grant: Grant) -> None:
    """Check the number of a grant's slots against the container's request.

    Raises:
        GrantError: it is not the requested one.
    """
    requested = grant.resource.count_in(demand)
    if grant.slots != requested:
        raise GrantError(
            f"{grant.resource.format_count(grant.slots)}, but the container requests {requested}"
        )


def check_parts(demand: Demand | None, grant: Grant) -> None:
    """Check the number of a grant's cards, and its part of each.

    Args:
        demand: the container's request; ``None`` if it is not known: cores must then be whole cards
            or the same part of each card.
        grant: as many slots as requested. The memory of whole cards may be on fewer of them.

    Raises:
        GrantError: cores that must be whole cards are not, or a share is not divided evenly over
            the requested number of cards.
    """
    is_core = grant.resource is Resource.CORE
    if demand is None:
        if grant.is_even or not is_core:
            return
        rule = f"{grant.slots} cores must be whole cards or the same part of each, but they are not"
    elif not demand.is_share:
        if grant.is_whole or not is_core:
            return
        rule = f"{grant.slots} cores must be whole cards, but they are not"
    else:
        part = grant.resource.count_in(demand) // demand.split
        if [each.slots for each in grant.by_card] == [part] * demand.split:
            return
        share = f"a share of {grant.resource.format_count(grant.slots)}"
        rule = f"{share} must be {part} on each of {demand.split} cards, but is not"
        if demand.split == 1:
            rule = f"{share} is split over cards"
    raise GrantError(f"{rule}: {grant.by_card_text}")


def check_free(resource: Resource, held_by_others: Collection[str]) -> None:
    """Refuse slots that another container still holds (fact K15).

    Raises:
        GrantError: there are some; the message names up to three.
    """
    if held_by_others:
        some = ", ".join(sorted(held_by_others)[:3])
        count = len(held_by_others)
        are = "is" if count == 1 else "are"
        raise GrantError(f"{resource.format_count(count)} {are} held by another container: {some}")
