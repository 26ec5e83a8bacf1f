"""``kubectl gpu fit``: whether and where a manifest's pod would fit. Pure."""

from collections.abc import Sequence

from view.model.reports import Answer, FitReport
from view.model.words import count_of, name_some
from view.terminal.layout import BAD, BOLD, GOOD, WARN, Cell, Grid, Line, Page, cell, line
from view.terminal.story import show_changes, show_verdicts
from view.terminal.words import ask_of

_MOST_NODES = 5
_MOST_CHANGES = 6


def show_fits(reports: Sequence[FitReport], *, wide: bool = False) -> Page:
    """Lay the answers for several manifests out."""
    page: list[Grid | Line] = []
    for report in reports:
        page += [line("")] if page else []
        page.append(Line((cell(f"{report.kind} {report.name} ", BOLD), _answer(report))))
        page.append(line(f"asks for {ask_of(report.containers)}"))
        page += [line(f"kept away: {report.short}", WARN)] if report.room and report.short else []
        page += [line(f"{each}", BAD, indent=2) for each in report.errors]
        if report.changes:
            page.append(line("What would let it fit, the smallest first", BOLD))
            page += show_changes(report.changes, most=None if wide else _MOST_CHANGES)
        page += [line(report.no_change)] if report.no_change else []
        page += show_verdicts(report.nodes, most=None if wide else _MOST_NODES)
    if reports:
        page.append(
            line(
                "Looked at: cards, node selector, required node affinity, taints. "
                "Not at: CPU, memory, volumes, quotas, other pods' affinity."
            )
        )
    return page


def _answer(report: FitReport) -> Cell:
    if report.answer is Answer.INVALID:
        return cell("would be refused at its creation", BAD)
    fitting = [each.node for each in report.nodes if each.fits]
    if report.answer is Answer.FITS and report.replicas == 1:
        return cell(f"fits on {count_of(len(fitting), 'node')}: {name_some(fitting)}", GOOD)
    pods = f"{report.room} of its {count_of(report.replicas, 'pod')}"
    where = f"on {count_of(len(report.placed), 'node')}: "
    where += name_some(
        [f"{each.node} ({each.pods})" if each.pods > 1 else each.node for each in report.placed]
    )
    if report.answer is Answer.UNKNOWN:
        known = f": {pods} fit {where}" if report.room else ""
        return cell(f"may fit or not, that is not known{known}", WARN)
    if report.answer is Answer.FITS:
        many = f"fits with all of its {report.replicas} pods {where}"
        return cell(many if report.replicas else "fits: it has no pods", GOOD)
    if report.room:
        return cell(f"does not fit: {pods} fit {where}", BAD)
    return cell(f"fits nowhere: {report.short if report.nodes else 'no node has GPUs'}", BAD)
