"""Whether a pod fits on a node, card by card, and in a few equal words why not. Pure.

This is asked about hundreds of nodes for every pod. It is the search of ``placement`` with its
answer thrown away: remembered by what the pod asks for, what the cards are and what is free of
them, for most nodes look alike, and a node looks as it did until a pod comes or goes.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind
from contract.inventory import Amounts
from contract.wishes import Wishes
from placement.capacity import HOW, CardNeed, CardSet
from placement.cluster.holdings import NodeSnapshot
from placement.cluster.plan import search, steps_of
from placement.errors import NoPlacement
from placement.pods import MOST_REMEMBERED, PodClass
from placement.search import ContainerStep, Rows

_MOST_TRIES = 2000
"""Placings tried for one node."""


class Fit(NamedTuple):
    """A pod fits.

    Attributes:
        newly_shared: whole cards of which it would be the first share.
    """

    newly_shared: int = 0


class Unschedulable(NamedTuple):
    """A pod does not fit.

    Attributes:
        reason: why, equal for equal causes.
        unresolvable: freeing cards would not mend it.
    """

    reason: str
    unresolvable: bool


def check(shape: PodClass, snapshot: NodeSnapshot) -> Fit | Unschedulable:
    """Decide whether a pod fits on a node.

    Args:
        shape: of the pod.
        snapshot: the node.
    """
    node = snapshot.node
    if shape.problem:
        return Unschedulable(shape.problem, unresolvable=True)
    if node.problem:
        return Unschedulable(node.problem.value, unresolvable=True)
    few, cards = len(shape.needs) <= MOST_REMEMBERED, node.card_set_for(shape.wishes)
    return (_decide if few else _decide_of_many)(shape, cards, snapshot.free)


@lru_cache(maxsize=16384)
def _decide(shape: PodClass, cards: CardSet, free: Rows) -> Fit | Unschedulable:
    never = _unresolvable(shape, cards)
    if never:
        return never
    if len(shape.needs) > 1 and not _is_enough(shape.asked, cards, free):
        return _no_room(shape, cards, free)  # what a search that gives up would not find
    try:
        plan = search(_steps(shape), cards, free, None, _MOST_TRIES)
    except NoPlacement:
        return _no_room(shape, cards, free)
    newly_shared = 0
    if plan:  # else it was given up: the agent would not refuse the pod for that
        steps = zip(_steps(shape), plan, strict=True)
        on = {found.cards[0] for step, found in steps if step.need.demand.is_share}
        newly_shared = sum([free[at].cores == CORES_PER_CARD for at in on])
    return Fit(newly_shared)


def _is_enough(asked: Amounts, cards: CardSet, free: Rows) -> bool:
    """Return whether there is enough in all."""
    rows = [free[at] for at in cards.usable]
    return all(sum([row[slot] for row in rows]) >= count for slot, count in enumerate(asked))


def _size(of: tuple[ContainerKind, CardNeed]) -> tuple[int, ...]:
    """Return by what whole cards come before shares, those with the most memory first."""
    need = of[1]
    return (*need.per_card, need.demand.cards)


@lru_cache(maxsize=64)
def _steps(shape: PodClass) -> Sequence[ContainerStep]:
    """Return the containers; the largest first where nothing is handed on, to find out sooner."""
    pairs = list(zip(shape.kinds, shape.needs, strict=True))
    if ContainerKind.INIT not in shape.kinds:
        pairs.sort(key=_size, reverse=True)
    containers = [
        ContainerDemand(str(number), kind, number, need.demand)
        for number, (kind, need) in enumerate(pairs)
    ]
    return steps_of(containers, shape.wishes.link)


_decide_of_many = lru_cache(maxsize=1024)(_decide.__wrapped__)


# --- in words -------------------------------------------------------------------------


@lru_cache(maxsize=16384)
def _unresolvable(shape: PodClass, cards: CardSet) -> Unschedulable | None:
    """Return why a pod does not fit, whatever is free; ``None`` where it may."""
    wishes = shape.wishes
    kind, kinds = _kind_of_card(wishes)
    sizes = [size for size, why in zip(cards.sizes, cards.excluded, strict=True) if not why]
    most, healthy = max([need.demand.cards for need in shape.needs]), len(cards.usable)
    short = next(
        (
            f"{need.per_card[slot]} {unit}"
            for need in shape.needs
            for slot, unit in enumerate(_UNITS)
            if sum([size[slot] >= need.per_card[slot] for size in sizes]) < need.demand.cards
        ),
        "",
    )
    if not sizes:
        reason = _no_card_wished(cards, wishes)
    elif len(sizes) < most:
        reason = f"fewer than {most} {kinds}"
    elif short:
        reason = f"no {kind} has {short}"
    elif healthy < most:
        reason = f"fewer than {most} healthy {kinds}" if healthy else f"no healthy {kind}"
    else:
        return None
    return Unschedulable(reason, unresolvable=True)


def _no_room(shape: PodClass, cards: CardSet, free: Rows) -> Unschedulable:
    """Return why a pod does not fit on a node of which it is known that it does not."""
    wishes = shape.wishes
    kind, kinds = _kind_of_card(wishes)
    for need in shape.needs:
        if len(cards.fitting(free, need.per_card)) < need.demand.cards:
            return Unschedulable(_too_full(need, kind, kinds), unresolvable=False)
    most = max([need.demand.cards for need in shape.needs])
    reason = f"no {kind} is left for one of {len(shape.needs)} containers"
    if wishes.link and most > 1:
        reason = f"no {most} {kinds} {HOW[wishes.link]} are free"
    return Unschedulable(reason, unresolvable=False)


_UNITS = ("cores", "blocks")


def _kind_of_card(wishes: Wishes) -> tuple[str, str]:
    """Return how a card is called that the pod's author wishes, one and several."""
    return f"card{_of_type(wishes)}", f"cards{_of_type(wishes)}"


def _of_type(wishes: Wishes) -> str:
    return f" of type {' or '.join(wishes.use_types)}" if wishes.use_types else ""


def _no_card_wished(cards: CardSet, wishes: Wishes) -> str:
    if "use-gpu-type" in cards.excluded:
        return f"no card{_of_type(wishes)}"
    if "use-gpu-uuid" in cards.excluded:
        return "no card that use-gpu-uuid names"
    return f"no card that {min(cards.excluded)} leaves"


def _too_full(need: CardNeed, kind: str, kinds: str) -> str:
    pairs = zip(need.per_card, _UNITS, strict=True)
    much = " and ".join(f"{count} {unit}" for count, unit in pairs if count)
    if need.demand.cards == 1:
        return f"no {kind} has {much} free"
    return f"fewer than {need.demand.cards} {kinds} have {much} free"
