"""``kubectl gpu top``: what cards and containers hold and use. Pure."""

import math
from collections.abc import Mapping, Sequence

from contract.text import format_count
from view.model.reports import ClusterReport
from view.model.usage import CardUsage, NodeUsage
from view.model.usage_history import SWITCHED_OFF, GroupBy, History, usage_rows
from view.model.words import name_some
from view.terminal.layout import (
    BOLD,
    DIM,
    WARN,
    Cell,
    Column,
    Grid,
    Page,
    TextLine,
    bar,
    cell,
    level,
    line,
    table,
)
from view.terminal.words import short_model

_GIB = 2**30

Cards = Mapping[str, tuple[str, int, str]]
"""Node, index and model of each card, by UUID."""


def show_usage(
    nodes: Sequence[NodeUsage],
    cards: Cards,
    *,
    namespace: str | None = None,
    searched: str = "",
    at: str = "",
) -> Page:
    """Lay out usage by card and by container."""
    page: list[Grid | TextLine] = []
    on = [(node, card) for node in nodes for card in node.cards]
    if on:
        page.append(
            table(
                on,
                (Column("NODE"), lambda row: cell(row[0].node, BOLD)),
                (Column("CARD"), lambda row: _known(row[1].uuid, cards)[1]),
                (Column("MODEL", drop=2), lambda row: short_model(_known(row[1].uuid, cards)[2])),
                (Column("CORES USED"), lambda row: _cores(row[1].cores_used)),
                (Column("", drop=3), lambda row: _bar(row[1].cores_used)),
                (Column("CORES HELD", drop=1), lambda row: f"{row[1].cores_held:g}/100"),
                (Column("MEMORY USED"), lambda row: _memory(row[1].memory_used)),
                (Column("MEMORY HELD", drop=2), lambda row: _held_memory(row[1])),
            )
        )
    present = {*cards, *(card.uuid for _, card in on)}

    def _card(uuid: str) -> str:
        return str(_known(uuid, cards)[1]) + (" (missing)" if uuid not in present else "")

    containers = [
        each for node in nodes for each in node.containers if namespace in (None, each.namespace)
    ]
    containers.sort(key=lambda use: (-(use.cores_used or 0), use.namespace, use.pod, use.container))
    if containers:
        grid = table(
            containers,
            (Column("POD"), lambda use: f"{use.namespace}/{use.pod}"),
            (Column("CONTAINER"), lambda use: use.container),
            (Column("CARDS"), lambda use: ",".join(map(_card, use.cards))),
            (Column("CORES USED"), lambda use: _cores(use.cores_used, use.cores_held)),
            (Column("CORES HELD", drop=1), lambda use: f"{use.cores_held:g}"),
            (Column("MEMORY USED"), lambda use: _memory(use.memory_used)),
            (Column("MEMORY HELD", drop=2), lambda use: f"{use.memory_held / _GIB:.1f} GiB"),
        )
        page += [line(""), grid]
    for node in nodes:
        if node.problem:
            page.append(line(f"{node.node}: {node.problem}", WARN))
    unmeasured = [node.node for node in nodes if not node.problem and not node.measured]
    if unmeasured:
        names = name_some(unmeasured, 5)
        page.append(line(f"Usage is not measured on {names}: only held amounts are shown.", WARN))
    if nodes and at:
        page.append(line(f"Measured at {at} by the agents of these nodes.", DIM))
    if not nodes:
        text = f"No agent found: {searched}. The simulator has none: its agents are not pods."
        page.append(line(text, WARN))
    return page


def _known(uuid: str, cards: Cards) -> tuple[str, int | str, str]:
    return cards.get(uuid, ("", uuid, ""))


def _bar(used: float | None) -> Cell:
    return cell("") if used is None else cell(bar(round(used), 100), level(round(used), 100))


def _held_memory(card: CardUsage) -> str:
    total = card.memory_held + card.memory_free
    return f"{card.memory_held / _GIB:.1f}/{total / _GIB:.1f} GiB"


def _cores(used: float | None, held: float = math.inf) -> Cell:
    """Format used cores; mark a container that uses more than it holds."""
    return cell("-", DIM) if used is None else cell(f"{used:.0f}", WARN if used > held else "")


def _memory(used: float | None) -> Cell:
    return cell("-", DIM) if used is None else cell(f"{used / _GIB:.1f} GiB")


_MOST_PAST = 20


def show_history(
    history: History | None, namespace: str | None = None, *, wide: bool = False
) -> Page:
    """Lay out what pods held and left idle in the last day, the most idle first."""
    if history is None:
        return [line(SWITCHED_OFF, DIM)]
    if history.problem:
        text = f"Usage of the last day: unknown. {history.problem}"
        return [line(""), line(text, WARN)]
    nothing_now = ClusterReport((), (), (), ())
    rows = usage_rows(nothing_now, {}, history, GroupBy.POD, namespace or "")
    rows.sort(key=lambda row: (-(row.idle_hours or 0), -(row.held_hours or 0), row.pod))
    shown = rows if wide else rows[:_MOST_PAST]
    heading = f"Last day ({history.seen / 3600:.1f} hours observed)"
    more = f", {_MOST_PAST} of {format_count(len(rows), 'pod')} shown; all: -o wide"
    grid = table(
        shown,
        (Column("POD"), lambda row: f"{row.namespace}/{row.pod}"),
        (Column("CARD HOURS HELD"), lambda row: _hours(row.held_hours)),
        (Column("CARD HOURS IDLE"), lambda row: _hours(row.idle_hours)),
        (Column("IDLE %"), lambda row: _part(row.idle_share)),
    )
    return [line(""), line(heading + more * (len(shown) < len(rows)), BOLD), grid]


def _hours(hours: float | None) -> str:
    return "unknown" if hours is None else f"{hours:.2f}"


def _part(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.0%}"
