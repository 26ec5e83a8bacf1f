"""Reasons why a pod is pending, refused or failed, and on which nodes it fits. Pure.

``placement`` decides whether the pod fits on the cards. Other reasons, such as taints and affinity,
are those of kube-scheduler, in its own words.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from signal import Signals
from typing import NamedTuple

from contract.inventory import Amounts
from contract.text import format_count
from placement.capacity import CardNeed, CardSet, shortfall
from placement.cluster.holdings import NodeSnapshot, Provenance
from placement.cluster.plan import plan_pod
from placement.errors import NoPlacement
from placement.first_fit import first_fit
from placement.pods import PodClass, PodInfo
from placement.scoring import Policy
from placement.search import Plan
from view.model.claims import (
    CLAIMS_ONLY,
    CREATED_WITH_ONE,
    NO_CLAIMS,
    NO_DEVICES,
    NOT_CREATED_WITH_ONE,
    NOT_PREPARED,
    UNSEEN,
    TemplateFacts,
    of_kind,
    refusal_by_kind,
    why_no_claim,
)
from view.model.explanation import CardFit, NodeFit
from view.model.occupancy import Occupancy
from view.model.pods import PodFacts, failing, refusal_text
from view.model.reports import (
    ContainerStatus,
    EventReport,
    Gap,
    PodReport,
    Stage,
    Termination,
)
from view.model.words import (
    clamp,
    name_some,
    summarize,
)

_GATED = "SchedulingGated"
_UNSCHEDULED, _VETOED = "FailedScheduling", "GPUStartVetoed"

# --- one line for each pod --------------------------------------------------------------


class PodClassFit(NamedTuple):
    """The nodes on which pods of one class fit, and why they do not fit on the others."""

    nodes: tuple[str, ...]
    short: str


def find_fitting_nodes(
    shape: PodClass, nodes: Sequence[Occupancy], gaps: Sequence[Gap], *, by_claim: bool
) -> PodClassFit:
    """Check all nodes; nodes that serve no GPU pod at all count as one reason.

    Args:
        shape: the class of the pods.
        nodes: all nodes.
        gaps: what could not be read.
        by_claim: whether they have a claim.
    """
    if not nodes:
        unread = [gap.reason for gap in gaps if gap.what == "nodes"]
        known = f"unknown: nodes cannot be read ({unread[0]})" if unread else ""
        return PodClassFit((), known or "no node of this cluster has GPUs")
    suitable = of_kind(nodes, by_claim=by_claim)
    if not suitable:
        return PodClassFit((), CREATED_WITH_ONE if by_claim else NOT_CREATED_WITH_ONE)
    refusal_of = {each.snapshot.node.name: each.refusal(shape) for each in suitable}
    refusals = [refusal.reason for refusal in refusal_of.values() if refusal]
    problems = {each.facts.problem for each in suitable}
    others = [clamp(reason) for reason in refusals if reason not in problems]
    others += [NO_CLAIMS if by_claim else CLAIMS_ONLY] * (len(nodes) - len(suitable))
    unavailable = sum(reason in problems for reason in refusals)
    agents = f"{format_count(unavailable, 'node')} without a working agent" if unavailable else ""
    return PodClassFit(
        tuple(name for name, refusal in refusal_of.items() if refusal is None),
        "; ".join(filter(None, (summarize(others), agents))),
    )


def why_pending(
    facts: PodFacts,
    fit: PodClassFit,
    events: Sequence[EventReport],
    template: TemplateFacts | None,
) -> str:
    """Return why a pod has no node yet.

    Args:
        facts: the pod.
        fit: where pods of its class fit.
        events: its Events, the newest first.
        template: the template of its claim; ``None`` if that was not read.
    """
    reason, message = scheduler_message(facts, events)
    if facts.report.deleting:
        return "it is being deleted"
    if facts.info.errors:
        return facts.info.errors[0]
    if reason == _GATED:
        return f"{_GATED}: {message}"
    no_claim = why_no_claim(facts.report, events, template)
    if no_claim:
        return no_claim
    if fit.nodes:
        status = f': "{message}"' if message else " has not reported anything yet"
        status += f" ({UNSEEN})" * (NO_DEVICES in message)
        return f"it fits on the cards of {name_some(fit.nodes)}; {facts.report.scheduler}{status}"
    evicted = f"; pods of lower priority are evicted for it on {facts.nominated}"
    return fit.short + (evicted if facts.nominated else "")


def scheduler_message(facts: PodFacts, events: Iterable[EventReport]) -> tuple[str, str]:
    """Return reason and message of the condition, or of the newest Event if there is none."""
    if not facts.unscheduled[0]:
        for event in events:
            if event.reason == _UNSCHEDULED:
                return event.reason, event.message
    return facts.unscheduled


def why_stopped(pod: PodReport, events: Iterable[EventReport]) -> str:
    """Return why a pod with a node was refused, fails or failed; empty if nothing is wrong.

    *events* are sorted, the newest first.
    """
    match pod.stage:
        case Stage.SUCCEEDED:
            return ""
        case Stage.REFUSED:
            return refusal_text(pod.message) or pod.reason
        case Stage.FAILED:
            wrong = [each for each in pod.statuses if each.ending and each.ending.exit_code]
            texts = [joined(pod.reason, pod.message), *map(describe_status, wrong)]
            return "; ".join(filter(None, texts)) or "its phase is Failed, without a reason"
        case Stage.STARTING | Stage.FAILING:
            reasons = (_VETOED,) if is_recorded(pod) or not pod.claim else NOT_PREPARED
            for event in events:
                if event.reason in reasons:
                    return event.message
    # A container that runs again is shown too: its last failure may be what a user looks for.
    now = failing(pod.statuses)
    again = [each for each in pod.statuses if each.restarts and each.ending]
    return "; ".join(map(describe_status, [now] if now else again))


def is_recorded(pod: PodReport) -> bool:
    """Return whether the agent has reported the cards of a pod."""
    return any(each.source is Provenance.RECORDED for each in pod.containers)


def describe_status(status: ContainerStatus) -> str:
    """Describe the state of a container: why it waits, how it ended, how often it restarted."""
    texts = [joined(status.reason, status.message)]
    ending = status.ending
    if ending is not None:
        text = ", ".join(filter(None, (ending.reason, f"exit code {status_code(ending)}")))
        last = "" if status.state == "terminated" else "last ended with "
        texts.append(joined(f"{last}{text}", ending.message))
    if status.restarts:
        texts.append(f"restarted {format_count(status.restarts, 'time')}")
    return f"{status.name}: {'; '.join(filter(None, texts)) or status.state or 'unknown'}"


def status_code(ending: Termination) -> str:
    """Format an exit code, with its signal: a runtime returns 128 plus the signal."""
    number = ending.signal or ending.exit_code - 128
    signal = f" ({Signals(number).name})" if number in set(Signals) else ""
    return f"{ending.exit_code}{signal}"


def joined(*parts: str) -> str:
    """Join the parts that are not empty with colons."""
    return ": ".join(filter(None, parts))


# --- nodes and cards --------------------------------------------------------------------


def evaluate_nodes(
    pod: PodInfo, occupancy: Occupancy, policy: Policy, snapshot: NodeSnapshot | None = None
) -> NodeFit:
    """Check whether a pod fits on a node and each of its cards, now or with another *snapshot*."""
    snapshot = snapshot or occupancy.snapshot
    refusal = occupancy.refusal(pod.pod_class, snapshot)
    plan = plan_on(pod, occupancy, policy, snapshot) if refusal is None else None
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


def refuse(occupancy: Occupancy, *, by_claim: bool) -> NodeFit:
    """Return that a node does not serve pods with a claim, or not those without one."""
    reason = refusal_by_kind(occupancy, by_claim=by_claim)
    return NodeFit(occupancy.snapshot.node.name, fits=False, reason=reason, unresolvable=True)


def plan_on(
    pod: PodInfo, occupancy: Occupancy, policy: Policy, snapshot: NodeSnapshot | None = None
) -> Plan | None:
    """Place a pod on a node, as the agent does or, by a claim, kube-scheduler.

    Returns:
        The plan; ``None`` if it does not fit or no placement was found in time.
    """
    snapshot = snapshot or occupancy.snapshot
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
