"""Reasons why a pod is pending, refused or failed, and its progress until then. Pure.

``placement`` decides whether the pod fits on the cards. Other reasons, such as taints and affinity,
are those of kube-scheduler, in its own words.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from signal import Signals
from typing import NamedTuple

from contract.inventory import Amounts
from contract.names import Names
from contract.text import format_count
from placement.capacity import CardNeed, CardSet, shortfall
from placement.cluster.holdings import NodeSnapshot, Provenance
from placement.cluster.plan import plan_pod
from placement.errors import NoPlacement
from placement.pods import PodClass, PodInfo
from placement.scoring import Policy
from placement.search import Plan
from view.model.changes import NO_ADVICE, find_advice
from view.model.claims import (
    CLAIMS_ONLY,
    NO_CLAIMS,
    NO_DEVICES,
    NOT_CREATED_WITH_ONE,
    NOT_PREPARED,
    UNSEEN,
    WAITS,
    TemplateFacts,
    as_claimed,
    first_fit,
    of_kind,
    refusal_by_kind,
    why_no_claim,
)
from view.model.explanation import CardFit, NodeFit, PodExplanation, ProgressStep, SuggestedChange
from view.model.occupancy import Occupancy
from view.model.pods import PodFacts, failing, refusal_text, time_of
from view.model.reports import (
    ContainerReport,
    ContainerStatus,
    EventReport,
    Gap,
    NodeReport,
    PodReport,
    Stage,
    Termination,
)
from view.model.words import (
    ESTIMATES,
    clamp,
    evidence_text,
    name_cards,
    name_lost_cards,
    name_some,
    of_each,
    summarize,
    units,
)

_GATED = "SchedulingGated"
_UNSCHEDULED, _VETOED = "FailedScheduling", "GPUStartVetoed"
_COUNTS = re.compile(r"[0-9]+/[0-9]+ nodes are available")
"""Start of a message of kube-scheduler, whose numbers may add up to more than all nodes."""

_DONE, _MISSING, _WRONG = "done", "missing", "wrong"
_ENDED = (Stage.SUCCEEDED, Stage.FAILED)
_LOST = "ContainerStatusUnknown"
"""The kubelet's reason for a container that its runtime does not know any more."""


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
    if not suitable and not by_claim:
        return PodClassFit((), NOT_CREATED_WITH_ONE)
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
    reason, message = _scheduler_message(facts, events)
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
    return fit.short


def _scheduler_message(facts: PodFacts, events: Iterable[EventReport]) -> tuple[str, str]:
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
            texts = [_joined(pod.reason, pod.message), *map(describe_status, wrong)]
            return "; ".join(filter(None, texts)) or "its phase is Failed, without a reason"
        case Stage.STARTING | Stage.FAILING:
            reasons = (_VETOED,) if _is_recorded(pod) or not pod.claim else NOT_PREPARED
            for event in events:
                if event.reason in reasons:
                    return event.message
    # A container that runs again is shown too: its last failure may be what a user looks for.
    now = failing(pod.statuses)
    again = [each for each in pod.statuses if each.restarts and each.ending]
    return "; ".join(map(describe_status, [now] if now else again))


def _is_recorded(pod: PodReport) -> bool:
    """Return whether the agent has reported the cards of a pod."""
    return any(each.source is Provenance.RECORDED for each in pod.containers)


def describe_status(status: ContainerStatus) -> str:
    """Describe the state of a container: why it waits, how it ended, how often it restarted."""
    texts = [_joined(status.reason, status.message)]
    ending = status.ending
    if ending is not None:
        text = ", ".join(filter(None, (ending.reason, f"exit code {status_code(ending)}")))
        last = "" if status.state == "terminated" else "last ended with "
        texts.append(_joined(f"{last}{text}", ending.message))
    if status.restarts:
        texts.append(f"restarted {format_count(status.restarts, 'time')}")
    return f"{status.name}: {'; '.join(filter(None, texts)) or status.state or 'unknown'}"


def status_code(ending: Termination) -> str:
    """Format an exit code, with its signal: a runtime returns 128 plus the signal."""
    number = ending.signal or ending.exit_code - 128
    signal = f" ({Signals(number).name})" if number in set(Signals) else ""
    return f"{ending.exit_code}{signal}"


def _joined(*parts: str) -> str:
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
        return first_fit(pod, snapshot)
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


# --- the explanation of one pod ---------------------------------------------------------


def explain_pod(  # noqa: PLR0913 -- all that an explanation depends on, by keyword
    facts: PodFacts,
    report: PodReport,
    nodes: Sequence[Occupancy],
    *,
    gaps: Sequence[Gap],
    names: Names,
    policy: Policy,
    node: NodeReport | None,
    template: TemplateFacts | None = None,
    again: str = "",
    deleted: str = "",
) -> PodExplanation:
    """Explain a pod; for one that was *deleted* no candidate cards or changes are searched.

    *again* is how often pods of its owner were refused, *template* is that of its claim, if read.
    """
    stage, by_claim = report.stage, bool(report.claim_template)
    pod = as_claimed(facts.info) if by_claim else facts.info
    searching = not deleted and stage in (Stage.PENDING, Stage.REFUSED)
    ended = deleted or stage in _ENDED
    node_fits = [
        refuse(each, by_claim=by_claim)
        if refusal_by_kind(each, by_claim=by_claim)
        else evaluate_nodes(pod, each, policy, each.snapshot_without({pod.id.uid}))
        for each in nodes
        if not ended and (searching or each.snapshot.node.name == pod.node)
    ]
    node_fits.sort(key=fits_first)
    suitable = of_kind(nodes, by_claim=by_claim)
    advice = find_advice(pod, suitable, names) if searching else NO_ADVICE
    prefix = f"was deleted at {deleted}; before that it " if deleted else ""
    held = {part.uuid for container in report.containers for part in container.parts}
    holds = node is not None and not ended and stage is not Stage.REFUSED
    problem = node.problem if node and holds else ""
    return PodExplanation(
        pod=report,
        summary=prefix + _summary(report, node_fits, advice.changes, again, problem),
        steps=tuple(_steps(facts, report, template)),
        limits=tuple(_limits(facts, report, nodes)),
        errors=pod.errors,
        warnings=facts.warnings,
        nodes=tuple(node_fits),
        changes=advice.changes,
        no_change=advice.nothing,
        cards=tuple(card for card in node.cards if card.uuid in held) if node and holds else (),
        gaps=tuple(gaps),
        node_problem=problem,
        deleted=deleted,
    )


def _summary(
    report: PodReport,
    node_fits: Sequence[NodeFit],
    changes: Sequence[SuggestedChange],
    again: str,
    problem: str,
) -> str:
    fitting = [each.node for each in node_fits if each.fits]
    on = f" on {report.node}" if report.node else ""
    match report.stage:
        case Stage.PENDING:
            text = f"is pending: {report.why}"
        case Stage.REFUSED:
            text = f"was refused{on}: {report.why}"
            cause = f"{report.scheduler} does not see cards" if report.misplaced else ""
            often = f"{report.owner} was {again}" if again else ""
            text += f". {_joined(often, cause)}" if often or cause else ""
            if fitting:
                text += f". A new pod would now fit on {name_some(fitting)}"
        case Stage.STARTING:
            text = f"is bound to {report.node} and is not running yet"
            if report.why:
                text += f": {report.why}"
            elif node_fits and not fitting and not _is_recorded(report):
                text += f"; it does not fit there now: {node_fits[0].reason}"
        case Stage.RUNNING:
            text = f"runs{on}" + (f", which is unavailable: {problem}" if problem else "")
            text += f"; {report.why}" if report.why else ""
        case Stage.FAILING:
            text = f"is bound to {report.node} and fails: {report.why}"
        case Stage.SUCCEEDED:
            text = f"succeeded{on}"
        case Stage.FAILED:
            text = f"failed{on}: {report.why}"
    if changes:
        text += f". Smallest change: {changes[0].text} (fits on {name_some(changes[0].nodes)})"
    return text


def _steps(
    facts: PodFacts, report: PodReport, template: TemplateFacts | None
) -> Iterator[ProgressStep]:
    yield ProgressStep("created", report.created, "created", _DONE)
    admitted = time_of(facts.info.rank.admitted)
    text = "by the webhook" if admitted else "without a stamp: the webhook was not called"
    yield ProgressStep("admitted", admitted, text, _DONE if admitted else _WRONG)
    if report.claim_template:
        yield _claimed(report, template)
    yield _bound(facts, report)
    if report.stage is Stage.PENDING:
        return
    yield _allocated(report)
    if report.stage is not Stage.REFUSED:
        yield _started(facts, report)
    if facts.ended:
        at = max((each.ending.at for each in report.statuses if each.ending), default="")
        good = report.stage is Stage.SUCCEEDED
        yield ProgressStep("ended", at, *(("succeeded", _DONE) if good else (report.why, _WRONG)))


def _claimed(report: PodReport, template: TemplateFacts | None) -> ProgressStep:
    if report.claim:
        text = f"claim {report.claim}, by template {report.claim_template}"
        return ProgressStep("claimed", "", text, _DONE)
    text = why_no_claim(report, report.events, template)
    waits = any(each.reason == WAITS for each in report.events)
    return ProgressStep("claimed", "", text, _WRONG if waits else _MISSING)


def _bound(facts: PodFacts, report: PodReport) -> ProgressStep:
    if not report.node:
        reason, message = _scheduler_message(facts, report.events)
        text = _joined(report.scheduler, reason, f'"{message}"' if message else "")
        if not message:
            text += " has not reported anything yet"
        elif _COUNTS.match(message):
            text += " (a node may be counted under several reasons)"
        return ProgressStep("bound", "", text, _MISSING)
    at = time_of(facts.info.rank.bound)
    if not at:
        text = (
            f"to {report.node}, without a stamp: its manifest names the node (spec.nodeName), or "
            "the webhook was not called for its binding"
        )
        return ProgressStep("bound", "", text, _WRONG)
    text = f"to {report.node} by {report.scheduler}"
    chosen = [f"{name}: {name_cards(indices)}" for name, indices in facts.info.chosen.items()]
    if chosen:
        text += f", which chose {', '.join(chosen)}"
    return ProgressStep("bound", at, text, _DONE)


def _allocated(report: PodReport) -> ProgressStep:
    if not _is_recorded(report):
        wrong = report.stage in (Stage.REFUSED, Stage.RUNNING)
        text = "not reported by the agent"
        if report.claim and not wrong:
            why = why_stopped(report, report.events)
            text = _joined("by kube-scheduler; the agent has not prepared the claim", why)
            wrong = bool(why)
        return ProgressStep("allocated", "", text, _WRONG if wrong else _MISSING)
    wrong = any(part.lost for each in report.containers for part in each.parts) or (
        report.stage is Stage.RUNNING
        and any(each.source in ESTIMATES for each in report.containers)
    )
    return ProgressStep(
        "allocated", "", "; ".join(map(_allocation, report.containers)), _WRONG if wrong else _DONE
    )


def _allocation(container: ContainerReport) -> str:
    if not container.parts:
        return f"{container.name}: nothing reported"
    lost = [part.uuid for part in container.parts if part.lost]
    kept = [
        part.uuid if part.index is None else part.index for part in container.parts if not part.lost
    ]
    cards = [name_cards(kept)] * bool(kept) + [name_lost_cards(lost)] * bool(lost)
    split, each = container.split, "each of " * (container.split > 1)
    return (
        f"{container.name}: {_amounts(container.cores // split, container.blocks // split)} of "
        f"{each}{' and '.join(cards)}, {evidence_text(container)}"
    )


def _amounts(cores: int, blocks: int) -> str:
    return format_count(cores, "core") + (f" and {format_count(blocks, 'block')}" if blocks else "")


def _started(facts: PodFacts, report: PodReport) -> ProgressStep:
    if facts.ended:
        return _starts_of_ended(report.statuses)
    started = min((each.started for each in report.statuses if each.started), default="")
    why = why_stopped(report, report.events)
    wrong = report.stage in (Stage.FAILING, Stage.STARTING) and bool(why)
    if report.claim and not _is_recorded(report):
        wrong = False  # the step before has the reason
    if not started:
        return ProgressStep(
            "started", "", why if wrong else "not yet", _WRONG if wrong else _MISSING
        )
    return ProgressStep("started", started, why or "running", _WRONG if wrong else _DONE)


def _starts_of_ended(statuses: Sequence[ContainerStatus]) -> ProgressStep:
    """Return which containers of a pod that has ended did start."""
    started = min((each.started for each in statuses if each.started), default="")
    without = [each for each in statuses if not each.started]
    lost = [each for each in without if each.ending and each.ending.reason == _LOST]
    never = [
        each.name
        for each in without
        if each not in lost and (each.state == "terminated" or each.ending is None)
    ]
    text = "started" if statuses else "never"
    if never:
        text = f"{', '.join(never)} did not start"
    elif lost:
        text = "unknown: the kubelet has lost the container"
    return ProgressStep("started", started, text, _DONE if text == "started" else _WRONG)


def _limits(facts: PodFacts, report: PodReport, nodes: Sequence[Occupancy]) -> Iterator[str]:
    sizes = {
        each.facts.inventory.memory_block
        for each in nodes
        if report.node in ("", each.snapshot.node.name)
    } - {0}
    block = min(sizes) if len(sizes) == 1 else 0
    for container in facts.info.demand.containers:
        request, limit = container.demand, facts.info.wishes.core_limit
        blocks = request.memory // request.split
        memory = f" and {format_count(blocks, 'block')}" if blocks else ""
        if blocks and block:
            memory += f" ({blocks * block / 2**30:g} GiB)"
        if not request.is_share:
            cards = format_count(request.cards, "whole card")
            yield f"{container.name}: {cards}{memory or ', no memory limit'}"
            continue
        cores, cards = request.cores_per_card, of_each(request.split) or " of one card"
        text = f"{container.name}: {format_count(cores, 'core')}{memory}{cards}"
        if limit is not None and limit > cores:
            text += f", up to {limit} while others do not use theirs (vcuda-core-limit)"
        yield text
    yield "A container can use more than this unless your admin has enabled enforcement."
    yield units(sizes)
