"""Where a container goes: a pure choice of cards, then of places on them.

A share goes to the fullest card that fits (binpack, so that whole cards stay whole) or to
the emptiest (spread); whole cards are taken in order of their index.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agent.errors import PlacementError
from agent.tickets import Resource, Ticket, count_of
from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind, Demand, PodDemand


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
        healthy: whether it may be given out.
    """

    uuid: str
    index: int
    free: Mapping[Resource, int]
    healthy: bool = True


@dataclass(frozen=True, slots=True)
class Need:
    """What a container needs of its cards.

    Attributes:
        demand: what it asks for itself.
        per_card: cores and memory each of its cards must have free; for a share with what
            later containers of its pod will be made to take there (see :func:`need_of`).
    """

    demand: Demand
    per_card: Mapping[Resource, int]


def need_of(pod: PodDemand, container: ContainerDemand) -> Need:
    """Work out what *container* needs of its card, looking ahead over its pod.

    The kubelet hands the places of an ordinary init container to the containers after it
    (fact K7), so these are bound to its card: the card must fit what they ask beyond that.

    Raises:
        PlacementError: *container* asks for what the webhook refuses.
    """
    demand = container.demand
    if not demand.cards or (not demand.is_share and demand.cores % CORES_PER_CARD):
        raise PlacementError(  # a pod created while there was no webhook to refuse it
            f"{demand.cores} cores and {demand.memory} memory blocks fit no card: a share of one "
            f"card is 1 to 99 cores, whole cards are a multiple of {CORES_PER_CARD}"
        )
    if not demand.is_share:
        # A card may get one block more than another: memory_per_card gives it to the first.
        return Need(
            demand,
            {Resource.CORE: CORES_PER_CARD, Resource.MEMORY: max(demand.memory_per_card())},
        )
    need = {resource: count_of(demand, resource) for resource in Resource}
    if container.kind is ContainerKind.INIT:
        reusable = dict(need)
        after = pod.containers[pod.containers.index(container) + 1 :]
        for later in after:
            handed = {
                resource: min(reusable[resource], count_of(later.demand, resource))
                for resource in Resource
            }
            if not any(handed.values()):
                continue
            if not later.demand.is_share:  # its cards are whole: this must be one of them
                whole = {
                    Resource.CORE: CORES_PER_CARD,
                    Resource.MEMORY: max(later.demand.memory_per_card(), default=0),
                }
                need = {resource: max(need[resource], whole[resource]) for resource in Resource}
                break
            for resource in Resource:
                grown = count_of(later.demand, resource) - handed[resource]
                need[resource] += grown
                if later.kind is ContainerKind.INIT:
                    reusable[resource] += grown
                else:
                    reusable[resource] -= handed[resource]
    return Need(demand, need)


def place(
    need: Need,
    states: Sequence[CardState],
    *,
    policy: Policy = Policy.BINPACK,
    fixed: Sequence[str] = (),
    must: Sequence[str] = (),
) -> tuple[str, ...]:
    """Choose the cards of one container.

    Args:
        need: what it needs.
        states: all cards, in any order.
        policy: which card a share prefers.
        fixed: cards it is bound to already, by its other resource or by a plan.
        must: cards of which it must take places (``must_include``).

    Returns:
        Card UUIDs by index.

    Raises:
        PlacementError: nothing fits; says for each card why not.
    """
    by_index = sorted(states, key=lambda state: state.index)
    demand = need.demand
    reasons = {state.uuid: _why_not(need, state, fixed=fixed, must=must) for state in by_index}
    fitting = [state for state in by_index if not reasons[state.uuid]]
    bound = {*fixed, *must}
    if demand.is_share:
        sign = 1 if policy is Policy.BINPACK else -1
        fitting.sort(
            key=lambda state: (
                sign * state.free[Resource.CORE],
                sign * state.free[Resource.MEMORY],
                state.index,
            )
        )
    else:
        fitting.sort(key=lambda state: (state.uuid not in bound, state.index))
    chosen = [state.uuid for state in fitting[: demand.cards]]
    if len(chosen) < demand.cards or not bound <= set(chosen):
        raise PlacementError(_refuse(need, by_index, reasons, len(fitting), bound))
    return tuple(state.uuid for state in by_index if state.uuid in chosen)


def _why_not(need: Need, state: CardState, *, fixed: Sequence[str], must: Sequence[str]) -> str:
    """Say why a card does not fit; empty when it does."""
    if not state.healthy:
        return "unhealthy"
    if fixed and state.uuid not in fixed:
        return "the container's other resource is on another card"
    if must and need.demand.is_share and state.uuid not in must:
        return "the kubelet hands on places of another card"
    wanted = need.per_card
    for resource, unit in ((Resource.CORE, "cores"), (Resource.MEMORY, "memory blocks")):
        if state.free[resource] < wanted[resource]:
            return f"{state.free[resource]} of {wanted[resource]} {unit} free"
    return ""


def _refuse(
    need: Need,
    states: Sequence[CardState],
    reasons: Mapping[str, str],
    fitting: int,
    bound: set[str],
) -> str:
    demand = need.demand
    asked = f"{demand.cores} cores and {demand.memory} memory blocks"
    told = [state for state in states if not bound or state.uuid in bound]
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
