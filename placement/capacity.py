"""Whether a container fits on a card, and in words why it does not."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from contract.demand import CORES_PER_CARD, Demand
from contract.inventory import Amounts
from contract.resource import Resource
from placement.errors import NoPlacement
from placement.topology import Links

HOW = {"nvlink": "connected by NVLink", "numa": "of one NUMA node"}
"""What cards have in common that hold together, by the value of ``gpu-link``."""


@dataclass(frozen=True, eq=False)
class CardSet:
    """The cards of a node as a pod finds them, but for what is free; sequences are by position.

    One object for alike nodes makes that a search is remembered for all of them.

    Attributes:
        names: of the cards, for messages.
        sizes: what each has.
        links: how they are connected.
        unhealthy: why each is given to no new container; empty where it is healthy.
        excluded: which wish of the pod's author rules it out; empty where none does.
    """

    names: Sequence[str]
    sizes: Sequence[Amounts]
    links: Links
    unhealthy: Sequence[str]
    excluded: Sequence[str]

    @cached_property
    def usable(self) -> tuple[int, ...]:
        """The cards that are healthy and that no wish rules out."""
        return tuple(at for at in self.healthy if not self.excluded[at])

    @cached_property
    def healthy(self) -> tuple[int, ...]:
        """The healthy cards."""
        return tuple(at for at, reason in enumerate(self.unhealthy) if not reason)

    def fitting(self, free: Sequence[Amounts], wanted: Amounts) -> list[int]:
        """Return the usable cards of which enough is free."""
        cores, memory = wanted
        return [at for at in self.usable if free[at][0] >= cores and free[at][1] >= memory]


class CardNeed(NamedTuple):
    """What a container needs of its cards.

    Attributes:
        demand: what it asks for itself.
        per_card: what each of its cards must have free.
    """

    demand: Demand
    per_card: Amounts


def need_of(demand: Demand) -> CardNeed:
    """Work out what a container needs of each of its cards.

    Raises:
        NoPlacement: it asks for what the webhook refuses.
    """
    if not demand.cards or (not demand.is_share and demand.cores % CORES_PER_CARD):
        raise NoPlacement(  # a pod created while there was no webhook to refuse it
            f"{demand.cores} cores and {demand.memory} memory blocks fit no card: a share of one "
            f"card is 1 to 99 cores, whole cards are a multiple of {CORES_PER_CARD}"
        )
    # A card may get one block more than another: Demand.per_card gives it to the first.
    per_card = Amounts(min(demand.cores, CORES_PER_CARD), demand.most_per_card(Resource.MEMORY))
    return CardNeed(demand, per_card)


class Shortfall(NamedTuple):
    """Why a card does not fit.

    Attributes:
        reason: such as ``of 60 cores free``, or ``unhealthy (Xid 79)``.
        free: how much is free where that is too little; ``None`` for other reasons.
    """

    reason: str
    free: int | None = None

    def __str__(self) -> str:
        """Write it for one card."""
        return self.reason if self.free is None else f"{self.free} {self.reason}"


def shortfall(  # noqa: PLR0913 -- what a card is asked, by keyword
    need: CardNeed,
    cards: CardSet,
    at: int,
    free: Amounts,
    *,
    fixed: Sequence[int] = (),
    must: Sequence[int] = (),
) -> Shortfall | None:
    """Return why a card does not fit; ``None`` when it does."""
    wanted, reason = need.per_card, ""
    if cards.unhealthy[at]:
        reason = f"unhealthy ({cards.unhealthy[at]})"
    elif cards.excluded[at]:
        reason = f"excluded by {cards.excluded[at]}"
    elif fixed and at not in fixed:
        reason = "the container's other resource is on another card"
    elif must and need.demand.is_share and at not in must:
        reason = "the kubelet hands on places of another card"
    elif free.cores < wanted.cores:
        return Shortfall(f"of {wanted.cores} cores free", free.cores)
    elif free.memory < wanted.memory:
        return Shortfall(f"of {wanted.memory} memory blocks free", free.memory)
    return Shortfall(reason) if reason else None


def explain(  # noqa: PLR0913 -- what cards are asked, by keyword
    need: CardNeed,
    cards: CardSet,
    free: Sequence[Amounts],
    *,
    fixed: Sequence[int] = (),
    must: Sequence[int] = (),
    link: str = "",
) -> str:
    """Report that no card fits, and why: cards of one reason together, one alone by its UUID.

    *link* is what the cards must have in common: where enough fit, that is what they lack.
    """
    demand, bound = need.demand, {*fixed, *must}
    groups: dict[str, list[tuple[str, Shortfall]]] = {}
    fitting = 0
    for at, row in enumerate(free):
        lack = shortfall(need, cards, at, row, fixed=fixed, must=must) or _FITS
        fitting += lack is _FITS
        if not bound or at in bound:
            groups.setdefault(lack.reason, []).append((cards.names[at], lack))
    found = f"{fitting} of {demand.cards} cards found"
    if link and fitting >= demand.cards > 1:
        found = f"no {demand.cards} of the {fitting} that do are {HOW[link]} (gpu-link: {link})"
    elif bound and fitting >= demand.cards:
        found = f"places of {len(bound)} cards must be taken"
    largest = max((size.memory for size in cards.sizes), default=0)
    asked = f"{demand.cores} cores and {demand.memory} memory blocks"
    parts = [f"no card fits {asked}: {found}", *map(_in_words, groups.values())]
    if not demand.is_share and 0 < largest < need.per_card.memory:
        parts.append(f"no card has more than {largest} blocks, and whole cards have all of theirs")
    return "; ".join(parts)


_FITS = Shortfall("fits")


def _in_words(cards: Sequence[tuple[str, Shortfall]]) -> str:
    """Write why some cards do not fit, all for one reason."""
    name, lack = cards[0]
    if len(cards) == 1:
        return f"{name}: {lack}"
    free = {each.free for _, each in cards if each.free is not None}
    most = lack._replace(free=max(free, default=None))
    return f"{len(cards)} cards: {'at most ' * (len(free) > 1)}{most}"
