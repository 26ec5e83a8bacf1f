"""The report of a soak, as Markdown. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.e2e.soak.readings import Reading, Trend, longest_series, trend

Row = Sequence[object]


@dataclass(slots=True)
class Report:
    """What is reported: title -> lines, and tables of figures."""

    about: dict[str, str] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    tables: dict[str, tuple[Row, list[Row]]] = field(default_factory=dict)
    traces: list[str] = field(default_factory=list)

    def render(self) -> str:
        parts = ["# Soak", _table(("", ""), list(self.about.items()))]
        parts += ["## Findings", *(f"- {each}" for each in self.findings or ["none"])]
        for title, (head, rows) in self.tables.items():
            parts += [f"## {title}", _table(head, rows) if rows else "none"]
        parts += ["## Stack traces", *(f"```\n{each}\n```" for each in self.traces or ["none"])]
        return "\n\n".join(parts).replace("\n\n- ", "\n- ") + "\n"


def figures(readings: Iterable[Reading], phases: Mapping[str, tuple[float, float]]) -> list[Row]:
    """Return a row for each figure and phase: of the instance that lived longest in it."""
    series: dict[tuple[str, str], list[Reading]] = {}
    for each in readings:
        series.setdefault((each.subject, each.figure), []).append(each)
    rows: list[Row] = []
    for (subject, figure), found in series.items():
        for phase, (began, ended) in phases.items():
            chosen = longest_series(each for each in found if began <= each.at <= ended)
            if (grown := trend(chosen)) is not None:
                rows.append((subject, figure, phase, *_cells(grown)))
    return rows


FIGURES_HEAD = (
    *("subject", "figure", "phase", "start", "middle", "end"),
    *("per hour", "per 1,000 pods", "minutes", "readings"),
)


def _cells(grown: Trend) -> Row:
    return (
        *(_number(each) for each in (grown.first, grown.middle, grown.last)),
        f"{_number(grown.hourly)} ± {_number(grown.error)}",
        _number(grown.by_pods),
        f"{grown.minutes:.0f}",
        grown.count,
    )


def _number(value: float) -> str:
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def _table(head: Row, rows: Sequence[Row]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(str(each).replace('|', '/') for each in line)} |" for line in lines
    )
