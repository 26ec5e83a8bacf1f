"""Where a pod fits, and why it does not fit on a node or a card. Pure.

``placement`` decides whether it fits on the cards, and what the pod's own spec excludes. Affinity
to other pods, CPU and the like are the scheduler's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from contract.inventory import Amounts
from contract.text import format_count
from placement.capacity import CardNeed, CardSet, shortfall
from placement.cluster.fit import Unschedulable
from placement.cluster.holdings import NodeSnapshot
from placement.cluster.plan import plan_pod
from placement.cluster.selectors import ANY_NODE, NodeSelection
from placement.errors import NoPlacement
from placement.first_fit import first_fit
from placement.pods import PodClass, PodInfo
from placement.scoring import Policy
from placement.search import Plan
from view.model.claims import (
    CLAIMS_ONLY,
    CREATED_WITH_ONE,
    NO_CLAIMS,
    NOT_CREATED_WITH_ONE,
    of_kind,
)
from view.model.occupancy import Occupancy
from view.model.reports import Gap
from view.model.words import clamp, summarize


@dataclass(frozen=True, slots=True)
class CardFit:
    """Whether one container of a pod fits on one card."""

    index: Annotated[int, "of the card."]
    uuid: Annotated[str, "of the card."]
    model: Annotated[str, "of the card."]
    cores_free: Annotated[int, "hundredths that are free for this pod."]
    blocks_free: Annotated[int, "memory blocks that are free for this pod."]
    container: Annotated[str, "name of the container: the one that fits on the fewest cards."]
    why_not: Annotated[str, "why the container does not fit; empty if it fits."]


@dataclass(frozen=True, slots=True)
class NodeFit:
    """Whether a pod fits on one node."""

    node: Annotated[str, "its name."]
    fits: Annotated[
        bool,
        "whether all containers of the pod fit on its cards, it is Ready and not cordoned, and the "
        "pod's own spec does not exclude it.",
    ]
    reason: Annotated[str, "why not, as the scheduler extender words it; empty if it fits."]
    unresolvable: Annotated[bool, "whether deleting pods would not help."]
    cards: Annotated[tuple[CardFit, ...], "its cards."] = ()
    placement: Annotated[
        tuple[tuple[str, tuple[int, ...]], ...],
        "if it fits, the cards that each container would get: name and indices.",
    ] = ()


class PodClassFit(NamedTuple):
    """The nodes on which pods of one class fit, and why they do not fit on the others.

    *excluded* are nodes on whose cards they would fit, but that their own spec excludes.
    """

    nodes: tuple[str, ...]
    short: str
    excluded: tuple[str, ...] = ()


def find_fitting_nodes(
    shape: PodClass,
    nodes: Sequence[Occupancy],
    gaps: Sequence[Gap],
    selection: NodeSelection = ANY_NODE,
    *,
    by_claim: bool,
) -> PodClassFit:
    """Check all nodes for pods of a class and with a selection.

    Nodes that serve no GPU pod at all are one reason.
    """
    if not nodes:
        unread = [gap.reason for gap in gaps if gap.what == "nodes"]
        known = f"unknown: nodes cannot be read ({unread[0]})" if unread else ""
        return PodClassFit((), known or "no node of this cluster has GPUs")
    suitable = of_kind(nodes, by_claim=by_claim)
    if not suitable:
        return PodClassFit((), CREATED_WITH_ONE if by_claim else NOT_CREATED_WITH_ONE)
    refusals, fitting, excluded = list[str](), list[str](), list[str]()
    for each in suitable:
        refusal, why = each.refusal(shape), excluded_by(selection, each)
        if refusal is None:
            (excluded if why else fitting).append(each.snapshot.node.name)
        if reason := _EXCLUDED + why if why else refusal.reason if refusal else "":
            refusals.append(reason)
    problems = {each.facts.problem for each in suitable}
    others = [clamp(reason) for reason in refusals if reason not in problems]
    others += [NO_CLAIMS if by_claim else CLAIMS_ONLY] * (len(nodes) - len(suitable))
    unavailable = sum(reason in problems for reason in refusals)
    agents = f"{format_count(unavailable, 'node')} without a working agent" if unavailable else ""
    return PodClassFit(
        tuple(fitting),
        "; ".join(filter(None, (summarize(others), agents))),
        tuple(excluded),
    )


_EXCLUDED = "excluded by its own spec: "


def excluded_by(selection: NodeSelection, occupancy: Occupancy) -> str:
    """Return by what the spec of a pod excludes a node, in words; empty if it does not."""
    facts = occupancy.facts
    return clamp(selection.excludes(facts.node.name, facts.labels, facts.taints))


def after_gates(selection: NodeSelection, then: str) -> str:
    """Return for which scheduling gates a pod waits, and what *then* is."""
    gates = clamp(", ".join(selection.gates))
    return f"it waits for its scheduling gates ({gates}) to be removed; then it {then}"


def refusal_of(
    pod: PodInfo, occupancy: Occupancy, selection: NodeSelection
) -> Unschedulable | None:
    """Return why a pod does not fit on a node that its own spec may exclude; ``None`` if it fits.

    What its spec excludes is named first: free cards do not help there.
    """
    if why := excluded_by(selection, occupancy):
        return Unschedulable(_EXCLUDED + why, unresolvable=True)
    return occupancy.refusal(pod.pod_class)


def fit_on_node(
    pod: PodInfo, occupancy: Occupancy, policy: Policy, selection: NodeSelection = ANY_NODE
) -> NodeFit:
    """Check whether a pod fits on a node and each of its cards."""
    snapshot, refusal = occupancy.snapshot, refusal_of(pod, occupancy, selection)
    plan = plan_on(pod, occupancy, policy) if refusal is None else None
    index = [card.index for card in snapshot.node.cards]
    return NodeFit(
        snapshot.node.name,
        fits=refusal is None,
        reason=clamp(refusal.reason) if refusal else "",
        unresolvable=refusal.unresolvable if refusal else False,
        cards=_card_fits(pod, snapshot),
        placement=tuple(
            (name, tuple(sorted(index[at] for at in each.cards)))
            for name, each in (plan or {}).items()
        ),
    )


def fits_first(node_fit: NodeFit) -> tuple[bool, bool, str]:
    """Return the sort key of a node: those that fit first, unresolvable ones last."""
    return not node_fit.fits, node_fit.unresolvable, node_fit.node


def refused_by_kind(occupancy: Occupancy, *, by_claim: bool) -> NodeFit | None:
    """Return that a node serves no pods with a claim, or none without one; ``None`` if it does."""
    if by_claim == occupancy.facts.serves_claims:
        return None
    reason = NO_CLAIMS if by_claim else CLAIMS_ONLY
    return NodeFit(occupancy.snapshot.node.name, fits=False, reason=reason, unresolvable=True)


def plan_on(pod: PodInfo, occupancy: Occupancy, policy: Policy) -> Plan | None:
    """Place a pod on a node, as the agent does or, by a claim, kube-scheduler.

    Returns:
        The plan; ``None`` if it does not fit or no placement was found in time.
    """
    snapshot = occupancy.snapshot
    if occupancy.facts.serves_claims:
        return first_fit(pod, snapshot.node.card_set_for(pod.wishes), snapshot.free)
    try:
        return plan_pod(pod, snapshot.node, snapshot.free, policy)
    except NoPlacement:
        return None


def _card_fits(pod: PodInfo, snapshot: NodeSnapshot) -> tuple[CardFit, ...]:
    """Check each card for the container that fits on the fewest cards."""
    needs, node = pod.pod_class.needs, snapshot.node
    if not needs:
        return ()
    cards = replace(node.card_set_for(pod.wishes), withheld=[each.withheld for each in node.cards])
    reasons = [[_why_not(need, cards, *row) for row in enumerate(snapshot.free)] for need in needs]
    spare = [row.count("") - need.demand.cards for row, need in zip(reasons, needs, strict=True)]
    tightest = spare.index(min(spare))
    name = pod.demand.containers[tightest].name
    return tuple(
        CardFit(card.index, card.uuid, card.model, row.cores, row.memory, name, reason)
        for card, row, reason in zip(node.cards, snapshot.free, reasons[tightest], strict=True)
    )


def _why_not(need: CardNeed, cards: CardSet, position: int, free: Amounts) -> str:
    """Return why a container does not fit on a card, with all that is missing; empty if it fits.

    The agent's own text is not used: "40 of 60 cores free" reads like a card with 60 cores.
    """
    first = shortfall(need, cards, position, free)
    if first is None or first.free is None:
        return clamp(str(first or ""))
    lacks = [
        f"{format_count(amount, unit)} free, {count} needed"
        for amount, count, unit in zip(free, need.per_card, ("core", "block"), strict=True)
        if amount < count
    ]
    return "; ".join(lacks)
