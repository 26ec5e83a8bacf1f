"""What a question answers with, and how that is printed and written."""

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


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its title, the columns, the rows, and what is to be said below it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to one question.

    Attributes:
        wrong: what may happen on no machine, and did, such as a container that was named wrongly.
    """

    name: str
    tables: Sequence[Table]
    wrong: Sequence[str] = ()


def publish(result: Result, seconds: float, out: Path, printed: Report | None = None) -> None:
    """Print a result, and write it into a JSON file in the folder *out*."""
    printed = printed or Report(width=_WIDTH)
    for table in result.tables:
        printed.heading(table.title)
        printed.table(table.columns, [list(map(_shown, row)) for row in table.rows], counts=True)
        for note in table.notes:
            printed.say(note)
    for each in result.wrong:
        printed.say(f"WRONG: {each}")
    printed.say(f"{result.name}: {seconds:.0f} s, {machine()}")
    out.mkdir(parents=True, exist_ok=True)
    document = asdict(result) | {"seconds": round(seconds, 1), "machine": machine()}
    text = json.dumps(document, indent=2) + "\n"
    (out / f"{result.name}.json").write_text(text, encoding="utf-8")


def _shown(cell: Cell) -> str:
    """Write a cell: three digits are all that a measurement on a shared machine is worth."""
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.3g}"


def machine() -> str:
    """Describe this machine; cores are those this process may run on."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*: *(.+)$", text, re.MULTILINE)  # not every CPU has one
    cpu = found[1] if found else platform.processor() or platform.machine()
    cores, python = len(os.sched_getaffinity(0)), platform.python_version()
    return f"{cpu}, {cores} cores, Python {python}, {platform.system()} {platform.release()}"


def wrong(counts: Mapping[str, int]) -> list[str]:
    """Return, as :attr:`Result.wrong`, what was counted and should be 0."""
    return [f"{what}: {count}" for what, count in counts.items() if count]
