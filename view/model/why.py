"""Why a pod waits, was refused or failed, and its way to there; for terminal, page and JSON. Pure.

Whether it fits by its cards is asked of ``placement``. What else keeps it from a node, such as a
taint or an affinity, is kube-scheduler's to say, and is told in its own words.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from signal import Signals
from typing import NamedTuple

from contract.inventory import Amounts
from contract.names import Names
from placement.capacity import CardNeed, CardSet, shortfall
from placement.cluster.holdings import NodeSnapshot, Provenance
from placement.cluster.nodes import Problem
from placement.cluster.plan import plan_pod
from placement.errors import NoPlacement
from placement.pods import PodClass, PodInfo
from placement.scoring import Policy
from placement.search import Plan
from view.model.changes import NO_ADVICE, find_advice
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
    cards_in_words,
    clamp,
    count_of,
    known_by,
    lost_in_words,
    name_some,
    summarize,
    units,
)

_GATED = "SchedulingGated"
_UNSCHEDULED, _VETOED = "FailedScheduling", "GPUStartVetoed"
_COUNTS = re.compile(r"[0-9]+/[0-9]+ nodes are available")
"""So kube-scheduler begins; its numbers add up to more than there are nodes."""

_DONE, _MISSING, _WRONG = "done", "missing", "wrong"
_OVER = (Stage.SUCCEEDED, Stage.FAILED)


# --- in one line ------------------------------------------------------------------------


class PodClassFit(NamedTuple):
    """Where pods of one class fit, and in words why not on the other nodes."""

    nodes: tuple[str, ...]
    short: str


def find_room(shape: PodClass, nodes: Sequence[Occupancy], gaps: Sequence[Gap]) -> PodClassFit:
    """Ask all nodes; those that serve no GPU pod at all are counted as one reason."""
    if not nodes:
        unread = [gap.reason for gap in gaps if gap.what == "nodes"]
        known = f"unknown: nodes cannot be read ({unread[0]})" if unread else ""
        return PodClassFit((), known or "no node of this cluster has GPUs")
    answers = [(each.view.node.name, each.refusal(shape)) for each in nodes]
    refusals = [refusal.reason for _, refusal in answers if refusal]
    problems = {problem.value for problem in Problem}
    others = [clamp(reason) for reason in refusals if reason not in problems]
    unserved = len(refusals) - len(others)
    served = f"{count_of(unserved, 'node')} without a working agent" if unserved else ""
    return PodClassFit(
        tuple(name for name, refusal in answers if refusal is None),
        "; ".join(filter(None, (summarize(others), served))),
    )


def why_waiting(facts: PodFacts, room: PodClassFit, events: Iterable[EventReport]) -> str:
    """Return why a pod has no node yet; of *events* the newest comes first."""
    reason, message = _said_by_scheduler(facts, events)
    if facts.report.deleting:
        return "it is being deleted"
    if facts.placed.errors:
        return facts.placed.errors[0]
    if reason == _GATED:
        return f"{_GATED}: {message}"
    if room.nodes:
        said = f': "{message}"' if message else " has not said anything yet"
        return f"cards are free for it on {name_some(room.nodes)}; {facts.report.scheduler}{said}"
    return room.short


def _said_by_scheduler(facts: PodFacts, events: Iterable[EventReport]) -> tuple[str, str]:
    """Return reason and message of the condition; of the newest Event where there is none."""
    if not facts.unscheduled[0]:
        for event in events:
            if event.reason == _UNSCHEDULED:
                return event.reason, event.message
    return facts.unscheduled


def why_stopped(pod: PodReport, events: Iterable[EventReport]) -> str:
    """Return why a pod that has a node was refused, fails or failed; empty where all is well.

    Of *events* the newest comes first.
    """
    match pod.stage:
        case Stage.SUCCEEDED:
            return ""
        case Stage.REFUSED:
            return refusal_text(pod.message) or pod.reason
        case Stage.FAILED:
            wrong = [each for each in pod.statuses if each.ending and each.ending.exit_code]
            said = [_joined(pod.reason, pod.message), *map(status_in_words, wrong)]
            return "; ".join(filter(None, said)) or "its phase is Failed, and nobody has said why"
        case Stage.STARTING | Stage.FAILING:
            for event in events:
                if event.reason == _VETOED:
                    return event.message
    # Of one that runs again, somebody who looks for what is wrong wants to know that it did not.
    now = failing(pod.statuses)
    again = [each for each in pod.statuses if each.restarts and each.ending]
    return "; ".join(map(status_in_words, [now] if now else again))


def status_in_words(status: ContainerStatus) -> str:
    """Write how a container stands: why it waits, how it ended, how often it was started again."""
    said = [_joined(status.reason, status.message)]
    ending = status.ending
    if ending is not None:
        text = ", ".join(filter(None, (ending.reason, f"exit code {status_code(ending)}")))
        last = "" if status.state == "terminated" else "last ended with "
        said.append(_joined(f"{last}{text}", ending.message))
    if status.restarts:
        said.append(f"restarted {count_of(status.restarts, 'time')}")
    return f"{status.name}: {'; '.join(filter(None, said)) or status.state or 'nothing is told'}"


def status_code(ending: Termination) -> str:
    """Write an exit code, and the signal that it stands for: a runtime adds 128 to it."""
    number = ending.signal or ending.exit_code - 128
    signal = f" ({Signals(number).name})" if number in set(Signals) else ""
    return f"{ending.exit_code}{signal}"


def _joined(*parts: str) -> str:
    return ": ".join(filter(None, parts))


# --- node by node -----------------------------------------------------------------------


def evaluate_nodes(
    pod: PodInfo, occupancy: Occupancy, policy: Policy, view: NodeSnapshot | None = None
) -> NodeFit:
    """Decide about a pod and a node, as it is or as *view* has it, and about each of its cards."""
    view = view or occupancy.view
    refusal = occupancy.refusal(pod.pod_class, view)
    plan = plan_on(pod, view, policy) if refusal is None else None
    index = [card.index for card in view.node.cards]
    return NodeFit(
        view.node.name,
        fits=refusal is None,
        reason=clamp(refusal.reason) if refusal else "",
        unresolvable=refusal.unresolvable if refusal else False,
        cards=_judge_cards(pod, view),
        placement=tuple(
            (name, tuple(sorted(index[at] for at in each.cards)))
            for name, each in (plan or {}).items()
        ),
    )


def fits_first(verdict: NodeFit) -> tuple[bool, bool, str]:
    """Return by what nodes are sorted: those that fit first, those that never will last."""
    return not verdict.fits, verdict.unresolvable, verdict.node


def plan_on(pod: PodInfo, view: NodeSnapshot, policy: Policy) -> Plan | None:
    """Place a pod on a node; ``None`` where it does not fit, or no placing was found in time."""
    try:
        return plan_pod(pod, view.node, view.free, policy)
    except NoPlacement:
        return None


def _judge_cards(pod: PodInfo, view: NodeSnapshot) -> tuple[CardFit, ...]:
    """Return a verdict on each card, for the container that finds the fewest."""
    needs, node = pod.pod_class.needs, view.node
    if not needs:
        return ()
    cards = replace(node.card_set_for(pod.wishes), unhealthy=[each.withheld for each in node.cards])
    reasons = [[_why_not(need, cards, *row) for row in enumerate(view.free)] for need in needs]
    spare = [row.count("") - need.demand.cards for row, need in zip(reasons, needs, strict=True)]
    tightest = spare.index(min(spare))
    name = pod.demand.containers[tightest].name
    return tuple(
        CardFit(card.index, card.uuid, card.model, row.cores, row.memory, name, reason)
        for card, row, reason in zip(node.cards, view.free, reasons[tightest], strict=True)
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


# --- a pod's way ------------------------------------------------------------------------


def explain_pod(  # noqa: PLR0913 -- everything that a story depends on, by keyword
    facts: PodFacts,
    report: PodReport,
    nodes: Sequence[Occupancy],
    *,
    gaps: Sequence[Gap],
    names: Names,
    policy: Policy,
    node: NodeReport | None,
    deleted: str = "",
) -> PodExplanation:
    """Return a pod's way; for one that was *deleted* nothing is looked for any more."""
    pod, stage = facts.placed, report.stage
    looking = not deleted and stage in (Stage.WAITING, Stage.REFUSED)
    over = deleted or stage in _OVER
    verdicts = [
        evaluate_nodes(pod, each, policy, each.view_without({pod.id.uid}))
        for each in nodes
        if not over and (looking or each.view.node.name == pod.node)
    ]
    verdicts.sort(key=fits_first)
    advice = find_advice(pod, nodes, names) if looking else NO_ADVICE
    before = f"was deleted at {deleted}; until then it " if deleted else ""
    held = {part.uuid for container in report.containers for part in container.parts}
    holds = node is not None and not over and stage is not Stage.REFUSED
    return PodExplanation(
        pod=report,
        summary=before + _summary(report, verdicts, advice.changes),
        steps=tuple(_steps(facts, report)),
        limits=tuple(_limits(facts, report, nodes)),
        errors=pod.errors,
        nodes=tuple(verdicts),
        changes=advice.changes,
        no_change=advice.nothing,
        cards=tuple(card for card in node.cards if card.uuid in held) if node and holds else (),
        gaps=tuple(gaps),
        deleted=deleted,
    )


def _summary(
    report: PodReport, verdicts: Sequence[NodeFit], changes: Sequence[SuggestedChange]
) -> str:
    fitting = [each.node for each in verdicts if each.fits]
    on = f" on {report.node}" if report.node else ""
    match report.stage:
        case Stage.WAITING:
            text = f"waits: {report.why}"
        case Stage.REFUSED:
            text = f"was refused{on}: {report.why}"
            if fitting:
                text += f". A new pod would fit now on {name_some(fitting)}"
        case Stage.STARTING:
            text = f"is bound to {report.node} and not running yet"
            recorded = any(each.source is Provenance.RECORDED for each in report.containers)
            if report.why:
                text += f": {report.why}"
            elif verdicts and not fitting and not recorded:
                text += f", and does not fit there now: {verdicts[0].reason}"
        case Stage.RUNNING:
            text = f"runs{on}" + (f"; {report.why}" if report.why else "")
        case Stage.FAILING:
            text = f"is bound to {report.node} and fails: {report.why}"
        case Stage.SUCCEEDED:
            text = f"has succeeded{on}"
        case Stage.FAILED:
            text = f"has failed{on}: {report.why}"
    if changes:
        text += f". Smallest change: {changes[0].text} (fits on {name_some(changes[0].nodes)})"
    return text


def _steps(facts: PodFacts, report: PodReport) -> Iterator[ProgressStep]:
    yield ProgressStep("created", report.created, "created", _DONE)
    admitted = time_of(facts.placed.rank.admitted)
    text = "by the webhook" if admitted else "no stamp of the webhook: the pod did not pass it"
    yield ProgressStep("admitted", admitted, text, _DONE if admitted else _WRONG)
    yield _bound(facts, report)
    if report.stage is Stage.WAITING:
        return
    yield _allocated(report)
    if report.stage is not Stage.REFUSED:
        yield _started(facts, report)
    if facts.ended:
        at = max((each.ending.at for each in report.statuses if each.ending), default="")
        good = report.stage is Stage.SUCCEEDED
        yield ProgressStep("ended", at, *(("succeeded", _DONE) if good else (report.why, _WRONG)))


def _bound(facts: PodFacts, report: PodReport) -> ProgressStep:
    if not report.node:
        reason, message = _said_by_scheduler(facts, report.events)
        text = _joined(report.scheduler, reason, f'"{message}"' if message else "")
        if not message:
            text += " has not said anything yet"
        elif _COUNTS.match(message):
            text += " (a node may be counted under several of its reasons)"
        return ProgressStep("bound", "", text, _MISSING)
    text = f"to {report.node} by {report.scheduler}"
    chosen = [f"{name}: {cards_in_words(indices)}" for name, indices in facts.placed.chosen.items()]
    if chosen:
        text += f", which chose {', '.join(chosen)}"
    at = time_of(facts.placed.rank.bound)
    if not at:
        return ProgressStep(
            "bound", "", f"{text}; no stamp: the binding did not pass the webhook", _WRONG
        )
    return ProgressStep("bound", at, text, _DONE)


def _allocated(report: PodReport) -> ProgressStep:
    if not any(each.source is Provenance.RECORDED for each in report.containers):
        state = _WRONG if report.stage is Stage.REFUSED else _MISSING
        return ProgressStep("allocated", "", "no record of the agent", state)
    lost = any(part.lost for each in report.containers for part in each.parts)
    return ProgressStep(
        "allocated", "", "; ".join(map(_got, report.containers)), _WRONG if lost else _DONE
    )


def _got(container: ContainerReport) -> str:
    if not container.parts:
        return f"{container.name}: nothing is recorded"
    lost = [part.uuid for part in container.parts if part.lost]
    there = [
        part.uuid if part.index is None else part.index for part in container.parts if not part.lost
    ]
    cards = [cards_in_words(there)] * bool(there) + [lost_in_words(lost)] * bool(lost)
    return (
        f"{container.name}: {_amounts(container.cores, container.blocks)} of "
        f"{' and '.join(cards)}, {known_by(container)}"
    )


def _amounts(cores: int, blocks: int) -> str:
    return count_of(cores, "core") + (f" and {count_of(blocks, 'block')}" if blocks else "")


def _started(facts: PodFacts, report: PodReport) -> ProgressStep:
    started = min((each.started for each in report.statuses if each.started), default="")
    wrong = report.stage in (Stage.FAILING, Stage.STARTING) and bool(report.why)
    if not started:
        text = report.why if wrong else "never" if facts.ended else "not yet"
        return ProgressStep("started", "", text, _WRONG if wrong or facts.ended else _MISSING)
    text = "started" if facts.ended else report.why or "running"
    return ProgressStep("started", started, text, _WRONG if wrong else _DONE)


def _limits(facts: PodFacts, report: PodReport, nodes: Sequence[Occupancy]) -> Iterator[str]:
    sizes = {
        each.facts.inventory.memory_block
        for each in nodes
        if report.node in ("", each.view.node.name)
    } - {0}
    block = min(sizes) if len(sizes) == 1 else 0
    for container in facts.placed.demand.containers:
        asked, limit = container.demand, facts.placed.wishes.core_limit
        memory = f" and {count_of(asked.memory, 'block')}" if asked.memory else ""
        if asked.memory and block:
            memory += f" ({asked.memory * block / 2**30:g} GiB)"
        if not asked.is_share:
            cards = count_of(asked.cards, "whole card")
            yield f"{container.name}: {cards}{memory or ', no limit of memory'}"
            continue
        text = f"{container.name}: {count_of(asked.cores, 'core')}{memory} of one card"
        if limit is not None and limit > asked.cores:
            text += f", up to {limit} while others leave them idle (vcuda-core-limit)"
        yield text
    yield (
        "Nothing stops a container from using more, unless your admin has switched on enforcement."
    )
    yield units(sizes)
