"""Places all containers of a pod, or finds the container that cannot be placed. Pure.

There is no other search: to check whether a pod fits, callers search and ignore where.

Containers are placed in the kubelet's order of admission. Devices of an ordinary init container
are reusable by the containers after it (fact K7); sidecars and containers keep theirs. Each
container is tried first on the cards that it would get alone, then on others, so that the first
plan found is also the one that placing them one by one would prefer.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby, repeat
from typing import NamedTuple, TypeAlias

from contract.demand import ContainerDemand, ContainerKind
from contract.inventory import NOTHING, Amounts
from contract.resource import RESOURCES, Resource
from contract.reusable import serve_on_cards
from placement.capacity import CardNeed, CardSet, explain
from placement.errors import NoPlacement
from placement.scoring import Policy, best_set, rank_for_share
from placement.topology import choices

_MOST_CONTAINERS = 800
"""Most containers of a pod: each is one level of recursion, and Python's limit is 1000."""

MOST_TRIES = 500
"""Placements tried before a search gives up; a pod with few containers needs few."""

_MOST_RANKED = 40
"""Sets that are ranked by their links, beside one for each container. A search that goes back more
often takes sets as they come: on 16 cards with all kinds of links, each ranking takes 10 ms."""

_SKIPPED_PER_TRY = 20
"""Sets without the links that a wish demands that cost as much time as one placement."""

Rows: TypeAlias = Sequence[Amounts]
"""Amounts of each card (free, or reusable), by the card's position."""


@dataclass(frozen=True)
class ContainerStep:
    """One container to be placed.

    Attributes:
        container: the container.
        need: what each of its cards must have; 0 of a resource that it holds already.
        lacking: the resources that it does not hold yet.
        fixed: positions of the cards on which it holds a resource already.
        must: positions of cards from which it must take slots (``must_include``).
        chosen: names of cards that a scheduler chose for it, which are preferred if they fit.
        strict: whether only the chosen cards are allowed.
        link: the wish ``gpu-link``, one of :data:`contract.wishes.LINKS`; empty for none.
    """

    container: ContainerDemand
    need: CardNeed
    lacking: frozenset[Resource] = frozenset(Resource)
    fixed: tuple[int, ...] = ()
    must: tuple[int, ...] = ()
    chosen: tuple[str, ...] = ()
    strict: bool = False
    link: str = ""

    @cached_property
    def requested(self) -> tuple[Amounts, ...]:
        """The amounts that it takes of each of its cards if it reuses nothing."""
        demand = self.container.demand
        parts = [
            demand.per_card(each) if each in self.lacking else repeat(0, demand.cards)
            for each in RESOURCES
        ]
        return tuple(map(Amounts, *parts))


class ContainerPlan(NamedTuple):
    """The part of one container in a plan of its pod.

    Attributes:
        cards: positions of its cards.
        fresh: the amounts that it takes of each card, without those that it reuses.
    """

    cards: tuple[int, ...]
    fresh: tuple[Amounts, ...] = ()


Plan: TypeAlias = Mapping[str, ContainerPlan]
"""Container name -> its part."""


def make_plan(  # noqa: PLR0913 -- all inputs of a plan, by keyword
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
        cards: the node's cards.
        free: the free amounts of each card.
        reusable: the reusable amounts of each card, from ordinary init containers of the pod.
        policy: which card a share prefers; ``None`` if it only matters whether there is a plan.
        guaranteed: whether the plan must work whichever reusable slots the kubelet chooses (K7);
            otherwise it is enough that it works for one choice.
        most_tries: most placements that are tried.

    Returns:
        The part of each container; ``None`` if the search gave up.

    Raises:
        NoPlacement: there is no plan; the message names the container that cannot be placed.
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
    """Too many placements were tried."""


class _NotPlacedError(NoPlacement):
    """There is no plan; the message is made only when it is read."""

    def __init__(self, search: "_PodSearch") -> None:
        super().__init__()
        self._search = search

    def __str__(self) -> str:
        return self._search.refusal()


class _AvailableCards(NamedTuple):
    """The cards as they are for one container.

    Attributes:
        step: the container.
        free: the free amounts.
        reusable: the reusable amounts; empty if there are none.
        rows: the amounts that the container may take: free plus reusable.
        bound: positions of the cards from which the kubelet will make it reuse slots.
    """

    step: ContainerStep
    free: Rows
    reusable: Rows
    rows: Rows
    bound: tuple[int, ...]


_NONE: AbstractSet[int] = frozenset()


def bound_cards(step: ContainerStep, reusable: Rows) -> tuple[int, ...]:
    """Return the cards from which the kubelet will make a container reuse slots (K7).

    A device ID names its card, so reusable slots bind the container to their card.
    """
    demand = step.container.demand
    needs = [each in step.lacking and each.count_in(demand) > 0 for each in RESOURCES]
    with_reusable = {
        position
        for position, (cores, memory) in enumerate(reusable)
        if (cores and needs[0]) or (memory and needs[1])
    }
    return tuple(sorted(with_reusable.union(step.must)))


class _PodSearch:
    """One search; if it fails, it reports the container at which it got furthest."""

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
        self._skips = tries * _SKIPPED_PER_TRY
        self._ranked = len(steps) + _MOST_RANKED
        link = steps[0].link if steps else ""  # the pod's
        self._alike = cards.links.alike(link) if link else ()
        self._failed: set[tuple[int, object]] = set()
        self._furthest: tuple[int, _AvailableCards] | None = None

    def run(self, free: Rows, reusable: Rows) -> tuple[ContainerPlan, ...] | None:
        """Place all containers; return ``None`` if there is no plan."""
        self._start = free, reusable
        return self._place_from(0, free, reusable)

    def _place_from(
        self, index: int, free: Rows, reusable: Rows
    ) -> tuple[ContainerPlan, ...] | None:
        """Place the containers from *index* on; return ``None`` if there is no plan."""
        if index == len(self._steps):
            return ()
        if index > _MOST_CONTAINERS:
            raise _GivenUpError
        if self._failed and (index, self._state_key(free, reusable)) in self._failed:
            return None
        step = self._steps[index]
        if reusable or step.must:
            available = self._find_available(step, free, reusable)
        else:
            available = _AvailableCards(step, free, reusable, free, ())
        is_last = index == len(self._steps) - 1
        for cards in self._card_sets(available):
            self._tries -= 1
            if self._tries < 0:
                raise _GivenUpError
            if is_last and not reusable:
                return (ContainerPlan(cards, step.requested),)
            taken = take_slots(step, cards, free, reusable)
            if taken is None:
                continue
            fresh, free_after, reusable_after = taken
            rest = self._place_from(index + 1, free_after, reusable_after)
            if rest is not None:
                return (ContainerPlan(cards, fresh), *rest)
        if self._furthest is None or index > self._furthest[0]:
            self._furthest = (index, available)
        if index:
            self._failed.add((index, self._state_key(free, reusable)))
        return None

    def refusal(self) -> str:
        """Return text with the container that cannot be placed, and why."""
        if self._furthest is None:
            return ""
        index, available = self._furthest
        text = self._explain(available)
        if index == 0:
            return text
        before = ", ".join(step.container.name for step in self._steps[:index])
        head, colon, reasons = text.partition(": ")
        name = self._steps[index].container.name
        return f"{head} of container {name}, with {before} placed{colon}{reasons}"

    def _explain(self, available: _AvailableCards) -> str:
        """Return why one container cannot be placed."""
        step = available.step
        if not (step.strict and step.chosen):
            return explain(
                step.need,
                self._cards,
                available.rows,
                fixed=step.fixed,
                must=available.bound,
                link=step.link,
            )
        freely = available._replace(step=replace(step, chosen=(), strict=False))
        self._ranked = 1  # so that the first set is the best one, or there is none
        names = self._cards.names
        other = ", ".join(names[each] for each in next(self._card_sets(freely), ())) or "no other"
        by_name = {name: position for position, name in enumerate(names)}
        # A chosen card that the node lacks gets a number that is no card's position.
        chosen = [by_name.get(name, -1 - n) for n, name in enumerate(step.chosen)]
        return (
            f"{explain(step.need, self._cards, available.rows, fixed=chosen)}; a scheduler chose "
            f"{', '.join(step.chosen)} by predicate-gpu-idx-{step.container.ordinal}, which is "
            f"followed strictly; {other} would fit"
        )

    @cached_property
    def _named(self) -> AbstractSet[int]:
        """The cards that a step names; all others are interchangeable if equally free."""
        named = {position for step in self._steps for position in (*step.fixed, *step.must)}
        strict = {name for step in self._steps if step.strict for name in step.chosen}
        return named | {
            position for position, name in enumerate(self._cards.names) if name in strict
        }

    def _state_key(self, free: Rows, reusable: Rows) -> object:
        """Return a key that is equal for states that make no difference to any container."""
        usable, named, instances = self._cards.usable, self._named, self._cards.for_shares
        if not reusable and not named and not instances and not self._alike:
            return tuple(sorted([free[position] for position in usable]))
        rows = zip(free, reusable or [NOTHING] * len(free), strict=True)
        return tuple(
            sorted(
                (
                    *pair,
                    position in usable,
                    position in instances,
                    position if position in named else -1,
                    self._alike[position] if self._alike else -1,
                )
                for position, pair in enumerate(rows)
            )
        )

    def _find_available(self, step: ContainerStep, free: Rows, reusable: Rows) -> _AvailableCards:
        """Return the cards as they are for *step*."""
        rows: Rows = free
        if reusable:
            rows = [row.plus(more) for row, more in zip(free, reusable, strict=True)]
        bound = bound_cards(step, reusable)
        # If there are more of them than the container can have, the kubelet chooses among them.
        if not self._guaranteed and len(bound) > step.need.demand.cards:
            bound = step.must
        return _AvailableCards(step, free, reusable, rows, bound)

    def _card_sets(self, available: _AvailableCards) -> Iterator[tuple[int, ...]]:
        """Return the card sets for one container, the best first; one of each equivalent sets."""
        sets, link = self._card_sets_ignoring_link(available), available.step.link
        return filter(partial(self._fulfils, link), sets) if link else sets

    def _fulfils(self, link: str, cards: Sequence[int]) -> bool:
        """Return whether *cards* fulfil the wish ``gpu-link``; give up after too many that do not.

        Raises:
            _GivenUpError: too many did not.
        """
        if self._cards.links.fulfils(cards, link):
            return True
        self._skips -= 1
        if self._skips < 0:
            raise _GivenUpError
        return False

    def _card_sets_ignoring_link(self, available: _AvailableCards) -> Iterator[tuple[int, ...]]:
        """Return the same, without the check of the wish ``gpu-link``."""
        step, cards = available.step, self._cards
        size = step.need.demand.cards
        fitting, needed = self._fitting(available)
        if len(fitting) < size or len(needed) > size or not needed <= {*fitting}:
            return
        if step.chosen:
            chosen = tuple(position for position in fitting if cards.names[position] in step.chosen)
            if len(chosen) == len(step.chosen) == size and needed <= {*chosen}:
                yield chosen
            if step.strict:
                return
        own = self._own_cards(available) if self._policy is Policy.SPREAD else _NONE
        if size > 1 or not step.need.demand.is_share:
            yield from self._larger_sets(available, fitting, needed, own)
            return
        first, *others = rank_for_share(
            step.need, fitting, cards, available.rows, policy=self._policy, own=own
        )
        yield (first,)
        tried = {self._card_key(first, available, own)}
        for position in others:
            key = self._card_key(position, available, own)
            if key not in tried:
                tried.add(key)
                yield (position,)

    def _fitting(self, available: _AvailableCards) -> tuple[list[int], AbstractSet[int]]:
        """Return the cards that fit, and the cards that the container must have."""
        step, _, _, rows, bound = available
        fixed, demand = step.fixed, step.need.demand
        fitting = self._cards.fitting(rows, step.need)
        if not fixed and not bound:
            return fitting, _NONE
        if self._guaranteed and demand.split > 1:
            fitting = [at for at in fitting if not _may_exceed_part(step, available.reusable, at)]
        if len(fixed) < demand.cards:  # fewer memory blocks than cards: more cards are to be chosen
            fixed, bound = (), tuple({*fixed, *bound})
        if fixed:
            fitting = [position for position in fitting if position in fixed]
        if demand.is_share and len(bound) >= demand.cards:
            fitting = [position for position in fitting if position in bound]
        return fitting, {*fixed, *bound}

    def _larger_sets(
        self,
        available: _AvailableCards,
        fitting: Sequence[int],
        needed: AbstractSet[int],
        own: AbstractSet[int],
    ) -> Iterator[tuple[int, ...]]:
        """Return sets of several cards: the best-connected, then one of each equivalent others.

        A single whole card is a set, too: its loss may cost the other cards links.
        """
        step, cards = available.step, self._cards
        best: tuple[int, ...] = ()
        if self._ranked:
            self._ranked -= 1
            best = best_set(
                step.need,
                fitting,
                cards,
                available.rows,
                policy=self._policy,
                must=needed,
                own=own,
                link=step.link,
            )
            if not cards.links.fulfils(best, step.link):
                return  # no set fulfils it
            yield best
        keys = {position: self._card_key(position, available, own) for position in fitting}
        tried = sorted(keys[position] for position in best)
        for connected in cards.links.connected(fitting, step.link):
            if not needed <= {*connected}:
                continue
            others = sorted(
                (position for position in connected if position not in needed), key=keys.__getitem__
            )
            groups = [list(group) for _, group in groupby(others, key=keys.__getitem__)]
            for more in choices(groups, step.need.demand.cards - len(needed)):
                chosen = {*needed, *more}
                if sorted(keys[position] for position in chosen) != tried:
                    yield tuple(position for position in keys if position in chosen)

    def _card_key(
        self, position: int, available: _AvailableCards, own: AbstractSet[int]
    ) -> tuple[int, ...]:
        """Return a key that is equal for interchangeable cards."""
        return (
            *available.free[position],
            *_row_at(available.reusable, position),
            position in own,
            position in self._cards.for_shares,
            position if position in self._named else -1,
            self._alike[position] if self._alike else -1,
        )

    def _own_cards(self, available: _AvailableCards) -> AbstractSet[int]:
        """Return the cards on which containers of the pod have been placed."""
        free, reusable = self._start
        return {
            position
            for position, row in enumerate(available.free)
            if row != free[position]
            or _row_at(available.reusable, position) != _row_at(reusable, position)
        }


def _row_at(rows: Rows, position: int) -> Amounts:
    return rows[position] if rows else NOTHING


def _may_exceed_part(step: ContainerStep, reusable: Rows, position: int) -> bool:
    """Return whether the kubelet may reuse more of a card than its part of a divided share."""
    demand = step.container.demand
    return any(
        count > demand.most_per_card(each)
        for each, count in zip(RESOURCES, _row_at(reusable, position), strict=True)
        if each in step.lacking and each.count_in(demand)
    )


def take_slots(
    step: ContainerStep, cards: Sequence[int], free: Rows, reusable: Rows
) -> tuple[tuple[Amounts, ...], Rows, Rows] | None:
    """Place one container on *cards*.

    Returns:
        What it takes of each card beside the reusable slots (K7), then what is free and what is
        reusable on all cards afterwards; ``None`` if the cards do not have enough.
    """
    demand, is_init = step.container.demand, step.container.kind is ContainerKind.INIT
    if not reusable and not is_init:
        after = list(free)
        for position, amounts in zip(cards, step.requested, strict=True):
            after[position] = after[position].minus(amounts)
        return step.requested, tuple(after), ()
    rows = {position: [*free[position], *_row_at(reusable, position)] for position in cards}
    fresh = [[0, 0] for _ in cards]
    for column, resource in enumerate(RESOURCES):
        if resource not in step.lacking:
            continue
        before = [rows[position][column + 2] for position in cards]
        everywhere = sum([row[column] for row in reusable])
        if min(resource.count_in(demand), everywhere) > sum(before):
            return None  # the kubelet will make it reuse slots of other cards
        received = serve_on_cards(step.container.kind, demand.per_card(resource), before)
        for part, position, each in zip(fresh, cards, received, strict=True):
            row = rows[position]
            if row[column] < each.fresh:
                return None
            if demand.split > 1 and each.reused + each.fresh > demand.most_per_card(resource):
                return None  # the card would provide more than its part
            part[column] = each.fresh
            row[column] -= each.fresh
            row[column + 2] = each.reusable
    after, reusable_after = list(free), list(reusable or [NOTHING] * len(free))
    for position, (cores, memory, *remaining) in rows.items():
        after[position], reusable_after[position] = Amounts(cores, memory), Amounts(*remaining)
    return (
        tuple([Amounts(*each) for each in fresh]),
        tuple(after),
        tuple(reusable_after) if any(map(any, reusable_after)) else (),
    )
