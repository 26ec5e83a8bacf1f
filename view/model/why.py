"""One pod's way, step by step, and for one that does not run what it lacks. Pure."""

import re
from collections.abc import Sequence

from contract.names import Names
from placement.cluster.holdings import Provenance
from placement.scoring import Policy
from view.model.changes import find_changes, no_change
from view.model.occupancy import Occupancy
from view.model.pod_report import known_by
from view.model.pods import PodFacts, time_of
from view.model.reports import (
    CardReport,
    ContainerReport,
    Gap,
    NodeReport,
    PodReport,
    Stage,
)
from view.model.stories import Change, NodeVerdict, PodStory, Step
from view.model.verdicts import fits_first, judge
from view.model.words import cards_in_words, count_of, lost_in_words, name_some, units

_COUNTS = re.compile(r"[0-9]+/[0-9]+ nodes are available")
"""So kube-scheduler begins; its numbers add up to more than there are nodes."""

_DONE, _MISSING, _WRONG = "done", "missing", "wrong"


def tell_story(  # noqa: PLR0913 -- everything that a story depends on, by keyword
    facts: PodFacts,
    report: PodReport,
    nodes: Sequence[Occupancy],
    *,
    gaps: Sequence[Gap],
    names: Names,
    policy: Policy,
    node: NodeReport | None,
    deleted: str = "",
) -> PodStory:
    """Return a pod's way; for one that was *deleted* nothing is looked for any more."""
    looking = not deleted and report.stage in (Stage.WAITING, Stage.REFUSED)
    over = deleted or report.stage in (Stage.SUCCEEDED, Stage.FAILED)
    considered = _considered(facts, () if over else nodes, policy, everywhere=looking)
    fitting = [each.node for each in considered if each.fits]
    changes: tuple[Change, ...] = ()
    nothing = ""
    if looking and nodes and not fitting and not facts.placed.errors:
        changes = find_changes(facts, nodes, names)
        nothing = "" if changes else no_change(facts.placed, nodes)
    return PodStory(
        pod=report,
        summary=(f"was deleted at {deleted}; until then it " if deleted else "")
        + _summary(report, considered, changes),
        steps=tuple(_steps(facts, report)),
        limits=tuple(_limits(facts, report, nodes)),
        errors=facts.placed.errors,
        nodes=considered,
        changes=changes,
        no_change=nothing,
        cards=_cards(report, node),
        gaps=tuple(gaps),
        deleted=deleted,
    )


def _cards(report: PodReport, node: NodeReport | None) -> tuple[CardReport, ...]:
    held = {part.uuid for container in report.containers for part in container.parts}
    ended = report.stage in (Stage.SUCCEEDED, Stage.FAILED, Stage.REFUSED)
    if node is None or ended:
        return ()
    return tuple(card for card in node.cards if card.uuid in held)


def _considered(
    facts: PodFacts, nodes: Sequence[Occupancy], policy: Policy, *, everywhere: bool
) -> tuple[NodeVerdict, ...]:
    pod = facts.placed
    verdicts = [
        judge(facts, each, policy, each.view_without({pod.id.uid}))
        for each in nodes
        if everywhere or each.view.node.name == pod.node
    ]
    return tuple(sorted(verdicts, key=fits_first))


def _summary(
    report: PodReport, considered: Sequence[NodeVerdict], changes: Sequence[Change]
) -> str:
    fitting = [each.node for each in considered if each.fits]
    on = f" on {report.node}" if report.node else ""
    match report.stage:
        case Stage.WAITING:
            text = f"waits: {report.why}"
        case Stage.REFUSED:
            text = f"was refused on {report.node}: {report.why}"
            if fitting:
                text += f". A new pod would fit now on {name_some(fitting)}"
        case Stage.STARTING:
            text = f"is bound to {report.node} and not running yet"
            recorded = any(each.source is Provenance.RECORDED for each in report.containers)
            if report.why:
                text += f": {report.why}"
            elif considered and not fitting and not recorded:
                text += f", and does not fit there now: {considered[0].reason}"
        case Stage.RUNNING:
            text = f"runs on {report.node}" + (f"; {report.why}" if report.why else "")
        case Stage.FAILING:
            text = f"is bound to {report.node} and fails: {report.why}"
        case Stage.SUCCEEDED:
            text = f"has succeeded{on}"
        case Stage.FAILED:
            text = f"has failed{on}: {report.why}"
    if changes:
        text += f". Smallest change: {changes[0].text} (fits on {name_some(changes[0].nodes)})"
    return text


# --- the steps --------------------------------------------------------------------------


def _steps(facts: PodFacts, report: PodReport) -> list[Step]:
    steps = [Step("created", report.created, "created", _DONE), _admitted(facts)]
    steps.append(_bound(facts, report))
    if report.stage is not Stage.WAITING:
        steps.append(_allocated(report))
        if report.stage is not Stage.REFUSED:
            steps.append(_started(facts, report))
    if facts.ended:
        ends = [each.ending.at for each in report.statuses if each.ending]
        good = report.stage is Stage.SUCCEEDED
        text, state = ("succeeded", _DONE) if good else (report.why, _WRONG)
        steps.append(Step("ended", max(ends, default=""), text, state))
    return steps


def _admitted(facts: PodFacts) -> Step:
    stamp = facts.placed.rank.admitted
    at = time_of(stamp)
    if not at:
        text = "no stamp of the webhook: the pod did not pass it"
        return Step("admitted", "", text, _WRONG)
    return Step("admitted", at, "by the webhook", _DONE)


def _bound(facts: PodFacts, report: PodReport) -> Step:
    if not report.node:
        reason, message = facts.unscheduled
        text = ": ".join(
            filter(None, (report.scheduler, reason, f'"{message}"' if message else ""))
        )
        if not message:
            text += " has not said anything yet"
        elif _COUNTS.match(message):
            text += " (a node may be counted under several of its reasons)"
        return Step("bound", "", text, _MISSING)
    text = f"to {report.node} by {report.scheduler}"
    chosen = [f"{name}: {cards_in_words(indices)}" for name, indices in facts.placed.chosen.items()]
    if chosen:
        text += f", which chose {', '.join(chosen)}"
    stamp = facts.placed.rank.bound
    at = time_of(stamp)
    if not at:
        text += "; no stamp: the binding did not pass the webhook"
        return Step("bound", "", text, _WRONG)
    return Step("bound", at, text, _DONE)


def _allocated(report: PodReport) -> Step:
    recorded = [each for each in report.containers if each.source is Provenance.RECORDED]
    if not recorded:
        text = "no record of the agent"
        state = _WRONG if report.stage is Stage.REFUSED else _MISSING
        return Step("allocated", "", text, state)
    lost = any(part.lost for each in report.containers for part in each.parts)
    text = "; ".join(map(_got, report.containers))
    return Step("allocated", "", text, _WRONG if lost else _DONE)


def _got(container: ContainerReport) -> str:
    if not container.parts or container.source is None:
        return f"{container.name}: nothing is recorded"
    there, lost = list[str](), list[str]()
    for part in container.parts:
        if part.lost:
            lost.append(part.uuid)
        else:
            there.append(part.uuid if part.index is None else str(part.index))
    cards = " and ".join(
        [*([cards_in_words(there)] if there else []), *([lost_in_words(lost)] if lost else [])]
    )
    memory = f" and {count_of(container.blocks, 'block')}" if container.blocks else ""
    return (
        f"{container.name}: {count_of(container.cores, 'core')}{memory} of {cards}, "
        f"{known_by(container)}"
    )


def _started(facts: PodFacts, report: PodReport) -> Step:
    started = [each.started for each in report.statuses if each.started]
    wrong = report.stage in (Stage.FAILING, Stage.STARTING) and bool(report.why)
    if not started:
        text = report.why if wrong else "never" if facts.ended else "not yet"
        return Step("started", "", text, _WRONG if wrong or facts.ended else _MISSING)
    text = "started" if facts.ended else report.why or "running"
    return Step("started", min(started), text, _WRONG if wrong else _DONE)


# --- limits -----------------------------------------------------------------------------


def _limits(facts: PodFacts, report: PodReport, nodes: Sequence[Occupancy]) -> list[str]:
    sizes = {
        each.facts.inventory.memory_block
        for each in nodes
        if report.node in ("", each.view.node.name)
    } - {0}
    block = min(sizes) if len(sizes) == 1 else 0
    found = []
    for container in facts.placed.demand.containers:
        asked = container.demand
        memory = f" and {count_of(asked.memory, 'block')}" if asked.memory else ""
        if asked.memory and block:
            memory += f" ({asked.memory * block / 2**30:g} GiB)"
        if not asked.is_share:
            hold = "" if asked.memory else ", no limit of memory"
            found.append(f"{container.name}: {count_of(asked.cards, 'whole card')}{memory}{hold}")
            continue
        more, limit = "", facts.placed.wishes.core_limit
        if limit is not None and limit > asked.cores:
            more = f", up to {limit} while others leave them idle (vcuda-core-limit)"
        found.append(f"{container.name}: {count_of(asked.cores, 'core')}{memory} of one card{more}")
    if found:
        found.append(
            "Nothing stops a container from using more, "
            "unless your admin has switched on enforcement."
        )
        found.append(units(sizes))
    return found
