"""A whole pod at once: cards for all its containers, or the one that has none. Pure.

The only search there is: whether a pod fits is where it fits, with the answer thrown away.

The containers are gone through in the kubelet's order of admission. What an ordinary init
container took is handed on to those after it (fact K7); sidecars and containers keep theirs.
Each is tried where it would be placed if it were alone, then elsewhere, so that the first
plan found is also the one that placing them one by one prefers.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, repeat
from typing import NamedTuple, TypeAlias

from contract.demand import ContainerDemand, ContainerKind
from contract.inventory import NOTHING, Amounts
from contract.resource import RESOURCES, Resource, count_of
from contract.reusable import serve_on_cards
from placement.capacity import CardNeed, CardSet, explain
from placement.errors import NoPlacement
from placement.scoring import Policy, best_whole, rank_for_share
from placement.topology import choices

_DEEPEST = 800
"""Containers of a pod; each is a call within a call, of which Python makes a thousand."""

MOST_TRIES = 500
"""Placings tried before a search is given up; a pod of few containers needs few."""

Rows: TypeAlias = Sequence[Amounts]
"""What is free of each card, by its position."""


@dataclass(frozen=True)
class ContainerStep:
    """One container to be placed.

    Attributes:
        container: which.
        need: what each of its cards must have; 0 of what it holds already.
        lacking: the resources that it does not hold yet.
        fixed: the cards it is bound to, by what it holds.
        must: cards of which it must take slots, by the kubelet's word.
        offer: of each card the slots that the kubelet offers for it, of one resource.
        chosen: names of cards that a scheduler chose for it, to be taken if they fit.
        strict: whether only those will do.
        link: what its cards must have in common, one of :data:`contract.wishes.LINKS`.
    """

    container: ContainerDemand
    need: CardNeed
    lacking: frozenset[Resource] = frozenset(Resource)
    fixed: tuple[int, ...] = ()
    must: tuple[int, ...] = ()
    offer: tuple[Resource, Sequence[int]] | None = None
    chosen: tuple[str, ...] = ()
    strict: bool = False
    link: str = ""

    @cached_property
    def requested(self) -> tuple[Amounts, ...]:
        """What it takes of each of its cards if nothing is handed on to it."""
        demand = self.container.demand
        parts = [
            demand.per_card(each) if each in self.lacking else repeat(0, demand.cards)
            for each in RESOURCES
        ]
        return tuple(map(Amounts, *parts))


class ContainerPlan(NamedTuple):
    """The part of one container in a plan of its pod.

    Attributes:
        cards: by position.
        fresh: what it takes of each of them, less what was handed on to it.
    """

    cards: tuple[int, ...]
    fresh: tuple[Amounts, ...] = ()


Plan: TypeAlias = Mapping[str, ContainerPlan]
"""Container name -> what it gets."""


def make_plan(  # noqa: PLR0913 -- everything that a plan depends on, by keyword
    steps: Sequence[ContainerStep],
    cards: CardSet,
    free: Rows,
    *,
    reusable: Rows = (),
    policy: Policy | None,
    guaranteed: bool = True,
    most_tries: int = MOST_TRIES,
) -> tuple[ContainerPlan, ...] | None:
    """Place all containers.

    Args:
        steps: the containers in the kubelet's order.
        cards: of the node.
        free: what of them is free for anybody.
        reusable: of each card, what ordinary init containers of the pod have left over.
        policy: which card a share prefers; ``None`` if it only matters whether there is a plan.
        guaranteed: the plan holds whichever slots the kubelet hands on where it has a choice
            (K7); otherwise it is enough that it may hand on the right ones.
        most_tries: how many placings are tried.

    Returns:
        What each container gets, or ``None`` when the search was given up.

    Raises:
        NoPlacement: there is no plan; names the container that cannot be placed.
    """
    search = _PodSearch(steps, cards, policy=policy, guaranteed=guaranteed, tries=most_tries)
    try:
        found = search.run(free, reusable if reusable and any(map(any, reusable)) else ())
    except _GivenUpError:
        return None
    if found is None:
        raise _NotPlacedError(search)
    return found


class _GivenUpError(Exception):
    """Too many placings were tried."""


class _NotPlacedError(NoPlacement):
    """There is no plan; the words are put together only where somebody reads them."""

    def __init__(self, search: "_PodSearch") -> None:
        super().__init__()
        self._search = search

    def __str__(self) -> str:
        return self._search.refusal()


class _FoundCards(NamedTuple):
    """What one container finds.

    Attributes:
        step: the container.
        free: what is free for anybody.
        reusable: what is left over; empty where nothing is.
        rows: what it may have of each card: free, left over, or offered.
        bound: the cards of which it will be made to take slots.
    """

    step: ContainerStep
    free: Rows
    reusable: Rows
    rows: Rows
    bound: tuple[int, ...]


_NONE: AbstractSet[int] = frozenset()


def bound_cards(step: ContainerStep, reusable: Rows) -> tuple[int, ...]:
    """Return the cards of which the kubelet will make a container take slots (K7).

    Device IDs name their card: what init containers have left on a card can be used on it only.
    """
    demand = step.container.demand
    asked = [each in step.lacking and count_of(demand, each) > 0 for each in RESOURCES]
    left = {
        at
        for at, (cores, memory) in enumerate(reusable)
        if (cores and asked[0]) or (memory and asked[1])
    }
    return tuple(sorted(left.union(step.must)))


class _PodSearch:
    """One search; what it tries last decides what it reports."""

    def __init__(
        self,
        steps: Sequence[ContainerStep],
        cards: CardSet,
        *,
        policy: Policy | None,
        guaranteed: bool,
        tries: int,
    ) -> None:
        self._steps = steps
        self._cards = cards
        self._policy = policy
        self._guaranteed = guaranteed
        self._tries = tries
        self._failed: set[tuple[int, object]] = set()
        self._furthest: tuple[int, _FoundCards] | None = None

    def run(self, free: Rows, reusable: Rows) -> tuple[ContainerPlan, ...] | None:
        """Place all containers; return ``None`` where it cannot be done."""
        self._start = free, reusable
        return self._place_from(0, free, reusable)

    def _place_from(self, at: int, free: Rows, reusable: Rows) -> tuple[ContainerPlan, ...] | None:
        """Place the containers from *at* on; return ``None`` where it cannot be done."""
        if at == len(self._steps):
            return ()
        if at > _DEEPEST:
            raise _GivenUpError
        if self._failed and (at, self._alike(free, reusable)) in self._failed:
            return None
        step = self._steps[at]
        if reusable or step.must or step.offer is not None:
            found = self._look(step, free, reusable)
        else:
            found = _FoundCards(step, free, reusable, free, ())
        is_last = at == len(self._steps) - 1
        for cards in self._ways(found):
            self._tries -= 1
            if self._tries < 0:
                raise _GivenUpError
            if is_last and not reusable:
                return (ContainerPlan(cards, step.requested),)
            after = take_slots(step, cards, free, reusable)
            if after is None:
                continue
            fresh, free_then, reusable_then = after
            rest = self._place_from(at + 1, free_then, reusable_then)
            if rest is not None:
                return (ContainerPlan(cards, fresh), *rest)
        if self._furthest is None or at > self._furthest[0]:
            self._furthest = (at, found)
        if at:
            self._failed.add((at, self._alike(free, reusable)))
        return None

    def refusal(self) -> str:
        """Return which container cannot be placed, and why."""
        if self._furthest is None:
            return ""
        at, found = self._furthest
        text = self._explain(found)
        if at == 0:
            return text
        before = ", ".join(step.container.name for step in self._steps[:at])
        what, colon, why = text.partition(": ")
        name = self._steps[at].container.name
        return f"{what} of container {name}, with {before} placed{colon}{why}"

    def _explain(self, found: _FoundCards) -> str:
        """Return why one container cannot be placed."""
        step = found.step
        if not (step.strict and step.chosen):
            return explain(
                step.need,
                self._cards,
                found.rows,
                fixed=step.fixed,
                must=found.bound,
                link=step.link,
            )
        freely = found._replace(step=replace(step, chosen=(), strict=False))
        names = self._cards.names
        other = ", ".join(names[each] for each in next(self._ways(freely), ())) or "no other"
        by_name = {name: at for at, name in enumerate(names)}
        # One that is not there is no position of any card.
        chosen = [by_name.get(name, -1 - n) for n, name in enumerate(step.chosen)]
        return (
            f"{explain(step.need, self._cards, found.rows, fixed=chosen)}; a scheduler chose "
            f"{', '.join(step.chosen)} by predicate-gpu-idx-{step.container.ordinal}, which is "
            f"followed strictly; {other} would fit"
        )

    @cached_property
    def _named(self) -> AbstractSet[int]:
        """The cards that a step names; others in the same state are one as good as the other."""
        named = {at for step in self._steps for at in (*step.fixed, *step.must)}
        strict = {name for step in self._steps if step.strict for name in step.chosen}
        return named | {at for at, name in enumerate(self._cards.names) if name in strict}

    def _alike(self, free: Rows, reusable: Rows) -> object:
        """Return what is equal for states between which no container can tell."""
        usable, named = self._cards.usable, self._named
        if not reusable and not named:
            return tuple(sorted([free[at] for at in usable]))
        rows = zip(free, reusable or [NOTHING] * len(free), strict=True)
        return tuple(
            sorted((*pair, at in usable, at if at in named else -1) for at, pair in enumerate(rows))
        )

    def _look(self, step: ContainerStep, free: Rows, reusable: Rows) -> _FoundCards:
        """Return what *step* finds of the cards."""
        rows: Rows = free
        if reusable:
            rows = [row.plus(left) for row, left in zip(free, reusable, strict=True)]
        if step.offer is not None:
            resource, offered = step.offer
            field = "cores" if resource is Resource.CORE else "memory"
            rows = [row._replace(**{field: n}) for row, n in zip(rows, offered, strict=True)]
        return _FoundCards(step, free, reusable, rows, self._bound(step, reusable))

    def _bound(self, step: ContainerStep, reusable: Rows) -> tuple[int, ...]:
        """Return the cards that a plan has to have for *step*."""
        bound = bound_cards(step, reusable)
        # If it is more cards than the container can have, the kubelet chooses among them.
        few = len(bound) <= step.need.demand.cards
        return bound if self._guaranteed or few else step.must

    def _ways(self, found: _FoundCards) -> Iterator[tuple[int, ...]]:
        """Return the ways to place one container, the best first, one of each kind."""
        ways, link = self._sets(found), found.step.link
        if not link:
            return ways
        return (each for each in ways if self._cards.links.hold_together(each, link))

    def _sets(self, found: _FoundCards) -> Iterator[tuple[int, ...]]:
        """Return these, whatever their cards have in common."""
        step, cards = found.step, self._cards
        size = step.need.demand.cards
        fitting, needed = self._fitting(found)
        if len(fitting) < size or len(needed) > size or not needed <= {*fitting}:
            return
        if step.chosen:
            chosen = tuple(at for at in fitting if cards.names[at] in step.chosen)
            if len(chosen) == len(step.chosen) == size and needed <= {*chosen}:
                yield chosen
            if step.strict:
                return
        own = self._own(found) if self._policy is Policy.SPREAD else _NONE
        if not step.need.demand.is_share:
            yield from self._whole_sets(found, fitting, needed, own)
            return
        first, *others = rank_for_share(
            step.need, fitting, cards, found.rows, policy=self._policy, own=own
        )
        yield (first,)
        seen = {self._kind(first, found, own)}
        for at in others:
            kind = self._kind(at, found, own)
            if kind not in seen:
                seen.add(kind)
                yield (at,)

    def _fitting(self, found: _FoundCards) -> tuple[list[int], AbstractSet[int]]:
        """Return the cards that fit, and those of them that the container must have."""
        step, _, _, rows, bound = found
        fixed, (demand, per_card) = step.fixed, step.need
        fitting = self._cards.fitting(rows, per_card)
        if not fixed and not bound:
            return fitting, _NONE
        if len(fixed) < demand.cards:  # less memory than cards: the others are still to be chosen
            fixed, bound = (), tuple({*fixed, *bound})
        if fixed:
            fitting = [at for at in fitting if at in fixed]
        if bound and demand.is_share:
            fitting = [at for at in fitting if at in bound]
        return fitting, {*fixed, *bound}

    def _whole_sets(
        self,
        found: _FoundCards,
        fitting: Sequence[int],
        needed: AbstractSet[int],
        own: AbstractSet[int],
    ) -> Iterator[tuple[int, ...]]:
        """Return sets of whole cards: the best-connected, then one of each other kind."""
        step, cards = found.step, self._cards
        best = best_whole(
            step.need,
            fitting,
            cards,
            found.rows,
            policy=self._policy,
            must=needed,
            link=step.link,
        )
        if not cards.links.hold_together(best, step.link):
            return  # no set does
        yield best
        kinds = {at: self._kind(at, found, own) for at in fitting}
        tried = sorted(kinds[at] for at in best)
        others = sorted((at for at in kinds if at not in needed), key=kinds.__getitem__)
        groups = [list(group) for _, group in groupby(others, key=kinds.__getitem__)]
        for more in choices(groups, step.need.demand.cards - len(needed)):
            every = {*needed, *more}
            if sorted(kinds[at] for at in every) != tried:
                yield tuple(at for at in kinds if at in every)

    def _kind(self, at: int, found: _FoundCards, own: AbstractSet[int]) -> tuple[int, ...]:
        """Return what is equal for cards that can be exchanged for each other."""
        return (
            *found.free[at],
            *_at(found.reusable, at),
            at in own,
            at if at in self._named else -1,
        )

    def _own(self, found: _FoundCards) -> AbstractSet[int]:
        """Return the cards that the pod's containers have been placed on."""
        free, reusable = self._start
        return {
            at
            for at, row in enumerate(found.free)
            if row != free[at] or _at(found.reusable, at) != _at(reusable, at)
        }


def _at(rows: Rows, at: int) -> Amounts:
    return rows[at] if rows else NOTHING


def take_slots(
    step: ContainerStep, cards: Sequence[int], free: Rows, reusable: Rows
) -> tuple[tuple[Amounts, ...], Rows, Rows] | None:
    """Place one container on *cards*: what is taken afresh (K7), then free and left over after it.

    ``None`` where the cards do not have that.
    """
    demand, is_init = step.container.demand, step.container.kind is ContainerKind.INIT
    if not reusable and not is_init:
        after = list(free)
        for at, asked in zip(cards, step.requested, strict=True):
            after[at] = after[at].minus(asked)
        return step.requested, tuple(after), ()
    rows = {at: [*free[at], *_at(reusable, at)] for at in cards}
    fresh = [[0, 0] for _ in cards]
    for slot, resource in enumerate(RESOURCES):
        if resource not in step.lacking:
            continue
        left = [rows[at][slot + 2] for at in cards]
        everywhere = sum([row[slot] for row in reusable])
        if min(count_of(demand, resource), everywhere) > sum(left):
            return None  # the kubelet will hand on slots of other cards
        served = serve_on_cards(step.container.kind, demand.per_card(resource), left)
        # What the kubelet offers for this call counts, also where records say otherwise.
        offered = step.offer is not None and step.offer[0] is resource
        for part, at, each in zip(fresh, cards, served, strict=True):
            row = rows[at]
            if row[slot] < each.fresh and not offered:
                return None
            part[slot] = each.fresh
            row[slot] = max(row[slot] - each.fresh, 0)
            row[slot + 2] = each.reusable
    after, left_after = list(free), list(reusable or [NOTHING] * len(free))
    for at, (cores, memory, *left) in rows.items():
        after[at], left_after[at] = Amounts(cores, memory), Amounts(*left)
    return (
        tuple([Amounts(*each) for each in fresh]),
        tuple(after),
        tuple(left_after) if any(map(any, left_after)) else (),
    )
