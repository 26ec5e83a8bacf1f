"""The results as a table for docs/benchmarks.md."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class CheckOutcome(StrEnum):
    """The outcome of a check."""

    RIGHT = "right"
    WRONG = "wrong"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Row:
    """One check.

    Attributes:
        check: its name.
        expected: the expected result, as text.
        found: the result, as text; the reason if it was skipped.
        outcome: whether it is right.
    """

    check: str
    expected: str
    found: str
    outcome: CheckOutcome


def near(check: str, expected: float, found: float, within: float, unit: str) -> Row:
    """Return the row that compares a number with the expected one."""
    right = abs(found - expected) <= within
    return row(check, f"{expected:.0f} {unit} ± {within:.0f}", f"{found:.0f} {unit}", right=right)


def row(check: str, expected: str, found: str, *, right: bool) -> Row:
    """Return the row of a check that ran."""
    return Row(check, expected, found, CheckOutcome.RIGHT if right else CheckOutcome.WRONG)


def skipped(check: str, reason: str) -> Row:
    """Return the row of a check that is not possible on this machine."""
    return Row(check, "", reason, CheckOutcome.SKIPPED)


def render(machine: str, rows: Sequence[Row]) -> str:
    """Return the table in Markdown."""
    lines = [f"On {machine}:", "", "| check | expected | found | |", "| --- | --- | --- | --- |"]
    for row in rows:
        cells = (each.replace("|", "\\|") for each in (row.check, row.expected, row.found))
        lines.append(f"| {' | '.join(cells)} | {row.outcome} |")
    return "\n".join(lines)
