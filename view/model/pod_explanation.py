"""Explains one pod: its progress, its limits, and what would let it run. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from contract.names import Names
from contract.text import format_count
from placement.cluster.selectors import ANY_NODE
from placement.first_fit import as_claimed
from placement.scoring import Policy
from view.model.claims import WAITS, TemplateFacts, of_kind, why_no_claim
from view.model.node_fits import NodeFit, fit_on_node, fits_first, refused_by_kind
from view.model.occupancy import Occupancy
from view.model.pod_facts import PodFacts, refusal_text, time_of
from view.model.pod_groups import repeated
from view.model.pod_reasons import is_recorded, join_parts, scheduler_message, why_stopped
from view.model.queues import QueueReport, QueueState
from view.model.reports import (
    CardReport,
    ContainerReport,
    ContainerStatus,
    Gap,
    NodeReport,
    PodReport,
    Stage,
)
from view.model.suggested_changes import (
    NO_SUGGESTIONS,
    SuggestedChange,
    suggest_changes,
)
from view.model.words import (
    ESTIMATES,
    checked,
    clamp,
    evidence_text,
    missing_node,
    name_cards,
    name_lost_cards,
    name_some,
    of_each,
    units,
)

_COUNTS = re.compile(r"[0-9]+/[0-9]+ nodes are available")
"""Start of a message of kube-scheduler, whose numbers may add up to more than all nodes."""

_DONE, _MISSING, _WRONG = "done", "missing", "wrong"
_ENDED = (Stage.SUCCEEDED, Stage.FAILED)
_LOST = "ContainerStatusUnknown"
"""The kubelet's reason for a container that its runtime does not know any more."""
_UNRELEASED = ". If this lasts, the agent or the proxy for claims has left the node"


@dataclass(frozen=True, slots=True)
class ProgressStep:
    """One step of a pod's progress."""

    name: Annotated[
        str,
        "``created``, ``admitted``, ``queued`` (in a queue of Kueue only), ``claimed`` (with a "
        "claim only), ``bound``, ``allocated``, ``started``, ``ended``.",
    ]
    at: Annotated[str, "time; empty if unknown."]
    text: Annotated[str, "what happened, in one line."]
    state: Annotated[str, "``done``, ``missing`` (not yet), or ``wrong``."]


UNLIMITED = "A container can use more than this unless enforcement was enabled before it started."


@dataclass(frozen=True, slots=True)
class PodExplanation:
    """Progress of one pod, and why it does not run."""

    pod: Annotated[PodReport, "the pod."]
    summary: Annotated[str, "its state and the reason in one sentence."]
    steps: Annotated[tuple[ProgressStep, ...], "in order of time."]
    limits: Annotated[tuple[str, ...], "what its containers may use, and the units, in sentences."]
    errors: Annotated[tuple[str, ...], "errors in the request itself, as the webhook words them."]
    warnings: Annotated[
        tuple[str, ...], "annotations and labels that nobody reads, as the webhook words it."
    ]
    nodes: Annotated[
        tuple[NodeFit, ...],
        "candidate cards: of its own node, or of all nodes while it is pending.",
    ]
    changes: Annotated[
        tuple[SuggestedChange, ...],
        "after each of which it would fit, the smallest first; only for pending and refused pods.",
    ]
    no_change: Annotated[str, "a sentence if no change was found; else empty."]
    cards: Annotated[tuple[CardReport, ...], "that it holds, with all their holders."]
    gaps: Annotated[tuple[Gap, ...], "what could not be read."]
    node_problem: Annotated[
        str, "why the node where it holds cards is unavailable; empty if it is not."
    ] = ""
    deleted: Annotated[
        str, "when the pod was deleted; all else is its last known state. Empty while it exists."
    ] = ""
    checked: Annotated[
        str, "what was checked of the nodes, and what was not; empty if no card was looked for."
    ] = ""
    queue: Annotated[
        QueueReport | None,
        "what Kueue has decided about its Workload, while it has no node; ``None`` if it is in no "
        "queue.",
    ] = None


def explain_pod(  # noqa: PLR0913 -- all that an explanation depends on, by keyword
    facts: PodFacts,
    report: PodReport,
    nodes: Sequence[Occupancy],
    *,
    gaps: Sequence[Gap],
    names: Names,
    policy: Policy,
    now: datetime,
    node: NodeReport | None,
    template: TemplateFacts | None = None,
    queue: QueueReport | None = None,
    refused: Sequence[PodReport] = (),
    deleted: str = "",
) -> PodExplanation:
    """Explain a pod; for one that was *deleted* no candidate cards or changes are searched.

    *refused* are its owner's refused pods that were not replaced, *template* is that of its claim,
    *queue* what Kueue has decided about it.
    """
    stage, by_claim = report.stage, bool(report.claim_template)
    pod = as_claimed(facts.info) if by_claim else facts.info
    searching = not deleted and stage in (Stage.PENDING, Stage.REFUSED)
    ended = deleted or stage in _ENDED
    selection = facts.selection if searching else ANY_NODE  # of a bound pod nothing is chosen
    node_fits = [
        refused_by_kind(each, by_claim=by_claim)
        or fit_on_node(pod, each.without({pod.id.uid}), policy, selection)
        for each in nodes
        if not ended and (searching or each.snapshot.node.name == pod.node)
    ]
    node_fits.sort(key=fits_first)
    suitable = of_kind(nodes, by_claim=by_claim)
    suggested = (
        suggest_changes(pod, suitable, names, facts.selection, now=now)
        if searching
        else NO_SUGGESTIONS
    )
    prefix = f"was deleted at {deleted}; before that it " if deleted else ""
    held = {part.uuid for container in report.containers for part in container.parts}
    holds = node is not None and not ended and stage is not Stage.REFUSED
    problem = node.problem if node and holds else ""
    return PodExplanation(
        pod=report,
        summary=prefix + _summary(report, node_fits, suggested.changes, refused, problem),
        steps=tuple(_steps(facts, report, template, queue, node)),
        limits=tuple(_limits(facts, report, nodes)),
        errors=pod.errors,
        warnings=facts.warnings,
        nodes=tuple(node_fits),
        changes=suggested.changes,
        no_change=suggested.nothing,
        cards=tuple(card for card in node.cards if card.uuid in held) if node and holds else (),
        gaps=tuple(gaps),
        node_problem=problem,
        deleted=deleted,
        checked=checked(slices=by_claim) if searching and node_fits else "",
        queue=queue,
    )


def _summary(
    report: PodReport,
    node_fits: Sequence[NodeFit],
    changes: Sequence[SuggestedChange],
    refused: Sequence[PodReport],
    problem: str,
) -> str:
    fitting = [each.node for each in node_fits if each.fits]
    on = f" on {report.node}" if report.node else ""
    often = _often(report, refused)
    match report.stage:
        case Stage.PENDING:
            text = f"is pending: {report.why}"
        case Stage.REFUSED:
            text = f"was refused{on}: {report.why}"
            cause = f"{report.scheduler} does not see cards" if report.misplaced else ""
            text += f". {join_parts(often, cause)}" if often or cause else ""
            if fitting:
                text += f". A new pod would now fit on {name_some(fitting)}"
        case Stage.STARTING:
            text = f"is bound to {report.node} and is not running yet"
            if report.why:
                text += f": {report.why}"
            elif node_fits and not fitting and not is_recorded(report):
                text += f"; it does not fit there now: {node_fits[0].reason}"
        case Stage.RUNNING:
            text = f"runs{on}" + (f", which is unavailable: {problem}" if problem else "")
            text += f"; {report.why}" if report.why else ""
        case Stage.FAILING if report.deleting:
            text = f"is being deleted on {report.node}: {report.why}"
            text += _UNRELEASED if report.claim else ""
        case Stage.FAILING:
            text = f"is bound to {report.node} and fails: {report.why}"
        case Stage.SUCCEEDED:
            text = f"succeeded{on}"
        case Stage.FAILED:
            text = f"failed{on}: {report.why}"
    text += f". {often}" if often and report.stage in (Stage.PENDING, Stage.STARTING) else ""
    if changes:
        text += f". Smallest change: {changes[0].text} (fits on {name_some(changes[0].nodes)})"
    return text


def _often(report: PodReport, refused: Sequence[PodReport]) -> str:
    """Return how often pods of a pod's owner were refused; of another pod also the last reason."""
    again = repeated(refused)
    if not again or report.stage is Stage.REFUSED:
        return again and f"{report.owner} was {again}"
    last = max(refused, key=lambda each: (each.created, each.name))
    why = refusal_text(last.message) or last.reason
    return f"{report.owner} was {again}, the last one because: {why}"


def _steps(
    facts: PodFacts,
    report: PodReport,
    template: TemplateFacts | None,
    queue: QueueReport | None,
    node: NodeReport | None,
) -> Iterator[ProgressStep]:
    yield ProgressStep("created", report.created, "created", _DONE)
    admitted = time_of(facts.info.rank.admitted)
    text = "by the webhook" if admitted else "without a stamp: the webhook was not called"
    yield ProgressStep("admitted", admitted, text, _DONE if admitted else _WRONG)
    if queue is not None:
        yield queued(queue)
    if report.claim_template:
        yield _claimed(report, template)
    yield _bound(facts, report, node)
    if report.stage is Stage.PENDING:
        return
    yield _allocated(facts, report, node)
    if report.stage is not Stage.REFUSED:
        yield _started(facts, report)
    if facts.ended:
        at = max((each.ending.at for each in report.statuses if each.ending), default="")
        good = report.stage is Stage.SUCCEEDED
        yield ProgressStep("ended", at, *(("succeeded", _DONE) if good else (report.why, _WRONG)))


def queued(queue: QueueReport) -> ProgressStep:
    """Return the step of a pod or a Job in a queue of Kueue."""
    if not queue.waits and queue.state is not QueueState.UNKNOWN:
        return ProgressStep("queued", queue.at, queue.text, _DONE)
    state = _WRONG if queue.state is QueueState.INACTIVE else _MISSING
    return ProgressStep("queued", queue.at, queue.text, state)


def _claimed(report: PodReport, template: TemplateFacts | None) -> ProgressStep:
    if report.claim:
        text = f"claim {report.claim}, by template {report.claim_template}"
        return ProgressStep("claimed", "", text, _DONE)
    text = why_no_claim(report, report.events, template)
    waits = any(each.reason == WAITS for each in report.events)
    return ProgressStep("claimed", "", text, _WRONG if waits else _MISSING)


def _bound(facts: PodFacts, report: PodReport, node: NodeReport | None) -> ProgressStep:
    if not report.node:
        reason, message = scheduler_message(facts, report.events)
        text = join_parts(report.scheduler, reason, f'"{message}"' if message else "")
        if not message:
            text += " has not reported anything yet"
        elif _COUNTS.match(message):
            text += " (a node may be counted under several reasons)"
        return ProgressStep("bound", "", text, _MISSING)
    at = time_of(facts.info.rank.bound)
    if report.node_missing:
        return ProgressStep("bound", at, f"to {report.node}: {missing_node(report.node)}", _WRONG)
    text = f"to {report.node} by {report.scheduler}"
    if not at:
        # A manifest's own node causes no such Event. Without a stamp the agent orders pods by less.
        event = next((each for each in report.events if each.reason == "Scheduled"), None)
        if event is not None and event.source == report.scheduler:
            text += ", without a stamp: the webhook was not called for its binding"
            return ProgressStep("bound", event.at, text, _DONE)
        text = (
            f"to {report.node}, without a stamp: its manifest names the node (spec.nodeName), or "
            "the webhook was not called for its binding"
        )
        return ProgressStep("bound", "", text, _WRONG)
    there = {card.index for card in node.cards} if node else set()
    chosen = [
        f"{name}: "
        + name_cards(
            [f"{each}{' (missing)' * (there != set() and each not in there)}" for each in cards]
        )
        for name, cards in facts.info.chosen.items()
    ]
    if chosen:
        text += f", which chose {', '.join(chosen)}"
    return ProgressStep("bound", at, text, _DONE)


def _allocated(facts: PodFacts, report: PodReport, node: NodeReport | None) -> ProgressStep:
    if not is_recorded(report):
        wrong = report.stage in (Stage.REFUSED, Stage.RUNNING)
        text = join_parts("not reported by the agent", _why_unreported(facts, report, node))
        if report.claim and not wrong:
            why = why_stopped(report, report.events)
            text = join_parts("by kube-scheduler; the agent has not prepared the claim", why)
            wrong = bool(why)
        return ProgressStep("allocated", "", text, _WRONG if wrong else _MISSING)
    wrong = any(part.lost for each in report.containers for part in each.parts) or (
        report.stage is Stage.RUNNING
        and any(each.source in ESTIMATES for each in report.containers)
    )
    return ProgressStep(
        "allocated", "", "; ".join(map(_allocation, report.containers)), _WRONG if wrong else _DONE
    )


def _why_unreported(facts: PodFacts, report: PodReport, node: NodeReport | None) -> str:
    """Return why the agent's annotation is not on a pod, as far as its objects show it."""
    unread = [each for each in facts.info.faults if "gpu-allocation" in each]
    if unread:
        return f"its annotation cannot be read: {clamp(unread[0])}"
    if report.stage is Stage.REFUSED:
        return "the pod was refused before"
    if node is not None and node.problem:
        return node.problem
    if report.stage is Stage.RUNNING:
        return "it has just started, lacks a permission or does not run: kubectl gpu doctor"
    return ""


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
    if report.node_missing and started:
        return ProgressStep("started", started, "its node does not exist any more", _WRONG)
    why = why_stopped(report, report.events)
    wrong = report.stage in (Stage.FAILING, Stage.STARTING) and bool(why)
    if report.claim and not is_recorded(report):
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
    if (processes := facts.info.wishes.processes) > 1:
        yield f"With MPS, each of {processes} processes has an equal part (gpu-processes)."
    yield UNLIMITED
    yield units(sizes)
