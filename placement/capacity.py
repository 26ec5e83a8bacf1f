"""The free places of the cards, and whether a container fits on them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from contract.demand import CORES_PER_CARD, Demand
from contract.resource import Resource
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
        per_card: cores and memory each of its cards must have free.
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
    # A card may get one block more than another: memory_per_card gives it to the first.
    cores = demand.cores if demand.is_share else CORES_PER_CARD
    return Need(demand, {Resource.CORE: cores, Resource.MEMORY: demand.most_memory})


def fitting_cards(
    need: Need, states: Iterable[CardState], *, fixed: Sequence[str] = (), must: Sequence[str] = ()
) -> list[CardState]:
    """Return the cards that fit, by index."""
    fitting = [state for state in states if not why_not(need, state, fixed=fixed, must=must)]
    return sorted(fitting, key=lambda state: state.index)


def whole_cards(states: Iterable[CardState]) -> frozenset[str]:
    """Return the cards that somebody could have whole."""
    return frozenset(state.uuid for state in states if state.whole and not state.unhealthy)


def why_not(
    need: Need, state: CardState, *, fixed: Sequence[str] = (), must: Sequence[str] = ()
) -> str:
    """Return why a card does not fit; empty when it does."""
    if state.unhealthy:
        return f"unhealthy ({state.unhealthy})"
    if state.excluded:
        return f"excluded by {state.excluded}"
    if fixed and state.uuid not in fixed:
        return "the container's other resource is on another card"
    if must and need.demand.is_share and state.uuid not in must:
        return "the kubelet hands on places of another card"
    wanted = need.per_card
    for resource, unit in ((Resource.CORE, "cores"), (Resource.MEMORY, "memory blocks")):
        if state.free[resource] < wanted[resource]:
            return f"{state.free[resource]} of {wanted[resource]} {unit} free"
    return ""


def explain(
    need: Need, states: Iterable[CardState], *, fixed: Sequence[str] = (), must: Sequence[str] = ()
) -> str:
    """Report that no card fits, and for each of those in question why not."""
    demand, bound = need.demand, {*fixed, *must}
    by_index = sorted(states, key=lambda state: state.index)
    reasons = {each.uuid: why_not(need, each, fixed=fixed, must=must) for each in by_index}
    fitting = sum(not reason for reason in reasons.values())
    asked = f"{demand.cores} cores and {demand.memory} memory blocks"
    told = [state for state in by_index if not bound or state.uuid in bound]
    each = "; ".join(f"{state.uuid}: {reasons[state.uuid] or 'fits'}" for state in told)
    if bound and fitting >= demand.cards:
        return f"no card fits {asked}: places of {len(bound)} cards must be taken; {each}"
    return f"no card fits {asked}: {fitting} of {demand.cards} cards found; {each}"
