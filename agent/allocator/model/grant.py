"""What device IDs stand for: a pure function of the IDs, and the checks that they make sense."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from agent.allocator.model.tickets import Ticket, per_card
from agent.errors import GrantError
from contract.demand import CORES_PER_CARD, Demand
from contract.resource import Resource, count_of


@dataclass(frozen=True, slots=True)
class Share:
    """What a container gets of one card of one resource: places."""

    card: str
    places: int


@dataclass(frozen=True, slots=True)
class Grant:
    """What a set of device IDs stands for.

    Attributes:
        resource: which resource.
        shares: places per card, cards by index, the order of every answer.
    """

    resource: Resource
    shares: tuple[Share, ...]

    @property
    def cards(self) -> tuple[str, ...]:
        """The cards, by index."""
        return tuple(share.card for share in self.shares)

    @property
    def places(self) -> int:
        """All places together."""
        return sum(share.places for share in self.shares)


def translate(resource: Resource, tickets: Sequence[Ticket]) -> Grant:
    """Translate tickets, by card index, to what they stand for.

    Raises:
        GrantError: there are none, one stands twice, a share is split over cards, or
            whole cards are not whole.
    """
    if not tickets:
        raise GrantError(f"no places of {resource} were named")
    if len(set(tickets)) < len(tickets):
        raise GrantError(f"a place of {resource} is named twice")
    grant = Grant(
        resource, tuple(Share(card, places) for card, places in per_card(tickets).items())
    )
    if resource is Resource.CORE:
        _check_cores(grant)
    return grant


def _check_cores(grant: Grant) -> None:
    split = ", ".join(f"{share.places} on {share.card}" for share in grant.shares)
    if grant.places < CORES_PER_CARD:
        if len(grant.shares) > 1:
            raise GrantError(f"a share of {grant.places} cores is split over cards: {split}")
    elif any(share.places != CORES_PER_CARD for share in grant.shares):
        raise GrantError(f"{grant.places} cores are whole cards, but the places are not: {split}")


def check_together(grants: Iterable[Grant]) -> None:
    """Check the grants of one container against each other.

    Raises:
        GrantError: another resource lies on a card where the container has no cores.
    """
    by_resource = {each.resource: each for each in grants}
    cores = by_resource.pop(Resource.CORE, None)
    if cores is None:
        return
    for other in by_resource.values():
        stray = [card for card in other.cards if card not in cores.cards]
        if stray:
            raise GrantError(
                f"{other.resource} on {', '.join(stray)}, but the container's cores are on "
                f"{', '.join(cores.cards)}"
            )


def check_request(demand: Demand, grant: Grant) -> None:
    """Check a grant against what its container asks for.

    Raises:
        GrantError: the number of places is not what was asked for.
    """
    asked = count_of(demand, grant.resource)
    if grant.places != asked:
        raise GrantError(
            f"{grant.places} places of {grant.resource}, but the container asks for {asked}"
        )


def check_free(resource: Resource, held_by_others: Collection[str]) -> None:
    """Refuse places that another live container holds (fact K15).

    Raises:
        GrantError: naming some of the places.
    """
    if held_by_others:
        some = ", ".join(sorted(held_by_others)[:3])
        raise GrantError(
            f"{len(held_by_others)} places of {resource} are held by another container: {some}"
        )
