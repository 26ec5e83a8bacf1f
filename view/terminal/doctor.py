"""``kubectl gpu doctor``: a line for each check, and the next command."""

from collections.abc import Sequence

from contract.text import format_count
from view.model.doctor.checks import VERSION
from view.model.doctor.facts import Finding, Level
from view.terminal.context import NOT_KNOWN
from view.terminal.layout import BAD, BOLD, DIM, GOOD, WARN, Page, TextLine, cell

_STYLES = {Level.OK: GOOD, Level.WARNING: WARN, Level.ERROR: BAD, Level.UNKNOWN: BOLD}
_LEVEL = 8
"""Characters of the column with the level."""

_MOST_NODES = 5


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 1 if there is an error, 3 if nothing of the installation may be read, else 0.

    The version of Kubernetes is not counted: every user may read it.
    """
    levels = {each.level for each in findings if each.check != VERSION}
    if Level.ERROR in {each.level for each in findings}:
        return 1
    return NOT_KNOWN if levels == {Level.UNKNOWN} else 0


def show_findings(findings: Sequence[Finding]) -> Page:
    """Show one line for each finding. If it is not ok, a second line has the command to run."""
    width = max((len(each.check) for each in findings), default=0)
    page = []
    for each in findings:
        where = ", ".join(each.nodes[:_MOST_NODES])
        more = len(each.nodes) - _MOST_NODES
        where += f" and {format_count(more, 'more node')}" if more > 0 else ""
        page.append(
            TextLine(
                (
                    cell(f"{each.level.value:<{_LEVEL}}", _STYLES[each.level]),
                    cell(f"{each.check:<{width}}  ", BOLD if each.level is Level.ERROR else ""),
                    cell(f"{where}: {each.text}" if where else each.text),
                ),
                hang=_LEVEL + width + 2,
            )
        )
        if each.run:
            page.append(TextLine((cell("next: ", DIM), cell(each.run)), indent=_LEVEL))
    counts = {level: sum(each.level is level for each in findings) for level in Level}
    page.append(TextLine())
    page.append(
        TextLine((cell(", ".join(f"{count} {level.value}" for level, count in counts.items())),))
    )
    return page
