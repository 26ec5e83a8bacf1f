"""Whether a container fits on a card and, if not, the reason as text."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from contract.demand import CORES_PER_CARD, Demand
from contract.inventory import Amounts, Card
from contract.resource import Resource
from contract.text import format_count
from contract.wishes import Wishes
from placement.errors import NoPlacement
from placement.topology import Links

LINK_PHRASES = {"nvlink": "connected by NVLink", "numa": "on one NUMA node"}
"""What ``gpu-link`` demands of several cards, as text for messages, by the wish's value."""

_NOT_NAMED = "MIG: for shares of one card, or if use-gpu-type or use-gpu-uuid names it"


def is_for_shares(card: Card, wishes: Wishes) -> bool:
    """Return whether a card is a MIG instance that its pod's author does not name.

    It is much less than a whole card, so that nobody gets it instead of one without wanting it.
    """
    return card.is_instance and not wishes.names_instance(model=card.model, uuid=card.uuid)


def may_get_instances(demand: Demand) -> bool:
    """Return whether a container may get MIG instances that its author does not name.

    It may with a share of one card: a CUDA program sees only one instance.
    """
    return demand.is_share and demand.cards == 1


@dataclass(frozen=True, eq=False)
class CardSet:
    """The cards of a node for one pod, without their free amounts; sequences are by position.

    Equal nodes share one object, so that a cached search result serves all of them.

    Attributes:
        names: names of the cards, for messages.
        sizes: cores and memory of each card.
        links: how the cards are connected.
        withheld: why each card gets no new container: such as ``unhealthy (Xid 79)``, or
            ``cordoned``; empty if it may.
        excluded: the wish of the pod's author that excludes each card; empty if none does.
        for_shares: positions of the MIG instances that the author does not name
            (:func:`is_for_shares`).
    """

    names: Sequence[str]
    sizes: Sequence[Amounts]
    links: Links
    withheld: Sequence[str]
    excluded: Sequence[str]
    for_shares: AbstractSet[int] = frozenset()

    @cached_property
    def usable(self) -> tuple[int, ...]:
        """The cards that new containers may get, and that no wish excludes."""
        return tuple(position for position in self.available if not self.excluded[position])

    @cached_property
    def available(self) -> tuple[int, ...]:
        """The cards that new containers may get."""
        return tuple(position for position, reason in enumerate(self.withheld) if not reason)

    def refuses(self, position: int, demand: Demand) -> bool:
        """Return whether a card is a MIG instance that is not for such a container."""
        return position in self.for_shares and not may_get_instances(demand)

    def eligible(self, demand: Demand) -> list[int]:
        """Return the cards that are for such a container, and that no wish excludes."""
        return [
            position
            for position, wish in enumerate(self.excluded)
            if not wish and not self.refuses(position, demand)
        ]

    def fitting(self, free: Sequence[Amounts], need: "CardNeed") -> list[int]:
        """Return the usable cards that have enough free, and are for such a container."""
        cores, memory = need.per_card
        usable: Sequence[int] = self.usable
        if self.for_shares and not may_get_instances(need.demand):
            usable = [position for position in usable if position not in self.for_shares]
        return [
            position
            for position in usable
            if free[position][0] >= cores and free[position][1] >= memory
        ]


class CardNeed(NamedTuple):
    """What a container needs of its cards.

    Attributes:
        demand: the container's request.
        per_card: the free amounts that each of its cards must have.
    """

    demand: Demand
    per_card: Amounts


def need_of(demand: Demand) -> CardNeed:
    """Compute what a container needs of each of its cards.

    Raises:
        NoPlacement: the webhook denies such a request.
    """
    uneven = demand.cores % demand.split or demand.memory % demand.split
    whole = not demand.is_share
    if not demand.cards or uneven or (whole and demand.cores % CORES_PER_CARD):
        rule = "a share of one card is 1 to 99 cores, whole cards are a multiple of 100"
        if uneven:
            rule = "they cannot be divided evenly"
        # A pod created while no webhook could deny it.
        raise NoPlacement(f"{_format(demand)} fit no card: {rule}")
    # A card may get one block more than another: Demand.per_card gives it to the first.
    per_card = Amounts(demand.cores_per_card, demand.most_per_card(Resource.MEMORY))
    return CardNeed(demand, per_card)


class Shortfall(NamedTuple):
    """Why a card does not fit.

    Attributes:
        reason: such as ``of 60 cores free``, or ``unhealthy (Xid 79)``.
        free: the free amount if that is too little; ``None`` for other reasons.
    """

    reason: str
    free: int | None = None

    def __str__(self) -> str:
        """Format it for one card."""
        return self.reason if self.free is None else f"{self.free} {self.reason}"


def shortfall(  # noqa: PLR0913 -- all conditions on a card, by keyword
    need: CardNeed,
    cards: CardSet,
    position: int,
    free: Amounts,
    *,
    fixed: Sequence[int] = (),
    must: Sequence[int] = (),
) -> Shortfall | None:
    """Return why a card does not fit; ``None`` if it does.

    Args:
        need: what the container needs.
        cards: the node's cards.
        position: the card.
        free: its free amounts.
        fixed: positions of the cards that the container holds already.
        must: positions of cards whose devices the kubelet makes the container reuse (K7).
    """
    wanted, reason = need.per_card, ""
    if cards.withheld[position]:
        reason = cards.withheld[position]
    elif cards.excluded[position]:
        reason = f"excluded by {cards.excluded[position]}"
    elif cards.refuses(position, need.demand):
        reason = _NOT_NAMED
    elif fixed and position not in fixed:
        reason = "the container's other resource is on another card"
    elif need.demand.is_share and len(must) >= need.demand.cards and position not in must:
        reason = "the kubelet reuses devices of another card"
    elif free.cores < wanted.cores:
        return Shortfall(f"of {wanted.cores} cores free", free.cores)
    elif free.memory < wanted.memory:
        return Shortfall(f"of {wanted.memory} memory blocks free", free.memory)
    return Shortfall(reason) if reason else None


def explain(  # noqa: PLR0913 -- all conditions on cards, by keyword
    need: CardNeed,
    cards: CardSet,
    free: Sequence[Amounts],
    *,
    fixed: Sequence[int] = (),
    must: Sequence[int] = (),
    link: str = "",
) -> str:
    """Return text why no card fits; cards with the same reason are one group.

    Args:
        need: what the container needs.
        cards: the node's cards.
        free: their free amounts.
        fixed: as of :func:`shortfall`.
        must: as of :func:`shortfall`.
        link: the wish ``gpu-link``: if enough cards fit, their links do not fulfil it.
    """
    demand, bound = need.demand, {*fixed, *must}
    groups: dict[str, list[tuple[str, Shortfall]]] = {}
    fitting = 0
    for position, row in enumerate(free):
        lack = shortfall(need, cards, position, row, fixed=fixed, must=must) or _FITS
        fitting += lack is _FITS
        if not bound or position in bound:
            groups.setdefault(lack.reason, []).append((cards.names[position], lack))
    found = f"{demand.cards} cards needed, {fitting} found" * (demand.cards > 1)
    if link and fitting >= demand.cards > 1:
        phrase = LINK_PHRASES[link]
        found = f"no {demand.cards} of {fitting} fitting cards are {phrase} (gpu-link: {link})"
    elif bound and fitting >= demand.cards:
        found = f"devices of {format_count(len(bound), 'card')} must be reused"
    largest = max((size.memory for size in cards.sizes), default=0)
    parts = [*[found] * bool(found), *map(_group_text, groups.values())]
    if not demand.is_share and 0 < largest < need.per_card.memory:
        parts.append(
            f"no card has more than {format_count(largest, 'block')}, and whole cards have all "
            "their memory"
        )
    return f"no card fits {_format(demand)}: {'; '.join(parts)}"


_FITS = Shortfall("fits")


def _format(demand: Demand) -> str:
    """Format a request; its memory only if it requests some."""
    memory = f" and {format_count(demand.memory, 'memory block')}" if demand.memory else ""
    over = f" over {demand.split} cards" if demand.split > 1 else ""
    return f"{format_count(demand.cores, 'core')}{memory}{over}"


def _group_text(cards: Sequence[tuple[str, Shortfall]]) -> str:
    """Return text why some cards do not fit, all for one reason; a single card by its name."""
    name, lack = cards[0]
    if len(cards) == 1:
        return f"{name}: {lack}"
    free = {each.free for _, each in cards if each.free is not None}
    most = lack._replace(free=max(free, default=None))
    return f"{len(cards)} cards: {'at most ' * (len(free) > 1)}{most}"
