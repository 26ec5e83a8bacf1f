"""Placing on the ledger: from what the kubelet offers and what is held, to device IDs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from agent.allocator.free_places import offered_by_card, within_reach
from agent.allocator.model.ledger import ContainerRef, Ledger
from agent.allocator.model.pod_view import PodId
from agent.allocator.model.tickets import Ticket, TicketBook
from agent.allocator.placement_request import NO_GUIDANCE, Beliefs, CallPlacement, Guidance
from agent.errors import PlacementError
from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind, Demand, PodDemand
from contract.resource import Resource, count_of
from placement import errors
from placement.scoring import Policy
from placement.search import Capacity, Plan, Step, make_plan
from placement.topology import Links

_NO_BELIEFS = Beliefs()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a container is placed.

    Attributes:
        cards: its cards, by index.
        tickets: its places of the resource asked for.
        plan: the places meant for its pod's containers from here on.
        replaced: the cards that a scheduler chose, where others were taken.
    """

    cards: tuple[str, ...]
    tickets: list[Ticket]
    plan: Plan
    replaced: tuple[str, ...] = ()


def place_container(  # noqa: PLR0913 -- one call of the kubelet, spelled out
    ref: ContainerRef,
    container: ContainerDemand,
    pod: PodDemand,
    resource: Resource,
    *,
    book: TicketBook,
    ledger: Ledger,
    links: Links,
    unhealthy: Callable[[str], str],
    policy: Policy,
    available: AbstractSet[str],
    must: Sequence[Ticket] = (),
    plan: Plan | None = None,
    beliefs: Beliefs = _NO_BELIEFS,
    guidance: Guidance = NO_GUIDANCE,
    sure: bool = True,
) -> Placement:
    """Choose cards and places for one container, so that its pod's later ones find some too.

    Args:
        ref: whose places these will be.
        container: what it asks for.
        pod: its whole pod, to look ahead.
        resource: which resource is asked for.
        book: the node's tickets.
        ledger: who holds what.
        links: how the node's cards are connected.
        unhealthy: why a card, by UUID, may not be given out; empty when it may.
        policy: which card a share prefers.
        available: the IDs the kubelet offers; a place outside them is never chosen.
        must: places the kubelet hands on (``must_include``).
        plan: what was planned when an earlier call of its pod was answered.
        beliefs: what may be taken although the ledger does not say so.
        guidance: what others want.
        sure: it is known that this pod is asking; one that is only guessed is not refused
            for a container that comes later.

    Raises:
        PlacementError: nothing fits; names the container that cannot be placed.
    """
    offered = within_reach(ref.pod, resource, available, ledger)
    offer = offered_by_card(resource, offered, book, ledger)
    call = CallPlacement(
        ref=ref,
        resource=resource,
        book=book,
        ledger=ledger,
        unhealthy=unhealthy,
        guidance=guidance,
        offer=offer,
        must=must,
    )
    try:
        step = call.step(container, plan)
        found = call.planned(step, plan)
        if found is None:
            steps = [step, *_steps_after(container, pod, call, sure=sure)]
            found = _find_plan(call, steps, beliefs, links=links, policy=policy, sure=sure)
    except errors.PlacementError as error:
        raise PlacementError(str(error)) from error
    cards = found[container.name].cards
    within = {card: book.among(resource, card, offered) for card in cards}
    tickets = pick(container.demand, resource, cards, free=within, must=must)
    first = resource.other in step.lacking or not count_of(container.demand, resource.other)
    replaced = step.chosen if first and step.chosen and set(step.chosen) != {*cards} else ()
    return Placement(cards, tickets, found, replaced)


def _steps_after(
    container: ContainerDemand, pod: PodDemand, call: CallPlacement, *, sure: bool
) -> list[Step]:
    """Return what is to be found for the containers after this one."""
    # By name: what it asks for may have been raised.
    at = next(at for at, each in enumerate(pod.containers) if each.name == container.name)
    steps: list[Step] = []
    for each in pod.containers[at + 1 :]:
        if call.lacking(each):
            try:
                steps.append(call.step(each))
            except errors.PlacementError as error:
                if sure:
                    raise errors.PlacementError(f"container {each.name}: {error}") from error
                break
    return steps


def _find_plan(  # noqa: PLR0913 -- as seat, whose second half this is
    call: CallPlacement,
    steps: Sequence[Step],
    beliefs: Beliefs,
    *,
    links: Links,
    policy: Policy,
    sure: bool,
) -> Plan:
    """Plan with all that is believed, then with less of it; first for the whole pod."""
    hidden = tuple(each for each in beliefs.hidden if each.id != call.pod)
    beliefs = replace(beliefs, hidden=hidden)
    inits = any(each.container.kind is ContainerKind.INIT for each in steps)
    refusal: errors.PlacementError | None = None
    for together in (steps, steps[:1]):
        tried: list[tuple[list[Capacity], list[Step]]] = []
        for less in beliefs.fewer():
            capacities = call.capacities(less, alone=len(together) == 1)
            given = call.limited(together, less)
            if (capacities, given) in tried:
                continue
            tried.append((capacities, given))
            for certain in (True, False):
                try:
                    found = make_plan(
                        given, capacities, links=links, policy=policy, certain=certain
                    )
                except errors.PlacementError as error:
                    refusal = error if certain else refusal
                else:
                    if found is not None:
                        return found
                    refusal = None  # given up, which says nothing
                if not inits and not any(room.left for room in capacities):
                    break
        if refusal is not None and (sure or len(steps) == 1):
            raise refusal
    raise refusal or errors.PlacementError("no place was found")


def at_least(container: ContainerDemand, book: TicketBook) -> ContainerDemand:
    """Work out what a container must ask for of which only the memory is known.

    More memory than any card has is asked for with whole cards.
    """
    largest = max((book.places(Resource.MEMORY, card) for card in book.inventory.cards), default=0)
    memory = container.demand.memory
    if memory <= largest or not container.demand.is_share or not largest:
        return container
    cores = CORES_PER_CARD * -(-memory // largest)
    return replace(container, demand=Demand(cores, memory))


def planned_for(pod: PodId, plan: Plan, ledger: Ledger) -> Mapping[Resource, Mapping[str, int]]:
    """Count the places by card that are planned for a pod and not given to it yet."""
    counts: dict[Resource, Counter[str]] = {each: Counter() for each in Resource}
    for name, planned in plan.items():
        for resource, fresh in planned.fresh.items():
            if ledger.holding(ContainerRef(pod, name), resource) is None:
                counts[resource].update(fresh)
    return counts


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
