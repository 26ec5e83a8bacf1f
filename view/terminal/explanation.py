"""``kubectl gpu explain`` and ``fit``: a pod's way, what would help, and what would fit. Pure."""

from collections.abc import Sequence
from datetime import datetime

from view.model.changes import how_to_make
from view.model.explanation import (
    CardFit,
    FitReport,
    FitResult,
    NodeFit,
    PodExplanation,
    SuggestedChange,
)
from view.model.reports import ContainerStatus, PodReport, Stage
from view.model.why import status_code
from view.model.words import age, cards_in_words, count_of, name_some
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
from view.terminal.words import STAGES, ranges, requests_of, short_model

_MARKS = {
    "done": cell("\u2713", GOOD),
    "missing": cell("\u2026", WARN),
    "wrong": cell("\u2717", BAD),
}
_MOST_NODES = 8
_MOST_CHANGES = 6
_MOST_EVENTS = 8


def show_explanation(story: PodExplanation, now: datetime, *, wide: bool = False) -> Page:
    """Lay a pod's way out."""
    pod, name = story.pod, f"{story.pod.namespace}/{story.pod.name}"
    page: list[Grid | TextLine] = [
        TextLine((cell(f"Pod {name} ", BOLD), cell(story.summary, STAGES[pod.stage]))),
        line(f"asks for {requests_of(pod.containers)}" + _wishes(story) + _since(pod, now)),
    ]
    if story.deleted:
        page.insert(
            0, line(f"Deleted at {story.deleted}: what follows was known then", f"bold {BAD}")
        )
    page += [line(f"wrong: {each}", BAD, indent=2) for each in story.errors]
    if story.changes:
        page += [line(""), line("What would let it run, the smallest first", BOLD)]
        page += show_changes(story.changes, most=None if wide else _MOST_CHANGES)
        how = how_to_make(story.changes)
        page += [line(how, DIM, indent=2)] if how else []
    if story.no_change:
        page += [line(""), line(story.no_change)]
    page += [line(""), line("What has happened", BOLD)]
    page.append(
        table(
            story.steps,
            (Column(""), lambda step: _MARKS[step.state]),
            (Column("STEP"), lambda step: step.name),
            (Column("WHEN", drop=1), lambda step: cell(step.at, DIM)),
            (Column("WHAT", wraps=True), lambda step: step.text),
        )
    )
    page += _containers(pod)
    if story.limits:
        page += [line(""), line("Limits", BOLD), *(line(each, indent=2) for each in story.limits)]
    if story.cards:
        page += [line(""), line(f"Its cards on {pod.node}", BOLD), show_cards(story.cards)]
    if story.nodes and not story.cards:
        page += [line(""), line(_heading(story), BOLD)]
        page += show_verdicts(story.nodes, most=None if wide else _MOST_NODES)
    return [*page, *_events(story, wide=wide)]


def _containers(pod: PodReport) -> list[Grid | TextLine]:
    """Lay out how the containers stand, where that is more than that they run."""
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
                status_code(each.ending) if each.ending else "", _ended_wrongly(each)
            ),
        ),
        (Column("ENDED", drop=1), lambda each: cell(each.ending.at if each.ending else "", DIM)),
        (Column("WHY", wraps=True), _why),
    )
    status = " ".join(filter(None, (pod.phase, pod.reason, pod.message and f"({pod.message})")))
    heading = line(f"Containers; the pod's phase is {status}", BOLD)
    return [line(""), heading, grid]


def _ended_wrongly(status: ContainerStatus) -> str:
    return BAD if status.ending is not None and status.ending.exit_code != 0 else ""


def _why(status: ContainerStatus) -> str:
    end = status.ending
    said = [status.reason, status.message, *((end.reason, end.message) if end else ())]
    return ": ".join(filter(None, said))


def _wishes(story: PodExplanation) -> str:
    wishes = [f"{key}={value}" for key, value in story.pod.wishes]
    return f", wishes {', '.join(wishes)}" if wishes else ""


def _since(pod: PodReport, now: datetime) -> str:
    if pod.stage is not Stage.WAITING or not pod.created:
        return ""
    return f"; waiting for {age(pod.created, now)}"


def _heading(story: PodExplanation) -> str:
    if story.pod.stage in (Stage.WAITING, Stage.REFUSED):
        return "Cards considered now"
    return "Cards of its node, as if it had none yet"


def show_changes(changes: Sequence[SuggestedChange], *, most: int | None) -> list[TextLine]:
    """Lay changes out, each with where the pod would fit then."""
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


def show_verdicts(nodes: Sequence[NodeFit], *, most: int | None) -> list[Grid | TextLine]:
    """Lay nodes out, with what each card lacks; nodes and cards that are alike stand together."""
    groups: dict[object, list[NodeFit]] = {}
    for verdict in nodes:
        alike = tuple((card.index, card.model, card.why_not) for card in verdict.cards)
        key = (verdict.placement,) if verdict.fits else (verdict.reason, alike)
        groups.setdefault(key, []).append(verdict)
    rows: list[Row] = []
    for group in list(groups.values())[:most]:
        first = group[0]
        name = cell(name_some([each.node for each in group], 1), BOLD)
        if first.fits:
            placing = (f"{each} on {cards_in_words(cards)}" for each, cards in first.placement)
            rows.append((name, cell("yes", GOOD), cell("; ".join(placing))))
        else:
            rows += [(name, cell("no", BAD), cell(first.reason)), *_cards(first)]
    page: list[Grid | TextLine] = []
    if rows:
        columns = (Column("NODE"), Column("FITS"), Column("WHY", wraps=True))
        page.append(Grid(columns, tuple(rows)))
    if most is not None and len(groups) > most:
        fitting = sum(each.fits for each in nodes)
        rest = f"{len(nodes)} nodes in all, {fitting} of them fit; all of them: -o wide"
        page.append(line(rest, DIM))
    return page


def _cards(verdict: NodeFit) -> list[Row]:
    """Return a row for all cards of a node that are alike and lack the same."""
    alike: dict[tuple[str, str], list[CardFit]] = {}
    for card in verdict.cards:
        alike.setdefault((card.model, card.why_not), []).append(card)
    rows: list[Row] = []
    for (model, why_not), cards in alike.items():
        least = min((card.cores_free, card.blocks_free) for card in cards)
        several = "s" * (len(cards) > 1)
        free = f"{count_of(least[0], 'core')} and {count_of(least[1], 'block')} free"
        free += " at least" if several else ""
        rows.append(
            (
                cell(f"  card{several} {ranges([card.index for card in cards])}"),
                cell("no") if why_not else cell("would do", GOOD),
                cell(f"{short_model(model)}: {why_not or free}", DIM),
            )
        )
    return rows


def _events(story: PodExplanation, *, wide: bool) -> list[Grid | TextLine]:
    events = story.pod.events if wide else story.pod.events[:_MOST_EVENTS]
    if not events:
        return []
    grid = table(
        events,
        (Column("WHEN", drop=1), lambda each: cell(each.at, DIM)),
        (Column("EVENT"), lambda each: cell(each.reason, BAD if each.warning else "")),
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
    """Lay the answers for several manifests out."""
    page: list[Grid | TextLine] = []
    for report in reports:
        page += [line("")] if page else []
        page.append(TextLine((cell(f"{report.kind} {report.name} ", BOLD), _answer_of(report))))
        page.append(line(f"asks for {requests_of(report.containers)}"))
        page += [line(f"kept away: {report.short}", WARN)] if report.room and report.short else []
        page += [line(f"{each}", BAD, indent=2) for each in report.errors]
        if report.changes:
            page.append(line("What would let it fit, the smallest first", BOLD))
            page += show_changes(report.changes, most=None if wide else _MOST_CHANGES)
        page += [line(report.no_change)] if report.no_change else []
        page += show_verdicts(report.nodes, most=None if wide else _MOST_FITTING)
    if reports:
        page.append(
            line(
                "Looked at: cards, and whether a node is cordoned. Not at: taints, node selectors, "
                "affinity, CPU, memory, volumes, quotas, which the scheduler knows."
            )
        )
    return page


def _answer_of(report: FitReport) -> Cell:
    if report.answer is FitResult.INVALID:
        return cell("would be refused at its creation", BAD)
    fitting = [each.node for each in report.nodes if each.fits]
    if report.answer is FitResult.FITS and report.replicas == 1:
        return cell(f"fits on {count_of(len(fitting), 'node')}: {name_some(fitting)}", GOOD)
    pods = f"{report.room} of its {count_of(report.replicas, 'pod')}"
    where = f"on {count_of(len(report.placed), 'node')}: "
    where += name_some(
        [f"{each.node} ({each.pods})" if each.pods > 1 else each.node for each in report.placed]
    )
    if report.answer is FitResult.UNKNOWN:
        known = f": {pods} fit {where}" if report.room else ""
        return cell(f"may fit or not, that is not known{known}", WARN)
    if report.answer is FitResult.FITS:
        many = f"fits with all of its {report.replicas} pods {where}"
        return cell(many if report.replicas else "fits: it has no pods", GOOD)
    if report.room:
        return cell(f"does not fit: {pods} fit {where}", BAD)
    return cell(f"fits nowhere: {report.short if report.nodes else 'no node has GPUs'}", BAD)
