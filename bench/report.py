"""What a benchmark prints."""

from bench.result import Cell, Goal, Machine, Result
from simulator import report


class Report(report.Report):
    """Prints to standard output, in columns."""

    width_without_terminal = 140

    def machine(self, machine: Machine) -> None:
        """Print what the numbers are measured on."""
        self.say(f"Measured on {machine}")

    def result(self, result: Result, seconds: float) -> None:
        """Print the answer to one question."""
        for table in result.tables:
            self.heading(table.title)
            self.table(table.columns, [list(map(show, row)) for row in table.rows], counts=True)
            for note in table.notes:
                self.say(note)
        for goal in result.goals:
            self.say(describe_goal(goal))
        self.say(f"{result.name}: {seconds:.0f} s")


def show(cell: Cell) -> str:
    """Write a cell: three digits are all that a measurement on a shared machine is worth."""
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.3g}"


def describe_goal(goal: Goal) -> str:
    """Write a goal and whether it was met on one line."""
    verdict = "met" if goal.met else "MISSED"
    return f"{verdict}: {goal.what}: {show(goal.measured)}, at most {show(goal.limit)}"
