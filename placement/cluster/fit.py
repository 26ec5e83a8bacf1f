"""Whether a pod fits on a node, card by card, and in a few equal words why not. Pure.

This is asked about hundreds of nodes for every pod. It is the search of ``placement`` with its
answer thrown away: remembered by what the pod asks for, what the cards are and what is free of
them, for most nodes look alike, and a node looks as it did until a pod comes or goes.
"""

from functools import lru_cache
from typing import NamedTuple

from contract.demand import CORES_PER_CARD
from contract.inventory import Amounts
from contract.wishes import Wishes
from placement.capacity import HOW, CardSet
from placement.cluster.holdings import View
from placement.cluster.plan import place
from placement.cluster.pods import MOST_REMEMBERED, Need, Shape
from placement.scoring import Policy
from placement.search import Rows


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


def check(shape: Shape, view: View) -> Fit | Unschedulable:
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
    few = len(shape.needs) <= MOST_REMEMBERED
    return (_decide if few else _decide_of_many)(shape, node.card_set_for(shape.wishes), view.free)


@lru_cache(maxsize=65536)
def _decide(shape: Shape, cards: CardSet, free: Rows) -> Fit | Unschedulable:
    fits = len(shape.needs) == 1 or _is_enough(shape.asked, cards, free)
    plan = place(shape, cards, free, Policy.BINPACK) if fits else False
    if plan is False:
        return explain(shape, cards, free)
    begun = 0
    if plan:  # else it was given up: the agent would not refuse the pod for that
        needs = zip(shape.needs, plan, strict=True)
        on = {found.cards[0] for need, found in needs if need.demand.is_share}
        begun = sum([free[at].cores == CORES_PER_CARD for at in on])
    return Fit(begun)


def _is_enough(asked: Amounts, cards: CardSet, free: Rows) -> bool:
    """Return whether there is enough in all, of which a search that gives up would know nothing."""
    rows = [free[at] for at in cards.usable]
    return all(sum([row[slot] for row in rows]) >= count for slot, count in enumerate(asked))


_decide_of_many = lru_cache(maxsize=1024)(_decide.__wrapped__)


# --- in words -------------------------------------------------------------------------


def explain(shape: Shape, cards: CardSet, free: Rows) -> Unschedulable:
    """Return why a pod does not fit on a node of which it is known that it does not."""
    wishes = shape.wishes
    kind, kinds = f"card{_of_type(wishes)}", f"cards{_of_type(wishes)}"
    sizes = [size for size, why in zip(cards.sizes, cards.excluded, strict=True) if not why]
    if not sizes:
        return Unschedulable(_no_card_wished(cards, wishes), for_good=True)
    most = max([need.cards for need in shape.needs])
    if len(sizes) < most:
        return Unschedulable(f"fewer than {most} {kinds}", for_good=True)
    for need in shape.needs:
        for slot, unit in enumerate(_UNITS):
            if sum([size[slot] >= need.counts[slot] for size in sizes]) < need.cards:
                amount = f"{need.counts[slot]} {unit}"
                return Unschedulable(f"no {kind} has {amount}", for_good=True)
    rows = [free[at] for at in cards.usable]
    if len(rows) < most:
        few = f"fewer than {most} healthy {kinds}" if rows else f"no healthy {kind}"
        return Unschedulable(few, for_good=True)
    for need in shape.needs:
        if sum([row.covers(need.counts) for row in rows]) < need.cards:
            return Unschedulable(_no_room(need, kind, kinds), for_good=False)
    reason = f"no {kind} is left for one of {len(shape.needs)} containers"
    if wishes.link and most > 1:
        reason = f"no {most} {kinds} {HOW[wishes.link]} are free"
    return Unschedulable(reason, for_good=False)


_UNITS = ("cores", "blocks")


def _of_type(wishes: Wishes) -> str:
    return f" of type {' or '.join(wishes.use_types)}" if wishes.use_types else ""


def _no_card_wished(cards: CardSet, wishes: Wishes) -> str:
    if "use-gpu-type" in cards.excluded:
        return f"no card{_of_type(wishes)}"
    if "use-gpu-uuid" in cards.excluded:
        return "no card that use-gpu-uuid names"
    return f"no card that {min(cards.excluded)} leaves"


def _no_room(need: Need, kind: str, kinds: str) -> str:
    pairs = zip(need.counts, _UNITS, strict=True)
    much = " and ".join(f"{count} {unit}" for count, unit in pairs if count)
    if need.demand.is_share or need.cards == 1:
        return f"no {kind} has {much} free"
    return f"fewer than {need.cards} {kinds} have {much} free"
