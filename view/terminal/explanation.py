"""``kubectl gpu explain`` and ``fit``: progress of a pod, changes that help, what fits. Pure."""

from collections.abc import Sequence
from datetime import datetime

from contract.text import format_count
from view.model.manifest_fit import FitReport, FitResult
from view.model.node_fits import CardFit, NodeFit
from view.model.pod_explanation import PodExplanation
from view.model.pod_reasons import format_exit_code
from view.model.queues import QueueState, WorkloadExplanation
from view.model.reports import MAY_REFUSE, ContainerStatus, PodReport, Stage
from view.model.suggested_changes import SuggestedChange, how_to_make
from view.model.words import age, checked, name_cards, name_some
from view.terminal.layout import (
    BAD,
    BOLD,
    DIM,
    GOOD,
    WARN,
    Cell,
    Column,
    Grid,
    Page,
    Row,
    TextLine,
    cell,
    line,
    table,
)
from view.terminal.nodes import show_cards
from view.terminal.words import STAGE_STYLES, ranges, requests_of, short_model

_MARKS = {
    "done": cell("\u2713", GOOD),
    "missing": cell("\u2026", WARN),
    "wrong": cell("\u2717", BAD),
}
_MOST_NODES = 8
_MOST_CHANGES = 6
_MOST_EVENTS = 8


def show_explanation(explanation: PodExplanation, now: datetime, *, wide: bool = False) -> Page:
    """Lay out the explanation of a pod."""
    pod, name = explanation.pod, f"{explanation.pod.namespace}/{explanation.pod.name}"
    page: list[Grid | TextLine] = [
        TextLine((cell(f"Pod {name} ", BOLD), cell(explanation.summary, STAGE_STYLES[pod.stage]))),
        line(f"Requests {requests_of(pod.containers)}" + _wishes(explanation) + _since(pod, now)),
    ]
    page += [line(f"Translated from {pod.translated_from}")] if pod.translated_from else []
    if explanation.deleted:
        page.insert(0, line(f"Deleted at {explanation.deleted}. Last known state:", f"bold {BAD}"))
    page += [line(f"Invalid request: {each}", BAD, indent=2) for each in explanation.errors]
    page += [line(f"Warning: {each}", WARN) for each in explanation.warnings]
    if explanation.changes:
        page += [line(""), line("Ways to make it fit, smallest change first", BOLD)]
        page += show_changes(explanation.changes, most=None if wide else _MOST_CHANGES)
        how = how_to_make(explanation.changes, translated=bool(pod.translated_from))
        page += [line(how, DIM, indent=2)] if how else []
    if explanation.no_change:
        page += [line(""), line(explanation.no_change)]
    page += [line(""), line("Progress", BOLD)]
    page.append(
        table(
            explanation.steps,
            (Column(""), lambda step: _MARKS[step.state]),
            (Column("STEP"), lambda step: step.name),
            (Column("TIME", drop=1), lambda step: cell(step.at, DIM)),
            (Column("DETAIL", wraps=True), lambda step: step.text),
        )
    )
    page += _containers(pod)
    if explanation.limits:
        page += [
            line(""),
            line("Limits", BOLD),
            *(line(each, indent=2) for each in explanation.limits),
        ]
    if explanation.cards:
        grid = show_cards(explanation.cards, available=not explanation.node_problem)
        page += [line(""), line(f"Cards on {pod.node}", BOLD), grid]
    if explanation.nodes and not explanation.cards:
        page += [line(""), line(_heading(explanation), BOLD)]
        page += show_node_fits(explanation.nodes, most=None if wide else _MOST_NODES)
        page += [line(explanation.checked)] if explanation.checked else []
    return [*page, *_events(explanation, wide=wide)]


def show_queued(found: WorkloadExplanation, now: datetime) -> Page:
    """Lay out what Kueue has decided about a Job without pods."""
    queue, name = found.queue, f"{found.kind} {found.namespace}/{found.name}"
    style = GOOD if not queue.waits else BAD if queue.state is QueueState.INACTIVE else WARN
    of = f"Workload {queue.workload}; created" if queue.workload else "Created"
    manifest = f"kubectl get {found.kind.lower()} {found.name} -n {found.namespace} -o yaml"
    return [
        TextLine((cell(f"{name} ", BOLD), cell(f"has no pods: {queue.text}.", style))),
        line(f"{of} {age(found.created, now)} ago"),
        line(f"Whether its pods would fit: {manifest} | kubectl gpu fit -f -"),
    ]


def _containers(pod: PodReport) -> list[Grid | TextLine]:
    """Lay out the states of the containers, unless all run without a restart."""
    if all(each.state == "running" and not each.restarts for each in pod.statuses):
        return []
    grid = table(
        pod.statuses,
        (Column("CONTAINER"), lambda each: each.name),
        (Column("STATE"), lambda each: cell(each.state or "unknown", _ended_wrongly(each))),
        (Column("RESTARTS"), lambda each: each.restarts),
        (
            Column("EXIT CODE"),
            lambda each: cell(
                format_exit_code(each.ending) if each.ending else "", _ended_wrongly(each)
            ),
        ),
        (Column("ENDED", drop=1), lambda each: cell(each.ending.at if each.ending else "", DIM)),
        (Column("REASON", wraps=True), _reason),
    )
    status = " ".join(filter(None, (pod.phase, pod.reason, pod.message and f"({pod.message})")))
    heading = line(f"Containers (phase of the pod: {status})", BOLD)
    return [line(""), heading, grid]


def _ended_wrongly(status: ContainerStatus) -> str:
    return BAD if status.ending is not None and status.ending.exit_code != 0 else ""


def _reason(status: ContainerStatus) -> str:
    end = status.ending
    texts = [status.reason, status.message, *((end.reason, end.message) if end else ())]
    return ": ".join(filter(None, texts))


def _wishes(explanation: PodExplanation) -> str:
    wishes = [f"{key}={value}" for key, value in explanation.pod.wishes]
    return f", wishes {', '.join(wishes)}" if wishes else ""


def _since(pod: PodReport, now: datetime) -> str:
    if pod.stage is not Stage.PENDING or not pod.created:
        return ""
    return f"; pending for {age(pod.created, now)}"


def _heading(explanation: PodExplanation) -> str:
    if explanation.pod.stage in (Stage.PENDING, Stage.REFUSED):
        return "Candidate cards"
    return "Cards of its node, without what this pod holds"


def show_changes(changes: Sequence[SuggestedChange], *, most: int | None) -> list[TextLine]:
    """Lay out changes, each with the nodes on which the pod would then fit."""
    lines = []
    for change in changes[:most]:
        what = ": ".join(filter(None, (change.text, change.manifest)))
        where = f" \u2192 fits on {name_some(change.nodes)}"
        needs = f" (needs {change.needs})" if change.needs else ""
        besides = f"; {change.besides}" if change.besides else ""
        row = (cell(f"- {what}"), cell(where, GOOD), cell(needs + besides, DIM))
        lines.append(TextLine(row, indent=2))
    if len(changes) > len(lines):
        lines.append(line(f"and {len(changes) - len(lines)} more: -o wide", DIM, indent=2))
    return lines


def show_node_fits(nodes: Sequence[NodeFit], *, most: int | None) -> list[Grid | TextLine]:
    """Lay out nodes and what each card lacks; identical nodes and cards share a row."""
    groups: dict[object, list[NodeFit]] = {}
    for fit in nodes:
        alike = tuple((card.index, card.model, card.why_not) for card in fit.cards)
        key = (fit.placement,) if fit.fits else (fit.reason, alike)
        groups.setdefault(key, []).append(fit)
    rows: list[Row] = []
    for group in list(groups.values())[:most]:
        first = group[0]
        name = cell(name_some([each.node for each in group], 1), BOLD)
        if first.fits:
            placement = (f"{each} on {name_cards(cards)}" for each, cards in first.placement)
            rows.append((name, cell("yes", GOOD), cell("; ".join(placement))))
        else:
            rows += [(name, cell("no", BAD), cell(first.reason)), *_cards(first)]
    page: list[Grid | TextLine] = []
    if rows:
        columns = (Column("NODE"), Column("FITS"), Column("DETAIL", wraps=True))
        page.append(Grid(columns, tuple(rows)))
    if most is not None and len(groups) > most:
        fitting = sum(each.fits for each in nodes)
        rest = f"Fits on {fitting} of {format_count(len(nodes), 'node')}; all nodes: -o wide"
        page.append(line(rest, DIM))
    return page


def _cards(fit: NodeFit) -> list[Row]:
    """Return one row for all cards of the same model that lack the same."""
    alike: dict[tuple[str, str], list[CardFit]] = {}
    for card in fit.cards:
        alike.setdefault((card.model, card.why_not), []).append(card)
    rows: list[Row] = []
    for (model, why_not), cards in alike.items():
        least = min((card.cores_free, card.blocks_free) for card in cards)
        several = "s" * (len(cards) > 1)
        free = f"{format_count(least[0], 'core')} and {format_count(least[1], 'block')} free"
        free += " at least" if several else ""
        rows.append(
            (
                cell(f"  card{several} {ranges([card.index for card in cards])}"),
                cell("no") if why_not else cell("yes", GOOD),
                cell(f"{short_model(model)}: {why_not or free}", DIM),
            )
        )
    return rows


def _events(explanation: PodExplanation, *, wide: bool) -> list[Grid | TextLine]:
    events = explanation.pod.events if wide else explanation.pod.events[:_MOST_EVENTS]
    if not events:
        return []
    grid = table(
        events,
        (Column("LAST SEEN", drop=1), lambda each: cell(each.at, DIM)),
        (Column("REASON"), lambda each: cell(each.reason, BAD if each.warning else "")),
        (Column("FROM", drop=2), lambda each: each.source),
        (
            Column("MESSAGE", wraps=True),
            lambda each: each.message + (f" ({each.count} times)" if each.count > 1 else ""),
        ),
    )
    return [line(""), grid]


# --- fit ------------------------------------------------------------------------------

_MOST_FITTING = 5


def show_fits(reports: Sequence[FitReport], *, wide: bool = False) -> Page:
    """Lay out the results for one or more manifests."""
    page: list[Grid | TextLine] = []
    for report in reports:
        page += [line("")] if page else []
        page.append(TextLine((cell(f"{report.kind} {report.name} ", BOLD), _result_of(report))))
        page.append(line(f"Requests {requests_of(report.containers)}"))
        page += (
            [line(f"Not placed: {report.short}", WARN)]
            if report.room and report.short and not report.gates
            else []
        )
        page += [line(f"{each}", BAD, indent=2) for each in report.errors]
        page += [line(f"Warning: {each}", WARN) for each in report.warnings]
        page += [line(f"{report.claims}.")] if report.claims else []
        if report.changes:
            page.append(line("Ways to make it fit, smallest change first", BOLD))
            page += show_changes(report.changes, most=None if wide else _MOST_CHANGES)
        page += [line(report.no_change)] if report.no_change else []
        page += show_node_fits(report.nodes, most=None if wide else _MOST_FITTING)
    if reports:
        page.append(line(checked(slices=any(each.claims for each in reports))))
    return page


def _result_of(report: FitReport) -> Cell:
    if report.gates or report.result is FitResult.INVALID:
        denied = report.result is FitResult.INVALID
        waits = f"does not start yet: {report.short}"
        return cell("would be denied when it is created" if denied else waits, BAD)
    fitting = [each.node for each in report.nodes if each.fits]
    if report.result is FitResult.FITS and report.replicas == 1:
        return cell(f"fits on {format_count(len(fitting), 'node')}: {name_some(fitting)}", GOOD)
    pods = f"{report.room} of {format_count(report.replicas, 'pod')}"
    placed = [
        f"{each.node} ({each.pods})" if each.pods > 1 else each.node for each in report.placed
    ]
    where = f" on {format_count(len(placed), 'node')}: {name_some(placed)}" if placed else ""
    if report.result is FitResult.UNKNOWN:
        known = f": at least {pods} fit{where}" if report.room else ""
        known = known or (f": {report.short}" if MAY_REFUSE in report.short else "")
        return cell(f"unknown{known}", WARN)
    if report.result is FitResult.FITS:
        many = f"fits: all {report.replicas} pods{where}"
        return cell(many if report.replicas else "fits: it has no pods", GOOD)
    if report.room:
        return cell(f"does not fit: {pods} fit{where}", BAD)
    return cell(f"fits on no node: {report.short if report.nodes else 'no node has GPUs'}", BAD)
