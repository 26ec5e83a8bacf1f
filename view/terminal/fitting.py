"""``kubectl gpu fit``: whether and where a manifest's pod would fit. Pure."""

from collections.abc import Sequence

from view.model.reports import FitReport
from view.model.words import count_of, name_some, summarize
from view.terminal.layout import BAD, BOLD, GOOD, WARN, Cell, Grid, Line, Page, cell, line
from view.terminal.story import show_changes, show_verdicts
from view.terminal.words import ask_of, gaps_in_words

_MOST_NODES = 5
_MOST_CHANGES = 6


def show_fits(reports: Sequence[FitReport], *, wide: bool = False) -> Page:
    """Lay the answers for several manifests out.

    Args:
        reports: one for each object.
        wide: with all nodes.
    """
    page: list[Grid | Line] = []
    for report in reports:
        page += [line("")] if page else []
        page.append(Line((cell(f"{report.kind} {report.name} ", BOLD), _answer(report))))
        page.append(line(f"asks for {ask_of(report.containers)}"))
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
        page += gaps_in_words(reports[0].gaps)
    return page


def _answer(report: FitReport) -> Cell:
    if report.errors:
        return cell("would be refused at its creation", BAD)
    if not report.fits:
        reasons = summarize(each.reason for each in report.nodes)
        return cell(f"fits nowhere: {reasons or 'no node has GPUs'}", BAD)
    nodes = [each.node for each in report.nodes if each.fits]
    where = f"fits on {count_of(len(nodes), 'node')}: {name_some(nodes)}"
    if report.replicas <= 1:
        return cell(where, GOOD)
    enough = report.room >= report.replicas
    return cell(
        f"{where}; {report.room} of its {report.replicas} pods fit together",
        GOOD if enough else WARN,
    )
