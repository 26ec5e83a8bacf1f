"""What a benchmark prints: the only importer of ``rich`` here."""

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bench.result import Cell, Goal, Machine, Result, Table

_WIDTH_WITHOUT_TERMINAL = 140


class Report:
    """Prints to standard output, in columns."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(highlight=False)
        if not console.is_terminal:
            console = Console(
                file=console.file, width=_WIDTH_WITHOUT_TERMINAL, highlight=False, no_color=True
            )
        self._console = console

    def machine(self, machine: Machine) -> None:
        """Print what the numbers are measured on."""
        self._say(f"Measured on {machine}")

    def result(self, result: Result, seconds: float) -> None:
        """Print the answer to one question."""
        for table in result.tables:
            self._table(table)
        for goal in result.goals:
            self._say(describe_goal(goal))
        self._say(f"{result.name}: {seconds:.0f} s")

    def _say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def _table(self, table: Table) -> None:
        self._console.print()
        self._console.print(Text(table.title, style="bold"))
        printed = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
        for number, title in enumerate(table.columns):
            printed.add_column(title, justify="right" if number else "left")
        for row in table.rows:
            printed.add_row(*(Text(show(cell)) for cell in row))
        self._console.print(printed)
        for note in table.notes:
            self._say(note)


def show(cell: Cell) -> str:
    """Write a cell: three digits are all that a measurement on a shared machine is worth."""
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.3g}"


def describe_goal(goal: Goal) -> str:
    """Write a goal and whether it was met on one line."""
    verdict = "met" if goal.met else "MISSED"
    return f"{verdict}: {goal.what}: {show(goal.measured)}, at most {show(goal.limit)}"
