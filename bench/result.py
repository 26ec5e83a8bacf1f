"""What a question answers with: tables for people, figures for programs."""

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Cell = str | int | float


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its title, the columns, the rows, and what is to be said below it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal that the project has set itself, and what was measured."""

    what: str
    limit: float
    measured: float

    @property
    def met(self) -> bool:
        """Whether what was measured is within the limit."""
        return self.measured <= self.limit


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to one question.

    Attributes:
        figures: further numbers, for the JSON alone.
    """

    name: str
    tables: Sequence[Table]
    goals: Sequence[Goal] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self, machine: "Machine", seconds: float) -> dict[str, Any]:
        """Return what goes into the JSON file."""
        return {
            "name": self.name,
            "machine": asdict(machine),
            "seconds": round(seconds, 1),
            "tables": [asdict(each) for each in self.tables],
            "goals": [{**asdict(each), "met": each.met} for each in self.goals],
            "figures": dict(self.figures),
        }


@dataclass(frozen=True, slots=True)
class Machine:
    """What the numbers were measured on."""

    cpu: str
    cores: int
    python: str
    system: str

    def __str__(self) -> str:
        return f"{self.cpu}, {self.cores} cores, Python {self.python}, {self.system}"


def this_machine() -> Machine:
    """Describe this machine; cores are those this process may run on."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*: *(.+)$", text, re.MULTILINE)  # not every CPU has one
    return Machine(
        found[1] if found else platform.processor() or platform.machine(),
        len(os.sched_getaffinity(0)),
        platform.python_version(),
        f"{platform.system()} {platform.release()}",
    )
