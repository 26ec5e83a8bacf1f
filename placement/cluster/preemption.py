"""The cheapest pods of a node whose end makes room for a pod, card by card. Pure.

Costs are compared as kube-scheduler compares nodes for preemption (``pickOneNodeForPreemption``),
then by what is disturbed. Budgets are no cost here but a limit: the Eviction API refuses more.

The search is exact if it ends within its checks. It goes through the sets of victims by branch and
bound: it leaves out sets that cannot be cheaper than the best one so far, and of sets that differ
only by exchangeable pods all but one. If a pod needs one card, each card is searched alone: pods on
other cards would end for nothing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from contract.inventory import Amounts
from placement.cluster.fit import fits_surely
from placement.cluster.nodes import Node
from placement.held import HeldAmounts, HeldByPosition, add_up
from placement.pods import PodClass

MOST_CHECKS = 1000
"""Most checks of one node; then the best set found so far counts."""

_MOST_SEARCHED = 250
"""Of more pods no set is looked for that is cheaper than kube-scheduler's: each is one level of
recursion. A kubelet has 110 pods unless told otherwise."""

_LOWEST_PRIORITY = -(2**31)


class EvictablePod(NamedTuple):
    """A pod that may be evicted.

    Attributes:
        uid: its UID.
        priority: its priority.
        held: what it holds of each card.
        group: its gang, else its owner; empty if it has none. It costs less to disturb one group
            than two.
        budget: its PodDisruptionBudget; empty if it has none.
    """

    uid: str
    priority: int
    held: HeldByPosition
    group: str = ""
    budget: str = ""

    @property
    def cores(self) -> int:
        """The cores that it holds of all cards."""
        return sum(amounts.cores for amounts in self.held.values())


class PreemptionCost(NamedTuple):
    """What victims cost; the lower, the better.

    Attributes:
        highest: highest priority of a victim.
        priorities: sum of their priorities, each above the lowest one, so that few negative ones
            cost less than many.
        victims: their number.
        groups: number of gangs or owners that lose a pod.
        cores: cores that are taken from them.
    """

    highest: int
    priorities: int
    victims: int
    groups: int
    cores: int


NO_VICTIMS = PreemptionCost(_LOWEST_PRIORITY, 0, 0, 0, 0)


class VictimSet(NamedTuple):
    """Pods to be evicted together.

    Attributes:
        cost: what they cost.
        victims: by priority, then by UID; none if the pod fits anyway.
    """

    cost: PreemptionCost
    victims: tuple[EvictablePod, ...]


def cost_of(victims: Sequence[EvictablePod]) -> PreemptionCost:
    """Return what victims cost together."""
    return PreemptionCost(
        max([each.priority for each in victims], default=_LOWEST_PRIORITY),
        sum(each.priority - _LOWEST_PRIORITY for each in victims),
        len(victims),
        len({each.group or each.uid for each in victims}),
        sum(each.cores for each in victims),
    )


def within_budgets(victims: Sequence[EvictablePod], allowed: Mapping[str, int]) -> bool:
    """Return whether all of these may be evicted, given how many of each budget may be."""
    taken = Counter(each.budget for each in victims if each.budget)
    return all(count <= allowed.get(budget, 0) for budget, count in taken.items())


def held_after(held: HeldAmounts, victims: Sequence[EvictablePod]) -> HeldAmounts:
    """Return what is held once these have ended."""
    return held.subtract(add_up(chain.from_iterable(each.held.items() for each in victims)))


def find_victims(  # noqa: PLR0913 -- all inputs of a search, by keyword
    pod_class: PodClass,
    node: Node,
    held: HeldAmounts,
    candidates: Sequence[EvictablePod],
    *,
    allowed: Mapping[str, int],
    below: PreemptionCost | None = None,
    most_checks: int = MOST_CHECKS,
) -> VictimSet | None:
    """Find the cheapest victims on one node.

    Args:
        pod_class: of the pod that needs room.
        node: the node.
        held: what is held of its cards, by the candidates too.
        candidates: pods of lower priority that may be evicted.
        allowed: how many pods of each budget may be evicted now.
        below: what the best other node costs: only cheaper sets count.
        most_checks: most times that it is checked whether the pod fits.

    Returns:
        The victims; ``None`` if there is no set, or none that is cheaper than *below*.
    """
    may = [each for each in candidates if not each.budget or allowed.get(each.budget, 0) > 0]
    search = _Search(pod_class, node, held, allowed, most_checks)
    if search.fits(()):
        return VictimSet(NO_VICTIMS, ()) if below is None or below > NO_VICTIMS else None
    # The highest priority counts first: a set with a lower one is always cheaper.
    for level in sorted({each.priority for each in may}):
        if below is not None and level > below.highest:
            return None
        lower = [each for each in may if each.priority <= level]
        if not search.fits(lower):
            continue
        found = search.run(lower, below)
        if found is not None:
            ordered = sorted(found, key=lambda each: (each.priority, each.uid))
            return VictimSet(cost_of(found), tuple(ordered))
    return None


@dataclass(eq=False)
class _Search:
    """Finds the cheapest set of victims, and counts its checks."""

    _pod_class: PodClass
    _node: Node
    _held: HeldAmounts
    _allowed: Mapping[str, int]
    _checks_left: int
    _best: tuple[EvictablePod, ...] | None = None
    _bound: PreemptionCost | None = None

    def fits(self, victims: Sequence[EvictablePod]) -> bool:
        """Return whether the pod fits once these have ended."""
        self._checks_left -= 1
        return fits_surely(self._pod_class, self._node, held_after(self._held, victims).free)

    def run(
        self, candidates: Sequence[EvictablePod], below: PreemptionCost | None
    ) -> tuple[EvictablePod, ...] | None:
        """Return the cheapest set of *candidates* below a cost; ``None`` if none is found."""
        self._best, self._bound = None, below
        goals = self._goals(candidates)
        if all(self._is_too_expensive((), each.pods, each) for each in goals):
            return None
        # First a set as kube-scheduler finds it: all, then each stays that need not end.
        victims = list(_ordered(candidates))
        for each in reversed(_ordered(candidates)):
            fewer = [other for other in victims if other is not each]
            if self.fits(fewer):
                victims = fewer
        if within_budgets(victims, self._allowed):
            self._keep_cheapest(tuple(victims))
        if len(candidates) <= _MOST_SEARCHED:
            for goal in goals:
                if goal.pods and self.fits(goal.pods):
                    self._choose(_ordered(goal.pods), (), goal)
        return self._best

    def _goals(self, candidates: Sequence[EvictablePod]) -> "Sequence[_Goal]":
        """Return what is searched one after the other, probably the cheapest first."""
        if len(self._pod_class.needs) > 1:
            return [_Goal(candidates)]
        need, cards = self._pod_class.needs[0], self._node.card_set_for(self._pod_class.wishes)
        found = []
        for position in cards.usable:
            pods = [each for each in candidates if position in each.held]
            size, held = self._held.sizes[position], self._held.held[position]
            rows = zip(held, need.per_card, size, strict=True)
            lack = Amounts(*(taken + more - all_ for taken, more, all_ in rows))
            found.append(_Goal(pods, position, lack))
        if need.demand.cards == 1:
            return sorted(found, key=lambda each: (*each.least(each.pods), each.position))
        # The cheapest cards are a good start, if each of them must be freed entirely.
        found = [each for each in found if each.can_be_freed()]
        found.sort(key=lambda each: (cost_of(each.pods), each.position))
        on_cheapest = {pod.uid for each in found[: need.demand.cards] for pod in each.pods}
        first = [each for each in candidates if each.uid in on_cheapest]
        return [_Goal(pods, parts=found, cards=need.demand.cards) for pods in (first, candidates)]

    def _choose(
        self, rest: Sequence[EvictablePod], chosen: tuple[EvictablePod, ...], goal: "_Goal"
    ) -> None:
        """Go through all sets of *chosen* and some of *rest*.

        The caller has checked that the pod fits once all of these have ended, and does not fit if
        only *chosen* end.
        """
        if not rest or self._checks_left <= 0 or self._is_too_expensive(chosen, rest, goal):
            return
        # All sets with the first one.
        more = (*chosen, rest[0])
        if within_budgets(more, self._allowed):
            if self.fits(more):  # no further victim: it would only cost more
                self._keep_cheapest(more)
            else:
                self._choose(rest[1:], more, goal)
        # All sets without it, and so without those that can be exchanged for it.
        kind = _kind(rest[0], goal.shared_groups)
        others = [each for each in rest[1:] if _kind(each, goal.shared_groups) != kind]
        if others and self._checks_left > 0 and self.fits((*chosen, *others)):
            self._choose(others, chosen, goal)

    def _is_too_expensive(
        self, chosen: Sequence[EvictablePod], rest: Sequence[EvictablePod], goal: "_Goal"
    ) -> bool:
        """Return whether no set of *chosen* and some of *rest* can be cheaper than the best one."""
        if self._bound is None:
            return False
        if not rest:
            return True
        so_far, (missing, cores) = cost_of(chosen), goal.least(rest, chosen)
        if missing > len(rest):
            return True
        lowest = sorted([each.priority for each in rest])[:missing]
        least = PreemptionCost(
            max(so_far.highest, lowest[-1]),
            so_far.priorities + sum(lowest) - missing * _LOWEST_PRIORITY,
            so_far.victims + missing,
            so_far.groups + _fewest_groups(rest, chosen, missing),
            so_far.cores + cores,
        )
        return least >= self._bound

    def _keep_cheapest(self, victims: tuple[EvictablePod, ...]) -> None:
        cost = cost_of(victims)
        if self._bound is None or cost < self._bound:
            self._best, self._bound = victims, cost


@dataclass(eq=False)
class _Goal:
    """What must be freed, and the pods of which some must go for it.

    Attributes:
        pods: the candidates.
        position: the card; -1 for several.
        lack: what must be freed of that card; ``None`` for several.
        parts: a goal for each card that can be freed, if several cards are needed; none if several
            containers are placed, because what each card must have is then unknown.
        cards: how many of *parts* must be reached.
    """

    pods: Sequence[EvictablePod]
    position: int = -1
    lack: Amounts | None = None
    _: KW_ONLY
    parts: "Sequence[_Goal]" = ()
    cards: int = 0

    @cached_property
    def shared_groups(self) -> frozenset[str]:
        """The groups with more than one of these pods; any other costs as much as no group."""
        counts = Counter(each.group for each in self.pods if each.group)
        return frozenset(group for group, count in counts.items() if count > 1)

    def can_be_freed(self) -> bool:
        """Return whether the end of these pods frees enough of the card."""
        return all(
            sum(each.held[self.position][column] for each in self.pods) >= lack
            for column, lack in enumerate(self.lack or ())
        )

    def least(
        self, rest: Sequence[EvictablePod], chosen: Sequence[EvictablePod] = ()
    ) -> tuple[int, int]:
        """Return lower bounds of what must still go once *chosen* have gone.

        Args:
            rest: the pods of which some must still go.
            chosen: pods that go, but whose end alone does not free enough.

        Returns:
            Fewest pods of *rest*, at least one; fewest cores that they hold.
        """
        if self.lack is not None:
            missing, cores = self.least_here(rest, chosen)
            return max(missing, 1), cores
        if not self.parts:
            return 1, 0
        each_card = [part.least_here(rest, chosen) for part in self.parts]
        pods, cores = (sum(sorted(column)[: self.cards]) for column in zip(*each_card, strict=True))
        widest = max(len(each.held) for each in rest)  # one pod may leave several cards
        return max(-(-pods // widest), 1), cores

    def least_here(
        self, rest: Sequence[EvictablePod], chosen: Sequence[EvictablePod]
    ) -> tuple[int, int]:
        """Return the same for this card alone: fewest pods, and fewest of its cores, maybe none."""
        most, here, lacking = 0, self.position, 0
        for column, lack in enumerate(self.lack or ()):
            missing = lack - sum([each.held[here][column] for each in chosen if here in each.held])
            if missing > 0:
                largest = max(
                    [each.held[here][column] for each in rest if here in each.held] or [0]
                )
                most = max(most, -(-missing // largest) if largest else len(rest) + 1)
                lacking += missing if column == 0 else 0
        return most, lacking


def _fewest_groups(rest: Sequence[EvictablePod], chosen: Sequence[EvictablePod], count: int) -> int:
    """Return how many groups lose a pod at least, beside those of *chosen*, if *count* go."""
    sizes = Counter(each.group or each.uid for each in rest)
    for group in {each.group or each.uid for each in chosen}:
        count -= sizes.pop(group, 0)
    groups = 0
    for _, size in sizes.most_common():
        if count <= 0:
            break
        count, groups = count - size, groups + 1
    return groups


def _ordered(pods: Sequence[EvictablePod]) -> Sequence[EvictablePod]:
    """Return the order of the search: low priorities first, and of those the largest.

    So the first sets that are found are cheap, and most others are not looked at.
    """
    return sorted(pods, key=lambda each: (each.priority, -each.cores, each.group, each.uid))


def _kind(pod: EvictablePod, shared_groups: frozenset[str]) -> tuple[object, ...]:
    """Return a key by which pods are exchangeable, if their priorities do not matter.

    Pods with the same key free the same amounts of the same cards, count for the same budget, and
    have the same effect on the number of groups. Of such pods the search needs to try only the
    first one, because in its order that is the one of the lowest priority, so the cheapest.
    """
    group = pod.group if pod.group in shared_groups else ""
    return tuple(pod.held.items()), pod.budget, group
