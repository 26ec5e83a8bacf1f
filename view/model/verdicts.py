"""Whether a pod fits on a node, and of each card why not: placing's answers, in detail. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from contract.inventory import Amounts
from contract.resource import Resource
from placement.capacity import CardNeed, CardSet, shortfall
from placement.cluster.fit import Unschedulable, check
from placement.cluster.holdings import NodeSnapshot
from placement.cluster.plan import plan_pod
from placement.errors import NoPlacement
from placement.pods import PodInfo
from placement.scoring import Policy
from placement.search import Plan
from view.model.occupancy import Occupancy
from view.model.pods import PodFacts
from view.model.stories import CardVerdict, NodeVerdict
from view.model.words import clamp, count_of


def why_not_on(
    facts: PodFacts, occupancy: Occupancy, view: NodeSnapshot | None = None
) -> Unschedulable | None:
    """Return why a pod does not fit on a node; ``None`` where it does."""
    kept = facts.constraints.keep_from(occupancy.facts.traits)
    if kept:
        return Unschedulable(kept, unresolvable=True)
    answer = check(facts.placed.pod_class, view or occupancy.view)
    return answer if isinstance(answer, Unschedulable) else None


def judge(
    facts: PodFacts, occupancy: Occupancy, policy: Policy, view: NodeSnapshot | None = None
) -> NodeVerdict:
    """Decide about a pod and a node, as it is or as *view* has it, and about each of its cards."""
    view = view or occupancy.view
    refusal = why_not_on(facts, occupancy, view)
    return NodeVerdict(
        view.node.name,
        fits=refusal is None,
        reason=clamp(refusal.reason) if refusal else "",
        for_good=refusal.unresolvable if refusal else False,
        cards=_cards(facts.placed, view),
        placing=_placing(facts.placed, view, policy) if refusal is None else (),
    )


def fits_first(verdict: NodeVerdict) -> tuple[bool, bool, str]:
    """Return by what nodes are sorted: those that fit first, those that never will last."""
    return not verdict.fits, verdict.for_good, verdict.node


def plan_on(pod: PodInfo, view: NodeSnapshot, policy: Policy) -> Plan | None:
    """Place a pod on a node; ``None`` where it does not fit, or no placing was found in time."""
    try:
        return plan_pod(pod, view.node, view.free, policy)
    except NoPlacement:
        return None


def _placing(
    pod: PodInfo, view: NodeSnapshot, policy: Policy
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    plan = plan_on(pod, view, policy)
    index = [card.index for card in view.node.cards]
    return tuple(
        (name, tuple(sorted(index[at] for at in each.cards))) for name, each in (plan or {}).items()
    )


def _cards(pod: PodInfo, view: NodeSnapshot) -> tuple[CardVerdict, ...]:
    """Return a verdict on each card, for the container that finds the fewest."""
    shape = pod.pod_class
    if not shape.needs:
        return ()
    node, free = view.node, view.free
    why = [card.withheld for card in node.cards]
    cards = replace(node.card_set_for(pod.wishes), unhealthy=why)
    reasons = [
        [_why_not(need, cards, at, row) for at, row in enumerate(free)] for need in shape.needs
    ]
    spare = [
        row.count("") - need.demand.cards for row, need in zip(reasons, shape.needs, strict=True)
    ]
    tightest = spare.index(min(spare))
    name = pod.demand.containers[tightest].name
    return tuple(
        CardVerdict(card.index, card.uuid, card.model, row.cores, row.memory, name, reason)
        for card, row, reason in zip(node.cards, free, reasons[tightest], strict=True)
    )


def _why_not(need: CardNeed, cards: CardSet, at: int, free: Amounts) -> str:
    """Return why a card does not fit, with all that it lacks; empty where it fits.

    Not in the agent's words: its "40 of 60 cores free" reads like a card that has 60.
    """
    first = shortfall(need, cards, at, free)
    if first is None or first.free is None:
        return clamp(str(first or ""))
    lacks = [
        f"{count_of(there, unit)} free, {count} needed"
        for there, count, unit in zip(free, need.per_card, ("core", "block"), strict=True)
        if there < count
    ]
    return "; ".join(lacks)


def exceeds(pod: PodInfo, nodes: Sequence[Occupancy]) -> str:
    """Return what a pod asks for that no node has at all, and the most there is; else empty."""
    demands = [each.demand for each in pod.demand.containers]
    cards = max((each.cards for each in demands), default=0)
    most = max((len(each.view.node.cards) for each in nodes), default=0)
    if cards > most:
        return f"no node has {count_of(cards, 'card')}; the largest has {most}"
    blocks = max((each.most_per_card(Resource.MEMORY) for each in demands), default=0)
    most = max((size.memory for each in nodes for size in each.view.node.sizes), default=0)
    if blocks > most:
        return f"no card has {count_of(blocks, 'memory block')}; the largest has {most}"
    return ""
