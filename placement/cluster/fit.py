"""Whether a pod fits on a node, card by card, and if not, a short reason. Pure.

Every pod is checked on hundreds of nodes. The check runs the search of ``placement`` and ignores
the cards that it finds. Its result is cached by the pod's class, the cards and their free amounts:
most nodes are alike, and a node stays the same until a pod comes or goes. Reasons are equal text
for equal causes, so that nodes can be counted by reason.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from contract.cordon import REASON
from contract.demand import ContainerDemand, ContainerKind
from contract.inventory import Amounts
from contract.text import format_count
from contract.wishes import Wishes
from placement.capacity import LINK_PHRASES, CardNeed, CardSet, may_get_instances
from placement.cluster.holdings import NodeSnapshot
from placement.cluster.nodes import Node
from placement.cluster.plan import search, steps_of
from placement.errors import NoPlacement
from placement.pods import MOST_REMEMBERED, PodClass
from placement.scoring import Policy, whole_cards
from placement.search import ContainerStep, Rows

_MOST_TRIES = 2000
"""Most placements tried for one node."""


class Fit(NamedTuple):
    """A pod fits; on *newly_shared* whole cards it would be the first share."""

    newly_shared: int = 0


class Unschedulable(NamedTuple):
    """A pod does not fit.

    Attributes:
        reason: why, as equal text for equal causes.
        unresolvable: whether it would not fit either if cards were freed.
    """

    reason: str
    unresolvable: bool


def check(pod_class: PodClass, snapshot: NodeSnapshot) -> Fit | Unschedulable:
    """Return whether a pod fits on a node."""
    node = snapshot.node
    if pod_class.problem:
        return Unschedulable(pod_class.problem, unresolvable=True)
    if node.problem:
        return Unschedulable(node.problem.value, unresolvable=True)
    few, cards = len(pod_class.needs) <= MOST_REMEMBERED, node.card_set_for(pod_class.wishes)
    return (_decide if few else _decide_of_many)(pod_class, cards, snapshot.free)


@lru_cache(maxsize=16384)
def _decide(pod_class: PodClass, cards: CardSet, free: Rows) -> Fit | Unschedulable:
    never = _unresolvable(pod_class, cards)
    if never:
        return never
    if len(pod_class.needs) > 1 and not _is_enough(pod_class.peak, cards, free):
        return _not_enough_free(
            pod_class, cards, free
        )  # a search might give up before it finds this
    try:
        plan = search(_steps(pod_class), cards, free, _policy(pod_class), _MOST_TRIES)
    except NoPlacement:
        return _not_enough_free(pod_class, cards, free)
    newly_shared = 0
    if plan:  # otherwise the search gave up, for which the agent would not refuse the pod
        steps = zip(_steps(pod_class), plan, strict=True)
        shared = {card for step, part in steps if step.need.demand.is_share for card in part.cards}
        newly_shared = len(shared & whole_cards(cards, free))
    return Fit(newly_shared)


def fits_surely(pod_class: PodClass, node: Node, free: Rows) -> bool:
    """Return whether a pod fits on a node with these free amounts.

    Unlike with :func:`check`, a search that was given up is no, and nothing is remembered: who asks
    this tries many amounts that the node does not have, to find out which pods to evict.
    """
    if pod_class.problem or node.problem:
        return False
    cards = node.card_set_for(pod_class.wishes)
    if any(len(cards.fitting(free, need)) < need.demand.cards for need in pod_class.needs):
        return False
    if len(pod_class.needs) == 1 and not pod_class.wishes.link:
        return True
    try:
        return bool(search(_steps(pod_class), cards, free, _policy(pod_class), _MOST_TRIES))
    except NoPlacement:
        return False


def _policy(pod_class: PodClass) -> Policy | None:
    """Return how cards are chosen: ``None`` is faster, but ignores the links of shared cards."""
    divided = any(need.demand.split > 1 for need in pod_class.needs)
    return Policy.BINPACK if divided else None


def _is_enough(wanted: Amounts, cards: CardSet, free: Rows) -> bool:
    """Return whether all usable cards together have *wanted* free."""
    rows = [free[position] for position in cards.usable]
    return all(sum([row[column] for row in rows]) >= count for column, count in enumerate(wanted))


def _size(container: tuple[ContainerKind, CardNeed]) -> tuple[int, ...]:
    """Return a sort key: whole cards are larger than shares, then more memory is larger."""
    need = container[1]
    return (*need.per_card, need.demand.cards)


@lru_cache(maxsize=64)
def _steps(pod_class: PodClass) -> Sequence[ContainerStep]:
    """Return the containers; the largest first if none can reuse devices, so that it fails soon."""
    pairs = list(zip(pod_class.kinds, pod_class.needs, strict=True))
    if ContainerKind.INIT not in pod_class.kinds:
        pairs.sort(key=_size, reverse=True)
    containers = [
        ContainerDemand(str(number), kind, number, need.demand)
        for number, (kind, need) in enumerate(pairs)
    ]
    return steps_of(containers, pod_class.wishes.link)


_decide_of_many = lru_cache(maxsize=1024)(_decide.__wrapped__)


# --- reasons as text ------------------------------------------------------------------


@lru_cache(maxsize=16384)
def _unresolvable(pod_class: PodClass, cards: CardSet) -> Unschedulable | None:
    """Return why a pod does not fit even if all cards are free; ``None`` if it does fit then."""
    wishes = pod_class.wishes
    kind, kinds = _card_nouns(wishes)
    hardest = max(
        pod_class.needs, key=lambda need: (need.demand.cards, not may_get_instances(need.demand))
    )
    most, eligible = hardest.demand.cards, cards.eligible(hardest.demand)
    available = sum([not cards.withheld[position] for position in eligible])
    short = next(
        (
            (format_count(need.per_card[column], unit), need.demand.cards if found else 0)
            for need in pod_class.needs
            for column, unit in enumerate(_UNITS)
            if (
                found := sum(
                    [
                        cards.sizes[position][column] >= need.per_card[column]
                        for position in cards.eligible(need.demand)
                    ]
                )
            )
            < need.demand.cards
        ),
        None,
    )
    if all(cards.excluded):
        reason = _all_excluded(cards, wishes)
    elif not eligible:
        reason = _INSTANCES
    elif len(eligible) < most:
        instances = cards.for_shares and not may_get_instances(hardest.demand)
        reason = f"fewer than {most} {kinds}{' that are no MIG instances' * bool(instances)}"
    elif short:
        amount, wanted = short
        reason = (
            f"fewer than {wanted} {kinds} have {amount}" if wanted else f"no {kind} has {amount}"
        )
    elif available < most:
        fit = _lacking(cards)
        reason = f"fewer than {most} {fit} {kinds}" if available else f"no {fit} {kind}"
    else:
        return None
    return Unschedulable(reason, unresolvable=True)


def _lacking(cards: CardSet) -> str:
    """Return what withheld cards are not, for messages: ``healthy``, ``uncordoned`` or both."""
    pairs = zip(cards.withheld, cards.excluded, strict=True)
    cordoned = {why == REASON for why, excluded in pairs if why and not excluded}
    words = {False: "healthy", True: "uncordoned"}
    return " and ".join(words[each] for each in sorted(cordoned))


def _not_enough_free(pod_class: PodClass, cards: CardSet, free: Rows) -> Unschedulable:
    """Return why a pod does not fit on a node; the caller knows that it does not."""
    wishes = pod_class.wishes
    kind, kinds = _card_nouns(wishes)
    for need in pod_class.needs:
        if len(cards.fitting(free, need)) < need.demand.cards:
            uncounted = cards.for_shares and not may_get_instances(need.demand)
            besides = ", not counting MIG instances" * bool(uncounted)
            return Unschedulable(_too_full(need, kind, kinds) + besides, unresolvable=False)
    reason = f"no {kind} is left for one of {len(pod_class.needs)} containers"
    largest = max(pod_class.needs, key=lambda need: need.demand.cards)
    if wishes.link and largest.demand.cards > 1:
        are_free = f"have {_amounts(largest)} free" if largest.demand.is_share else "are free"
        phrase, others = LINK_PHRASES[wishes.link], ""
        if _are_only_ungrouped(largest, cards, free, wishes.link):
            phrase, others = "of one NVLink group", _UNGROUPED
        reason = f"no {largest.demand.cards} {kinds} {phrase} {are_free}{others}"
    return Unschedulable(reason, unresolvable=False)


def _are_only_ungrouped(need: CardNeed, cards: CardSet, free: Rows, link: str) -> bool:
    """Return whether enough cards are connected, but by claims are not in one group."""
    fitting = cards.fitting(free, need)
    largest, ungrouped = (
        max(map(len, links.connected(fitting, link)), default=0)
        for links in (cards.links, cards.links.ungrouped)
    )
    return largest < need.demand.cards <= ungrouped


_UNGROUPED = "; NVLinks connect enough others, but a claim gets cards of one group"
_UNITS = ("core", "block")
_INSTANCES = "only MIG instances, which use-gpu-type or use-gpu-uuid must name for such a request"


def _card_nouns(wishes: Wishes) -> tuple[str, str]:
    """Return the words for the cards that the wishes allow, singular and plural."""
    return f"card{_of_type(wishes)}", f"cards{_of_type(wishes)}"


def _of_type(wishes: Wishes) -> str:
    return f" of type {' or '.join(wishes.use_types)}" if wishes.use_types else ""


def _all_excluded(cards: CardSet, wishes: Wishes) -> str:
    if "use-gpu-type" in cards.excluded:
        return f"no card{_of_type(wishes)}"
    if "use-gpu-uuid" in cards.excluded:
        return "no card that use-gpu-uuid names"
    return f"no card that {min(cards.excluded)} allows"


def _too_full(need: CardNeed, kind: str, kinds: str) -> str:
    wanted = _amounts(need)
    if need.demand.cards == 1:
        return f"no {kind} has {wanted} free"
    return f"fewer than {need.demand.cards} {kinds} have {wanted} free"


def _amounts(need: CardNeed) -> str:
    """Return what a container needs of each card, as text."""
    pairs = zip(need.per_card, _UNITS, strict=True)
    return " and ".join(format_count(count, unit) for count, unit in pairs if count)
