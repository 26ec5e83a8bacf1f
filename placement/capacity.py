"""The free places of the cards, and whether a container fits on them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from contract.demand import CORES_PER_CARD, Demand
from contract.resource import RESOURCES, Resource, count_of
from placement.errors import NoPlacement


@dataclass(frozen=True, slots=True)
class CardState:
    """The places of one card that the container to be placed may take.

    Attributes:
        uuid: the card.
        index: its index, the last tie-break.
        free: free places by resource.
        places: all places by resource.
        unhealthy: why it may not be given out; empty when it may.
        excluded: which wish of the pod's author rules it out; empty when none does.
    """

    uuid: str
    index: int
    free: Mapping[Resource, int]
    places: Mapping[Resource, int]
    unhealthy: str = ""
    excluded: str = ""

    @property
    def whole(self) -> bool:
        """Whether nobody has anything of it."""
        return self.free[Resource.CORE] >= self.places[Resource.CORE]


@dataclass(frozen=True, slots=True)
class Need:
    """The places that a container needs of its cards.

    Attributes:
        demand: what it asks for itself.
        per_card: places that each of its cards must have free.
    """

    demand: Demand
    per_card: Mapping[Resource, int]


def need_of(demand: Demand) -> Need:
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
    return Need(demand, {each: demand.most_per_card(each) for each in RESOURCES})


def fitting_cards(
    need: Need, states: Iterable[CardState], *, fixed: Sequence[str] = (), must: Sequence[str] = ()
) -> list[CardState]:
    """Return the cards that fit, by index."""
    fitting = [state for state in states if not why_not(need, state, fixed=fixed, must=must)]
    return sorted(fitting, key=lambda state: state.index)


def whole_cards(states: Iterable[CardState]) -> frozenset[str]:
    """Return the cards that somebody could have whole."""
    return frozenset(state.uuid for state in states if state.whole and not state.unhealthy)


class Lack(NamedTuple):
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


def why_not(
    need: Need, state: CardState, *, fixed: Sequence[str] = (), must: Sequence[str] = ()
) -> Lack | None:
    """Return why a card does not fit; ``None`` when it does."""
    if state.unhealthy:
        return Lack(f"unhealthy ({state.unhealthy})")
    if state.excluded:
        return Lack(f"excluded by {state.excluded}")
    if fixed and state.uuid not in fixed:
        return Lack("the container's other resource is on another card")
    if must and need.demand.is_share and state.uuid not in must:
        return Lack("the kubelet hands on places of another card")
    wanted = need.per_card
    for resource in RESOURCES:
        if state.free[resource] < wanted[resource]:
            return Lack(f"of {wanted[resource]} {resource.unit} free", state.free[resource])
    return None


def explain(
    need: Need,
    states: Iterable[CardState],
    *,
    fixed: Sequence[str] = (),
    must: Sequence[str] = (),
    link: str = "",
) -> str:
    """Report that no card fits, and why: cards of one reason together, one alone by its UUID.

    *link* is what the cards must have in common: where enough fit, that is what they lack.
    """
    demand, bound = need.demand, {*fixed, *must}
    by_index = sorted(states, key=lambda state: state.index)
    lacks = [why_not(need, state, fixed=fixed, must=must) or _FITS for state in by_index]
    groups: dict[str, list[tuple[str, Lack]]] = {}
    for state, lack in zip(by_index, lacks, strict=True):
        if not bound or state.uuid in bound:
            groups.setdefault(lack.reason, []).append((state.uuid, lack))
    asked = " and ".join(f"{count_of(demand, each)} {each.unit}" for each in RESOURCES)
    fitting = lacks.count(_FITS)
    found = f"{fitting} of {demand.cards} cards found"
    if link and fitting >= demand.cards > 1:
        found = f"no {demand.cards} of the {fitting} that do are {HOW[link]} (gpu-link: {link})"
    elif bound and fitting >= demand.cards:
        found = f"places of {len(bound)} cards must be taken"
    largest = max((state.places[Resource.MEMORY] for state in by_index), default=0)
    told = [f"no card fits {asked}: {found}", *map(_tell, groups.values())]
    if not demand.is_share and 0 < largest < demand.most_per_card(Resource.MEMORY):
        told.append(f"no card has more than {largest} blocks, and whole cards have all of theirs")
    return "; ".join(told)


HOW = {"nvlink": "connected by NVLink", "numa": "of one NUMA node"}
"""What cards have in common that hold together, by the value of ``gpu-link``."""

_FITS = Lack("fits")


def _tell(cards: Sequence[tuple[str, Lack]]) -> str:
    """Write why some cards do not fit, all for one reason."""
    uuid, lack = cards[0]
    if len(cards) == 1:
        return f"{uuid}: {lack}"
    free = {each.free for _, each in cards if each.free is not None}
    most = lack._replace(free=max(free, default=None))
    return f"{len(cards)} cards: {'at most ' * (len(free) > 1)}{most}"
