"""The result of a question, and how it is printed and written."""

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from simulator.report import Report

Cell = str | int | float
_WIDTH = 140  # of a file


class NotPossible(Exception):
    """A question cannot be measured here; the message is one line with what is missing."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table: title, columns, rows, and the notes below it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one question.

    Attributes:
        name: the question.
        tables: the measurements.
        wrong: errors that may not happen on any machine, such as a failed review.
    """

    name: str
    tables: Sequence[Table]
    wrong: Sequence[str] = ()


def publish(result: Result, seconds: float, out: Path, printed: Report | None = None) -> None:
    """Print a result, and write it to a JSON file in the folder *out*."""
    printed = printed or Report(width=_WIDTH)
    for table in result.tables:
        printed.heading(table.title)
        printed.table(table.columns, [list(map(_shown, row)) for row in table.rows], counts=True)
        for note in table.notes:
            printed.print_line(note)
    for each in result.wrong:
        printed.print_line(f"WRONG: {each}")
    printed.print_line(f"{result.name}: {seconds:.0f} s, {machine()}")
    out.mkdir(parents=True, exist_ok=True)
    document = asdict(result) | {"seconds": round(seconds, 1), "machine": machine()}
    text = json.dumps(document, indent=2) + "\n"
    (out / f"{result.name}.json").write_text(text, encoding="utf-8")


def _shown(cell: Cell) -> str:
    """Format a cell with three digits: measurements on a shared machine are not more exact."""
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.3g}"


def machine() -> str:
    """Describe this machine; its cores are those that this process may use."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*: *(.+)$", text, re.MULTILINE)  # not every CPU has one
    cpu = found[1] if found else platform.processor() or platform.machine()
    cores, python = len(os.sched_getaffinity(0)), platform.python_version()
    return f"{cpu}, {cores} cores, Python {python}, {platform.system()} {platform.release()}"


def wrong(counts: Mapping[str, int]) -> list[str]:
    """Return the counts that are not 0, as texts for :attr:`Result.wrong`."""
    return [f"{what}: {count}" for what, count in counts.items() if count]
