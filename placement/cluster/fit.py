"""Whether a pod fits on a node, card by card, and in a few equal words why not. Pure.

Whether, not where: this is asked about hundreds of nodes for every pod, so it does not weigh
cards. Where is decided once, when the pod is bound, by ``placement``. Both agree: what fits here
has a place there, and the other way round (tests hold them against each other).
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from operator import ge, sub
from typing import NamedTuple

from contract.demand import CORES_PER_CARD, ContainerDemand, PodDemand
from contract.resource import RESOURCES, Counts, Resource
from contract.wishes import Wishes
from placement.capacity import HOW
from placement.cluster.holdings import Free, View, plan_pod
from placement.cluster.nodes import Node, NodeCard
from placement.errors import NoPlacement
from placement.pods import MOST_REMEMBERED, ContainerNeed, PodClass, PodId, PodInfo
from placement.scoring import Policy

_MOST_TRIES = 2000
"""Cards tried for shares before a search is left to ``placement``."""

_DEEPEST = 400
"""Containers of a pod; each is a call within a call, of which Python makes a thousand."""


class Fit(NamedTuple):
    """A pod fits.

    Attributes:
        begun: whole cards that it would begin to share.
    """

    begun: int = 0


class Unschedulable(NamedTuple):
    """A pod does not fit.

    Attributes:
        reason: why, equal for equal causes.
        for_good: freeing cards would not mend it.
    """

    reason: str
    for_good: bool


def check(shape: PodClass, view: View) -> Fit | Unschedulable:
    """Decide whether a pod fits on a node.

    Args:
        shape: of the pod.
        view: the node.
    """
    node = view.node
    if shape.problem:
        return Unschedulable(shape.problem, for_good=True)
    if node.problem:
        return Unschedulable(node.problem.value, for_good=True)
    rows = usable_rows(view, shape.wishes)
    needs = shape.needs
    fit: Fit | None
    if _must_hold_together(shape):
        fit = _planned(shape, node, tuple(view.free))
    elif len(needs) == 1:
        fit = _alone(needs[0], rows)
    elif all(_alone(need, rows) for need in needs):
        fit = _together(shape, view, rows)
    else:
        fit = None
    return fit or explain(shape, node, rows)


def _must_hold_together(shape: PodClass) -> bool:
    """Return whether it matters which cards a container gets, and not only how many."""
    most = shape.most_cards
    return bool(shape.wishes.link) and most is not None and most.cards > 1


def usable_rows(view: View, wishes: Wishes) -> Free:
    """Return what is free of the cards that are healthy and that no wish rules out."""
    if not wishes.rules_out_cards:
        return view.rows
    return [view.free[place] for place in usable_cards(view.node, wishes)]


@lru_cache(maxsize=65536)
def usable_cards(node: Node, wishes: Wishes) -> tuple[int, ...]:
    """Return the places of the cards that are healthy and that no wish rules out."""
    return tuple(
        place
        for place, card in enumerate(node.cards)
        if card.healthy and not wishes.excludes(model=card.model, uuid=card.uuid)
    )


def _alone(need: ContainerNeed, free: Free) -> Fit | None:
    """Decide about one container as if its pod had no other."""
    wanted = need.counts
    cores = wanted[0]  # asked first: most cards that do not fit lack these
    if need.demand.is_share:
        found: Fit | None = None
        for row in free:
            if row[0] >= cores and all(map(ge, row, wanted)):
                if row[0] < CORES_PER_CARD:
                    return _KEPT
                found = _BEGUN
        return found
    fitting = sum([row[0] >= cores and all(map(ge, row, wanted)) for row in free])
    return _KEPT if fitting >= need.cards else None


_KEPT, _BEGUN = Fit(0), Fit(1)


def _together(shape: PodClass, view: View, rows: Free) -> Fit | None:
    """Decide about several containers, each of which would fit alone."""
    if any(count > sum([row[at] for row in rows]) for at, count in enumerate(shape.asked)):
        return None  # what a search that gives up would not find
    if not shape.has_inits:
        left = _without_whole(shape.whole, rows)
        if left is None or not shape.shares:
            return _KEPT if left is not None else None
        try:
            return _Shares(shape.shares).place(left)
        except _GivenUpError:
            pass
    few = len(shape.needs) <= MOST_REMEMBERED
    return (_planned if few else _planned_of_many)(shape, view.node, tuple(view.free))


def _without_whole(needs: Sequence[ContainerNeed], rows: Free) -> tuple[Counts, ...] | None:
    """Take whole cards away, of those with memory enough the smallest; ``None`` if too few.

    The containers with the most memory come first, in *needs*.
    """
    if not needs:
        return tuple(rows)
    left = sorted(rows, key=lambda row: row[1])
    for need in needs:
        fitting = (place for place, row in enumerate(left) if all(map(ge, row, need.counts)))
        found = list(islice(fitting, need.cards))
        if len(found) < need.cards:
            return None
        for place in reversed(found):
            del left[place]
    return tuple(left)


class _GivenUpError(Exception):
    """Too many cards were tried."""


class _Shares:
    """Shares packed onto cards by trying, the largest first, begun cards before whole ones."""

    def __init__(self, shares: Sequence[Counts]) -> None:
        self._shares = shares
        self._failed: set[tuple[int, tuple[Counts, ...]]] = set()
        self._tries = _MOST_TRIES

    def place(self, rows: tuple[Counts, ...], at: int = 0) -> Fit | None:
        """Place the shares from *at* on; ``None`` where it cannot be done."""
        if at == len(self._shares):
            return _KEPT
        if at > _DEEPEST:
            raise _GivenUpError
        rows = tuple(sorted(rows))  # the least left first: whole cards last
        if (at, rows) in self._failed:
            return None
        share = self._shares[at]
        before = None
        for place, row in enumerate(rows):
            if row == before or not all(map(ge, row, share)):
                continue
            before = row
            self._tries -= 1
            if self._tries < 0:
                raise _GivenUpError
            less = tuple(map(sub, row, share))
            rest = self.place((*rows[:place], less, *rows[place + 1 :]), at + 1)
            if rest is not None:
                return Fit(rest.begun + (row[0] == CORES_PER_CARD))
        self._failed.add((at, rows))
        return None


@lru_cache(maxsize=65536)
def _planned(shape: PodClass, node: Node, free: tuple[Counts, ...]) -> Fit | None:
    """Decide by a whole plan: containers hand places on, or the quick search gave up."""
    containers = tuple(
        ContainerDemand(str(number), need.kind, number, need.demand)
        for number, need in enumerate(shape.needs)
    )
    pod = PodInfo(PodId("", "", ""), PodDemand(containers), wishes=shape.wishes)
    try:
        plan = plan_pod(pod, node, free, Policy.BINPACK)
    except NoPlacement:
        return None
    if plan is None:
        return _KEPT  # given up: the agent would not refuse it for that
    by_name = {str(card.index): place for place, card in enumerate(node.cards)}
    begun = {
        by_name[assignment.cards[0]]
        for need, assignment in zip(shape.needs, plan.values(), strict=True)
        if need.demand.is_share
    }
    return Fit(sum(free[place][0] == CORES_PER_CARD for place in begun))


_planned_of_many = lru_cache(maxsize=1024)(_planned.__wrapped__)


# --- in words -------------------------------------------------------------------------


def explain(shape: PodClass, node: Node, rows: Free) -> Unschedulable:
    """Return why a pod does not fit on a node of which it is known that it does not."""
    wishes = shape.wishes
    wished: Sequence[NodeCard] = node.cards
    if wishes.rules_out_cards:
        wished = [card for card in wished if not wishes.excludes(model=card.model, uuid=card.uuid)]
    kind, kinds = f"card{_of_type(wishes)}", f"cards{_of_type(wishes)}"
    if not wished:
        return Unschedulable(_no_card_wished(node, wishes), for_good=True)
    most = max([need.cards for need in shape.needs])
    if len(wished) < most:
        return Unschedulable(f"fewer than {most} {kinds}", for_good=True)
    all_places = [card.places for card in wished]
    for need in shape.needs:
        for resource, *places, count in zip(RESOURCES, *all_places, need.counts, strict=True):
            if sum([each >= count for each in places]) < need.cards:
                return Unschedulable(f"no {kind} has {_amount(resource, count)}", for_good=True)
    if len(rows) < most:
        few = f"fewer than {most} healthy {kinds}" if rows else f"no healthy {kind}"
        return Unschedulable(few, for_good=True)
    for need in shape.needs:
        if _alone(need, rows) is None:
            return Unschedulable(_no_room(need, kind, kinds), for_good=False)
    reason = f"no {kind} is left for one of {len(shape.needs)} containers"
    if _must_hold_together(shape):
        reason = f"no {most} {kinds} {HOW[wishes.link]} are free"
    return Unschedulable(reason, for_good=False)


def _of_type(wishes: Wishes) -> str:
    return f" of type {' or '.join(wishes.use_types)}" if wishes.use_types else ""


def _no_card_wished(node: Node, wishes: Wishes) -> str:
    reasons = {wishes.excludes(model=card.model, uuid=card.uuid) for card in node.cards}
    if "use-gpu-type" in reasons:
        return f"no card{_of_type(wishes)}"
    if "use-gpu-uuid" in reasons:
        return "no card that use-gpu-uuid names"
    return f"no card that {min(reasons)} leaves"


def _no_room(need: ContainerNeed, kind: str, kinds: str) -> str:
    counts = zip(RESOURCES, need.counts, strict=True)
    much = " and ".join(_amount(each, count) for each, count in counts if count)
    if need.demand.is_share or need.cards == 1:
        return f"no {kind} has {much} free"
    return f"fewer than {need.cards} {kinds} have {much} free"


def _amount(resource: Resource, count: int) -> str:
    return f"{count} {resource.unit.rpartition(' ')[2]}"
