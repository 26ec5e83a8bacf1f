"""A whole pod at once: places for all its containers, or the one that has none. Pure.

The containers are gone through in the kubelet's order of admission. What an ordinary init
container took is handed on to those after it (fact K7); sidecars and containers keep theirs.
Each is tried where it would be placed if it were alone, then elsewhere, so that the first
plan found is also the one that placing them one by one prefers.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import groupby, repeat

from contract.demand import ContainerDemand
from contract.resource import RESOURCES, Resource, count_of
from contract.reusable import serve_on_cards
from placement.capacity import CardState, Need, explain, fitting_cards
from placement.errors import NoPlacement
from placement.scoring import Policy, best_whole, rank_for_share
from placement.topology import Links

_DEEPEST = 800
"""Containers of a pod; each is a call within a call, of which Python makes a thousand."""

_MOST_TRIES = 500
"""Placings tried before a search is given up; a pod of few containers needs few."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """One card as the containers of a pod find it.

    Attributes:
        card: what of it is free for anybody.
        left: places by resource that ordinary init containers of the pod have left over.
    """

    card: CardState
    left: Mapping[Resource, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """One container to be placed.

    Attributes:
        container: which.
        need: what each of its cards must have; 0 of what it holds already.
        lacking: the resources that it does not hold yet.
        fixed: the cards it is bound to, by what it holds.
        must: cards of which it must take places, by the kubelet's word.
        offer: places by card that the kubelet offers for it, of one resource.
        chosen: cards that a scheduler chose for it, to be taken if they fit.
        strict: whether only those will do.
        link: what its cards must have in common, one of :data:`contract.wishes.LINKS`.
    """

    container: ContainerDemand
    need: Need
    lacking: frozenset[Resource] = frozenset(Resource)
    fixed: tuple[str, ...] = ()
    must: tuple[str, ...] = ()
    offer: tuple[Resource, Mapping[str, int]] | None = None
    chosen: tuple[str, ...] = ()
    strict: bool = False
    link: str = ""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The part of one container in a plan: its cards, and the places that it takes afresh."""

    cards: tuple[str, ...]
    fresh: Mapping[Resource, Mapping[str, int]]


Plan = Mapping[str, Assignment]
"""Container name -> what it gets."""


def make_plan(  # noqa: PLR0913 -- everything that a plan depends on, by keyword
    steps: Sequence[Step],
    capacities: Sequence[Capacity],
    *,
    links: Links,
    policy: Policy,
    guaranteed: bool = True,
    most_tries: int = _MOST_TRIES,
) -> Plan | None:
    """Place all containers.

    Args:
        steps: the containers in the kubelet's order.
        capacities: the cards, in any order.
        links: how they are connected.
        policy: which card a share prefers.
        guaranteed: the plan holds whichever places the kubelet hands on where it has a choice
            (K7); otherwise it is enough that it may hand on the right ones.
        most_tries: how many placings are tried.

    Returns:
        The plan, or ``None`` when the search was given up.

    Raises:
        NoPlacement: there is none; names the container that cannot be placed.
    """
    if len(steps) == 1 and most_tries > 0:
        alone = _place_share(steps[0], capacities, links, policy)
        if alone is not None:
            return {steps[0].container.name: alone}
    search = _Search(
        steps, capacities, links=links, policy=policy, guaranteed=guaranteed, tries=most_tries
    )
    return search.run()


def _place_share(
    step: Step, capacities: Sequence[Capacity], links: Links, policy: Policy
) -> Assignment | None:
    """Place a pod's only container as the search would, at half its cost, if it is a simple share.

    Most pods are one. ``None`` where it is none, or where no card fits: the search says why.
    """
    demand = step.container.demand
    if not demand.is_share or step.fixed or step.must or step.offer or step.chosen:
        return None
    if any(any(capacity.left.values()) for capacity in capacities if capacity.left):
        return None
    states = [capacity.card for capacity in capacities]
    fitting = fitting_cards(step.need, states)
    if not fitting:
        return None
    best = rank_for_share(step.need, fitting, states, links=links, policy=policy)[0]
    fresh = {resource: {best.uuid: count_of(demand, resource)} for resource in sorted(step.lacking)}
    if any(best.free[resource] < fresh[resource][best.uuid] for resource in fresh):
        return None
    return Assignment((best.uuid,), fresh)


_State = tuple[tuple[int, ...], ...]
"""Of every card, by index: what is free of each resource, then what is left over of each."""

_SLOT = {resource: slot for slot, resource in enumerate(RESOURCES)}
_LEFT = len(_SLOT)
"""From the slot of what is free to that of what is left over."""


class _GivenUpError(Exception):
    """Too many placings were tried."""


class _Search:
    def __init__(  # noqa: PLR0913 -- as make_plan, whose state this is
        self,
        steps: Sequence[Step],
        capacities: Sequence[Capacity],
        *,
        links: Links,
        policy: Policy,
        guaranteed: bool,
        tries: int,
    ) -> None:
        self._steps = steps
        self._capacities = sorted(capacities, key=lambda capacity: capacity.card.index)
        self._place = {capacity.card.uuid: place for place, capacity in enumerate(self._capacities)}
        self._links = links
        self._policy = policy
        self._guaranteed = guaranteed
        self._tries = tries
        # Cards in the same state are one as good as the other, unless one is spoken of by name.
        self._named = {
            uuid
            for step in steps
            for uuid in (*step.fixed, *step.must, *(step.chosen if step.strict else ()))
        }
        self._failed: set[tuple[int, tuple[object, ...]]] = set()
        self._furthest: tuple[int, str] = (-1, "")
        self._has_left = any(capacity.left for capacity in capacities)
        self._start: _State = tuple(
            (
                *map(capacity.card.free.__getitem__, RESOURCES),
                *map(capacity.left.get, RESOURCES, repeat(0)),
            )
            for capacity in self._capacities
        )

    def run(self) -> Plan | None:
        try:
            assignments = self._rest(0, self._start)
        except _GivenUpError:
            return None
        if assignments is None:
            raise NoPlacement(self._refusal())
        return {
            step.container.name: assignment
            for step, assignment in zip(self._steps, assignments, strict=True)
        }

    def _refusal(self) -> str:
        at, text = self._furthest
        if at == 0:
            return text
        before = ", ".join(step.container.name for step in self._steps[:at])
        what, colon, why = text.partition(": ")
        name = self._steps[at].container.name
        return f"{what} of container {name}, with {before} placed{colon}{why}"

    def _rest(self, at: int, state: _State) -> list[Assignment] | None:
        """Place the containers from *at* on; return ``None`` where it cannot be done."""
        if at == len(self._steps):
            return []
        if at > _DEEPEST:
            raise _GivenUpError
        if self._failed and (at, self._alike(state)) in self._failed:
            return None
        step = self._steps[at]
        states = self._states(step, state)
        bound = self._bound(step, state)
        for cards in self._ways(step, state, states, bound):
            self._tries -= 1
            if self._tries < 0:
                raise _GivenUpError
            taken = self._take(step, state, cards)
            if taken is None:
                continue
            after, fresh = taken
            rest = self._rest(at + 1, after)
            if rest is not None:
                return [Assignment(cards, fresh), *rest]
        if at > self._furthest[0]:
            self._furthest = (at, self._explain(step, state, states, bound))
        self._failed.add((at, self._alike(state)))
        return None

    def _explain(
        self, step: Step, state: _State, states: Sequence[CardState], bound: tuple[str, ...]
    ) -> str:
        """Return why one container cannot be placed."""
        if not (step.strict and step.chosen):
            return explain(step.need, states, fixed=step.fixed, must=bound, link=step.link)
        free = replace(step, chosen=(), strict=False)
        other = ", ".join(next(self._ways(free, state, states, bound), ())) or "no other"
        return (
            f"{explain(step.need, states, fixed=step.chosen)}; a scheduler chose "
            f"{', '.join(step.chosen)} by predicate-gpu-idx-{step.container.ordinal}, which is "
            f"followed strictly; {other} would fit"
        )

    def _alike(self, state: _State) -> tuple[object, ...]:
        """Return what is equal for states between which no container can tell."""
        return tuple(
            sorted(
                (
                    places,
                    bool(capacity.card.unhealthy or capacity.card.excluded),
                    capacity.card.uuid if capacity.card.uuid in self._named else "",
                )
                for places, capacity in zip(state, self._capacities, strict=True)
            )
        )

    def _states(self, step: Step, state: _State) -> list[CardState]:
        """Return the cards as *step* finds them."""
        if state is self._start and step.offer is None and not self._has_left:
            return [capacity.card for capacity in self._capacities]
        offered, offer = step.offer or (None, {})
        return [
            CardState(
                capacity.card.uuid,
                capacity.card.index,
                {
                    each: offer.get(capacity.card.uuid, 0)
                    if each is offered
                    else places[slot] + places[slot + _LEFT]
                    for each, slot in _SLOT.items()
                },
                capacity.card.places,
                capacity.card.unhealthy,
                capacity.card.excluded,
            )
            for places, capacity in zip(state, self._capacities, strict=True)
        ]

    def _bound(self, step: Step, state: _State) -> tuple[str, ...]:
        """Return the cards of which *step* will be made to take places."""
        if not step.must and not any(any(places[_LEFT:]) for places in state):
            return ()
        bound = tuple(
            capacity.card.uuid
            for places, capacity in zip(state, self._capacities, strict=True)
            if capacity.card.uuid in step.must
            or any(
                places[_SLOT[each] + _LEFT] and count_of(step.container.demand, each)
                for each in step.lacking
            )
        )
        # Those of more cards than it can have may go either way.
        few = len(bound) <= step.need.demand.cards
        return bound if self._guaranteed or few else step.must

    def _ways(
        self, step: Step, state: _State, states: Sequence[CardState], bound: tuple[str, ...]
    ) -> Iterator[tuple[str, ...]]:
        """Return the ways to place one container, the best first, one of each kind."""
        found = self._sets(step, state, states, bound)
        return (each for each in found if self._links.hold_together(each, step.link))

    def _sets(
        self, step: Step, state: _State, states: Sequence[CardState], bound: tuple[str, ...]
    ) -> Iterator[tuple[str, ...]]:
        """Return these, whatever their cards have in common."""
        size = step.need.demand.cards
        fixed = step.fixed
        if len(fixed) < size:  # less memory than cards: the other cards are still to be chosen
            fixed, bound = (), tuple({*fixed, *bound})
        fitting = fitting_cards(step.need, states, fixed=fixed, must=bound)
        known = {state.uuid for state in fitting}
        needed = {*fixed, *bound}
        if len(fitting) < size or len(needed) > size or not needed <= known:
            return
        chosen = tuple(state.uuid for state in fitting if state.uuid in step.chosen)
        if len(chosen) == len(step.chosen) == size and needed <= {*chosen}:
            yield chosen
        if step.strict and step.chosen:
            return
        own = self._own(state) if self._policy is Policy.SPREAD else frozenset()
        kinds = {each.uuid: self._kind(each, state, own) for each in fitting}
        if step.need.demand.is_share:
            seen: set[object] = set()
            for each in rank_for_share(
                step.need,
                fitting,
                states,
                links=self._links,
                policy=self._policy,
                own=own,
            ):
                if kinds[each.uuid] not in seen:
                    seen.add(kinds[each.uuid])
                    yield (each.uuid,)
            return
        best = best_whole(
            step.need, fitting, states, links=self._links, must=needed, link=step.link
        )
        if not self._links.hold_together(best, step.link):
            return  # no set does
        yield best
        tried = sorted(kinds[each] for each in best)
        others = sorted((each for each in kinds if each not in needed), key=kinds.__getitem__)
        groups = [list(group) for _, group in groupby(others, key=kinds.__getitem__)]
        for more in _choose(groups, size - len(needed)):
            cards = {*needed, *more}
            if sorted(kinds[each] for each in cards) != tried:
                yield tuple(each for each in kinds if each in cards)

    def _kind(self, card: CardState, state: _State, own: AbstractSet[str]) -> tuple[int | str, ...]:
        """Return what is equal for cards that can be exchanged for each other."""
        places = state[self._place[card.uuid]]
        name = card.uuid if card.uuid in self._named else ""
        return (*places, *map(card.free.__getitem__, _SLOT), card.uuid in own, name)

    def _own(self, state: _State) -> AbstractSet[str]:
        """Return the cards that the pod's containers have been placed on."""
        found = zip(state, self._start, self._capacities, strict=True)
        return {capacity.card.uuid for now, then, capacity in found if now != then}

    def _take(
        self, step: Step, state: _State, cards: tuple[str, ...]
    ) -> tuple[_State, Mapping[Resource, Mapping[str, int]]] | None:
        """Place one container on *cards*: the cards after that, and what was taken afresh."""
        kind, demand = step.container.kind, step.container.demand
        rows = {uuid: list(state[self._place[uuid]]) for uuid in cards}
        fresh: dict[Resource, Mapping[str, int]] = {}
        for resource in sorted(step.lacking):
            slot = _SLOT[resource]
            reusable = [row[slot + _LEFT] for row in rows.values()]
            everywhere = sum(places[slot + _LEFT] for places in state)
            if min(count_of(demand, resource), everywhere) > sum(reusable):
                return None  # the kubelet will hand on places of other cards
            served = serve_on_cards(kind, demand.per_card(resource), reusable)
            # What the kubelet offers for this call counts, also where records say otherwise.
            offered = step.offer is not None and step.offer[0] is resource
            for row, each in zip(rows.values(), served, strict=True):
                if row[slot] < each.fresh and not offered:
                    return None
                row[slot] = max(row[slot] - each.fresh, 0)
                row[slot + _LEFT] = each.reusable
            fresh[resource] = {uuid: each.fresh for uuid, each in zip(cards, served, strict=True)}
        after = list(state)
        for uuid, row in rows.items():
            after[self._place[uuid]] = tuple(row)
        return tuple(after), fresh


def _choose(groups: Sequence[Sequence[str]], size: int) -> Iterator[tuple[str, ...]]:
    """Return every way to take *size* cards, of each group always the first ones."""
    if not groups:
        if size == 0:
            yield ()
        return
    first, *others = groups
    for count in range(min(size, len(first)), -1, -1):
        for more in _choose(others, size - count):
            yield (*first[:count], *more)
