"""The result as a table for docs/benchmarks.md."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class CheckOutcome(StrEnum):
    """What became of a check."""

    RIGHT = "right"
    WRONG = "wrong"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Row:
    """One check.

    Attributes:
        expected: in words and figures.
        found: the same; where it was skipped, why.
    """

    check: str
    expected: str
    found: str
    outcome: CheckOutcome


def near(check: str, expected: float, found: float, within: float, unit: str) -> Row:
    """Compare a figure with the one that is known."""
    right = abs(found - expected) <= within
    return row(check, f"{expected:.0f} {unit} ± {within:.0f}", f"{found:.0f} {unit}", right=right)


def row(check: str, expected: str, found: str, *, right: bool) -> Row:
    """Return the row of a check that was made."""
    return Row(check, expected, found, CheckOutcome.RIGHT if right else CheckOutcome.WRONG)


def skipped(check: str, why: str) -> Row:
    """Return the row of a check that cannot be made here."""
    return Row(check, "", why, CheckOutcome.SKIPPED)


def render(machine: str, rows: Sequence[Row]) -> str:
    """Write the table, in Markdown."""
    lines = [f"On {machine}:", "", "| check | expected | found | |", "| --- | --- | --- | --- |"]
    for row in rows:
        cells = (each.replace("|", "\\|") for each in (row.check, row.expected, row.found))
        lines.append(f"| {' | '.join(cells)} | {row.outcome} |")
    return "\n".join(lines)
