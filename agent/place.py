"""Where a container goes: a pure choice of cards, then of places on them.

A share goes to the fullest card that fits (binpack, so that whole cards stay whole) or to
the emptiest (spread), by cores and memory both. Whole cards are the best-connected set; a
single one is taken where it breaks up least.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agent.allocator.model.tickets import Resource, Ticket, count_of
from agent.errors import PlacementError
from agent.links import Links
from contract.demand import CORES_PER_CARD, Demand


class Policy(StrEnum):
    """Which card a share prefers."""

    BINPACK = "binpack"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True)
class CardState:
    """What of one card is within reach of the container to be placed.

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
    """What a container needs of its cards.

    Attributes:
        demand: what it asks for itself.
        per_card: cores and memory each of its cards must have free.
    """

    demand: Demand
    per_card: Mapping[Resource, int]


def need_of(demand: Demand) -> Need:
    """Work out what a container needs of each of its cards.

    Raises:
        PlacementError: it asks for what the webhook refuses.
    """
    if not demand.cards or (not demand.is_share and demand.cores % CORES_PER_CARD):
        raise PlacementError(  # a pod created while there was no webhook to refuse it
            f"{demand.cores} cores and {demand.memory} memory blocks fit no card: a share of one "
            f"card is 1 to 99 cores, whole cards are a multiple of {CORES_PER_CARD}"
        )
    # A card may get one block more than another: memory_per_card gives it to the first.
    cores = demand.cores if demand.is_share else CORES_PER_CARD
    return Need(demand, {Resource.CORE: cores, Resource.MEMORY: max(demand.memory_per_card())})


def place(  # noqa: PLR0913 -- one container's place, spelled out
    need: Need,
    states: Sequence[CardState],
    *,
    links: Links,
    policy: Policy = Policy.BINPACK,
    fixed: Sequence[str] = (),
    must: Sequence[str] = (),
) -> tuple[str, ...]:
    """Choose the cards of one container.

    Args:
        need: what it needs.
        states: all cards, in any order.
        links: how they are connected.
        policy: which card a share prefers.
        fixed: cards it is bound to already, by its other resource or by a plan.
        must: cards of which it must take places (``must_include``).

    Returns:
        Card UUIDs by index.

    Raises:
        PlacementError: nothing fits; says for each card why not.
    """
    fitting = fitting_cards(need, states, fixed=fixed, must=must)
    bound = {*fixed, *must}
    known = {state.uuid for state in fitting}
    if len(fitting) < need.demand.cards or len(bound) > need.demand.cards or not bound <= known:
        raise PlacementError(explain(need, states, fixed=fixed, must=must))
    if need.demand.is_share:
        return (rank_for_share(need, fitting, states, links=links, policy=policy)[0].uuid,)
    return best_whole(need, fitting, states, links=links, must=bound)


def fitting_cards(
    need: Need, states: Iterable[CardState], *, fixed: Sequence[str] = (), must: Sequence[str] = ()
) -> list[CardState]:
    """Give the cards that fit, by index."""
    fitting = [state for state in states if not why_not(need, state, fixed=fixed, must=must)]
    return sorted(fitting, key=lambda state: state.index)


def rank_for_share(
    need: Need,
    fitting: Sequence[CardState],
    states: Iterable[CardState],
    *,
    links: Links,
    policy: Policy,
) -> list[CardState]:
    """Sort cards for a share, the one that it is placed on first.

    What counts is what would be left of a card, of cores and of memory, as parts of what it
    has. Binpack looks at the larger of the two: on a card with no cores left, memory is of no
    use to anybody. It begins a new card only when none that is begun fits, and then the one
    whose loss breaks up least.
    """
    free = whole_cards(states)

    def key(state: CardState) -> tuple[float, ...]:
        left = [
            (state.free[each] - need.per_card[each]) / max(state.places[each], 1)
            for each in Resource
        ]
        if policy is Policy.SPREAD:
            return (-min(left), -sum(left), state.index)
        away = links.taken_away(state.uuid, free) if state.whole else 0
        return (state.whole, max(left), sum(left), away, state.index)

    return sorted(fitting, key=key)


def best_whole(
    need: Need,
    fitting: Sequence[CardState],
    states: Iterable[CardState],
    *,
    links: Links,
    must: Iterable[str] = (),
) -> tuple[str, ...]:
    """Choose whole cards: the best-connected; among equals those with the least memory."""
    return links.best(
        need.demand.cards,
        [state.uuid for state in fitting],
        free=whole_cards(states),
        must=frozenset(must),
        cost={state.uuid: state.places[Resource.MEMORY] for state in fitting},
    )


def whole_cards(states: Iterable[CardState]) -> frozenset[str]:
    """Give the cards that somebody could have whole."""
    return frozenset(state.uuid for state in states if state.whole and not state.unhealthy)


def why_not(
    need: Need, state: CardState, *, fixed: Sequence[str] = (), must: Sequence[str] = ()
) -> str:
    """Say why a card does not fit; empty when it does."""
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
    """Say that no card fits, and for each of those in question why not."""
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


def pick(
    demand: Demand,
    resource: Resource,
    cards: Sequence[str],
    *,
    free: Mapping[str, Sequence[Ticket]],
    must: Sequence[Ticket] = (),
) -> list[Ticket]:
    """Choose the places on the chosen cards, lowest first.

    Args:
        demand: what the container asks for.
        resource: which resource is asked for.
        cards: the chosen cards, by index.
        free: places within reach, by card, ascending; they include *must*.
        must: places to be taken.

    Raises:
        PlacementError: the cards do not have enough places.
    """
    size = count_of(demand, resource)
    if resource is Resource.CORE and not demand.is_share:
        quota = dict.fromkeys(cards, CORES_PER_CARD)
    elif resource is Resource.CORE:
        quota = {cards[0]: size}
    else:
        quota = dict(zip(cards, demand.memory_per_card(), strict=True))
    chosen = list(must)
    taken = set(must)
    for card in cards:
        room = max(quota[card] - sum(ticket.card == card for ticket in must), 0)
        fresh = [ticket for ticket in free.get(card, ()) if ticket not in taken]
        chosen += fresh[:room]
    chosen = chosen[:size] if len(must) <= size else list(must)
    if len(chosen) < size:
        raise PlacementError(
            f"{size} places of {resource} were asked for on {', '.join(cards)}, "
            f"{len(chosen)} are free there"
        )
    return chosen
