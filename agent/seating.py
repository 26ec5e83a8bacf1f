"""Placing on the ledger: from what the kubelet offers and what is held, to device IDs."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from agent.errors import PlacementError
from agent.free import free_places, left_over, offered_by_card, within_reach
from agent.ledger import Claim, Ledger
from agent.links import Links
from agent.place import CardState, Need, Policy, need_of, pick, why_not
from agent.plan import Plan, Room, Task, make_plan
from agent.podview import PodId, PodView
from agent.tickets import Resource, Ticket, TicketBook, count_of, per_card
from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind, Demand, PodDemand
from contract.wishes import NO_WISHES, Wishes

_NONE: Mapping[Resource, Mapping[str, int]] = {}


@dataclass(frozen=True, slots=True)
class Guidance:
    """What others want of a placement.

    Attributes:
        wishes: the pod's author's.
        chosen: card indices that a scheduler chose, by place in ``spec.containers``.
        strict: whether a choice that does not fit is refused instead of replaced.
    """

    wishes: Wishes = NO_WISHES
    chosen: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Seating:
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


def seat(  # noqa: PLR0913 -- one call of the kubelet, spelled out
    claim: Claim,
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
    hidden: Iterable[PodView] = (),
    reserved: Mapping[Resource, Mapping[str, int]] = _NONE,
    guidance: Guidance = Guidance(),
    sure: bool = True,
) -> Seating:
    """Choose cards and places for one container, so that its pod's later ones find some too.

    Args:
        claim: whose places these will be.
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
        hidden: pods that the kubelet may book more for than its record shows.
        reserved: places by card that are planned for another pod.
        guidance: what others want.
        sure: it is known that this pod is asking; one that is only guessed is not refused
            for a container that comes later.

    Raises:
        PlacementError: nothing fits; names the container that cannot be placed.
    """
    offered = within_reach(claim.pod, resource, available, ledger)
    offer = offered_by_card(resource, offered, book, ledger)
    chooser = _Chooser(
        claim=claim,
        resource=resource,
        book=book,
        ledger=ledger,
        unhealthy=unhealthy,
        guidance=guidance,
        offer=offer,
        must=must,
    )
    task = chooser.task(container, plan)
    found = chooser.planned(task, plan)
    if found is None:
        later = _tasks_after(container, pod, chooser, sure=sure)
        found = _find_plan(
            chooser, [task, *later], hidden, reserved, links=links, policy=policy, sure=sure
        )
    cards = found[container.name].cards
    within = {card: book.among(resource, card, offered) for card in cards}
    tickets = pick(container.demand, resource, cards, free=within, must=must)
    first = resource.other in task.lacking or not count_of(container.demand, resource.other)
    replaced = task.chosen if first and task.chosen and set(task.chosen) != {*cards} else ()
    return Seating(cards, tickets, found, replaced)


def _tasks_after(
    container: ContainerDemand, pod: PodDemand, chooser: "_Chooser", *, sure: bool
) -> list[Task]:
    """Say what is to be found for the containers after this one."""
    # By name: what it asks for may have been raised.
    at = next(at for at, each in enumerate(pod.containers) if each.name == container.name)
    tasks: list[Task] = []
    for each in pod.containers[at + 1 :]:
        if chooser.lacking(each):
            try:
                tasks.append(chooser.task(each))
            except PlacementError as error:
                if sure:
                    raise PlacementError(f"container {each.name}: {error}") from error
                break
    return tasks


def _find_plan(  # noqa: PLR0913 -- as seat, whose second half this is
    chooser: "_Chooser",
    tasks: Sequence[Task],
    hidden: Iterable[PodView],
    reserved: Mapping[Resource, Mapping[str, int]],
    *,
    links: Links,
    policy: Policy,
    sure: bool,
) -> Plan:
    """Plan with all that is known, then without what is only said; first for the whole pod."""
    hidden = tuple(each for each in hidden if each.id != chooser.pod)
    inits = any(each.container.kind is ContainerKind.INIT for each in tasks)
    refusal: PlacementError | None = None
    for together in (tasks, tasks[:1]):
        # A record may be stale, and a plan may never be carried out: nobody is refused for one.
        for views, held in ((hidden, reserved), ((), _NONE)):
            rooms = chooser.rooms(views, held, alone=len(together) == 1)
            given = chooser.limited(together, held)
            for certain in (True, False):
                try:
                    found = make_plan(given, rooms, links=links, policy=policy, certain=certain)
                except PlacementError as error:
                    refusal = error if certain else refusal
                else:
                    if found is not None:
                        return found
                    refusal = None  # given up, which says nothing
                if not inits and not any(room.left for room in rooms):
                    break
            if not views and not held:
                break
        if refusal is not None and (sure or len(tasks) == 1):
            raise refusal
    raise refusal or PlacementError("no place was found")


class _Chooser:
    """What one call is decided on."""

    def __init__(  # noqa: PLR0913 -- as seat, whose state this is
        self,
        *,
        claim: Claim,
        resource: Resource,
        book: TicketBook,
        ledger: Ledger,
        unhealthy: Callable[[str], str],
        guidance: Guidance,
        offer: Mapping[str, int],
        must: Sequence[Ticket],
    ) -> None:
        self.pod = claim.pod
        self._claim = claim
        self._resource = resource
        self._book = book
        self._ledger = ledger
        self._guidance = guidance
        self._offer = offer
        self._must = must
        self._barred = {
            card.uuid: (
                unhealthy(card.uuid),
                guidance.wishes.excludes(model=card.model, uuid=card.uuid),
            )
            for card in book.inventory.cards
        }

    def lacking(self, container: ContainerDemand) -> frozenset[Resource]:
        """Give what a container asks for and does not hold."""
        claim = Claim(self._claim.pod, container.name)
        return frozenset(
            each
            for each in Resource
            if count_of(container.demand, each) and self._ledger.holding(claim, each) is None
        )

    def task(self, container: ContainerDemand, plan: Plan | None = None) -> Task:
        """Say what is to be found for a container; the one that is asking always asks."""
        asking = container.name == self._claim.container
        lacking = self.lacking(container) | (frozenset({self._resource}) if asking else frozenset())
        need = need_of(container.demand)
        held = {
            each: holding
            for each in Resource
            if each not in lacking
            and (holding := self._ledger.holding(Claim(self._claim.pod, container.name), each))
        }
        # Given out already: it need not fit again, and the rest must follow it.
        need = Need(need.demand, {**need.per_card, **dict.fromkeys(held, 0)})
        fixed = self._book.in_order(
            ticket.card
            for each, holding in held.items()
            for ticket in self._book.read(each, holding.ids)
        )
        planned = plan.get(container.name) if plan else None
        if planned is not None and fixed and set(fixed) <= set(planned.cards):
            fixed = planned.cards
        return Task(
            container,
            need,
            lacking,
            fixed,
            self._book.in_order(ticket.card for ticket in self._must) if asking else (),
            (self._resource, self._offer) if asking else None,
            self._chosen(container),
            self._guidance.strict,
        )

    def _chosen(self, container: ContainerDemand) -> tuple[str, ...]:
        """Give the cards that a scheduler chose; one that is not there by its number."""
        if container.kind is not ContainerKind.MAIN:
            return ()
        by_index = {card.index: card.uuid for card in self._book.inventory.cards}
        indices = self._guidance.chosen.get(container.index, ())
        return tuple(by_index.get(each, f"card {each}") for each in indices)

    def planned(self, task: Task, plan: Plan | None) -> Plan | None:
        """Give the plan, if it has a place for the container and the kubelet offers that."""
        planned = plan.get(task.container.name) if plan else None
        if plan is None or planned is None:
            return None
        claim, other = Claim(self.pod, task.container.name), self._resource.other
        if self._ledger.holding(claim, self._resource) is not None:
            return None  # a kubelet that died serves it again: what was planned is over
        cards, bound = planned.cards, {*task.fixed, *task.must}
        if other in task.lacking:
            bound |= left_over(self.pod, other, self._book, self._ledger).keys()
        need = Need(task.need.demand, {**task.need.per_card, self._resource.other: 0})
        states = {state.uuid: state for state in self._states({})}
        fits = all(card in states and not why_not(need, states[card]) for card in cards)
        return plan if fits and bound <= {*cards} else None

    def limited(
        self, tasks: Sequence[Task], reserved: Mapping[Resource, Mapping[str, int]]
    ) -> list[Task]:
        """Leave out of the kubelet's offer what is planned for another pod."""
        taken = reserved.get(self._resource, {})
        if not taken:
            return list(tasks)
        offer = {card: max(free - taken.get(card, 0), 0) for card, free in self._offer.items()}
        return [replace(tasks[0], offer=(self._resource, offer)), *tasks[1:]]

    def rooms(
        self,
        hidden: Iterable[PodView],
        reserved: Mapping[Resource, Mapping[str, int]],
        *,
        alone: bool,
    ) -> list[Room]:
        """Give the cards as the pod finds them.

        Args:
            hidden: pods by whose records places may be taken.
            reserved: places that are planned for another pod.
            alone: only the container that is asking is to be placed: of the resource that it
                asks for, what the kubelet offers is all that counts.
        """
        free: dict[Resource, Mapping[str, int]] = {}
        left: dict[Resource, Mapping[str, int]] = {}
        for each in Resource:
            asked = each is self._resource
            if asked and alone:
                free[each] = self._offer
            else:
                found = free_places(self._ledger, self._book, each, hidden=hidden)
                taken = reserved.get(each, {})
                free[each] = {card: max(n - taken.get(card, 0), 0) for card, n in found.items()}
            # Of what is asked for the kubelet has said what it hands on.
            left[each] = (
                per_card(self._must)
                if asked
                else left_over(self._claim.pod, each, self._book, self._ledger)
            )
        return [
            Room(
                state,
                {each: left[each][state.uuid] for each in Resource if left[each].get(state.uuid)},
            )
            for state in self._states(free)
        ]

    def _states(self, free: Mapping[Resource, Mapping[str, int]]) -> list[CardState]:
        """Give the cards with what is *free*, or offered where that is not told."""
        return [
            CardState(
                card.uuid,
                card.index,
                {each: free.get(each, self._offer).get(card.uuid, 0) for each in Resource},
                {each: self._book.places(each, card) for each in Resource},
                *self._barred[card.uuid],
            )
            for card in self._book.inventory.cards
        ]


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
            if ledger.holding(Claim(pod, name), resource) is None:
                counts[resource].update(fresh)
    return counts
