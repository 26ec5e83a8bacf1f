"""``kubectl gpu top``: what cards and containers use of what they hold. Pure."""

import math
from collections.abc import Mapping, Sequence

from view.model.reports import ClusterReport
from view.model.usage import CardUsage, ContainerUsage, NodeUsage
from view.model.usage_history import SWITCHED_OFF, GroupBy, History, usage_rows
from view.model.words import count_of
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
"""By UUID: node, index and model."""


def show_use(
    nodes: Sequence[NodeUsage],
    cards: Cards,
    *,
    namespace: str | None = None,
    sought: str = "",
    at: str = "",
) -> Page:
    """Lay use out, by card and by container."""
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
                (Column("HELD", drop=1), lambda row: f"{row[1].cores_held:g}/100"),
                (Column("MEMORY USED"), lambda row: _memory(row[1].memory_used)),
                (Column("HELD", drop=2), lambda row: _held_memory(row[1])),
            )
        )
    containers = [
        each for node in nodes for each in node.containers if namespace in (None, each.namespace)
    ]
    if containers:
        grid = table(
            sorted(containers, key=_most_used_first),
            (Column("POD"), lambda use: f"{use.namespace}/{use.pod}"),
            (Column("CONTAINER"), lambda use: use.container),
            (
                Column("CARDS"),
                lambda use: ",".join(str(_known(uuid, cards)[1]) for uuid in use.cards),
            ),
            (Column("CORES USED"), lambda use: _cores(use.cores_used, use.cores_held)),
            (Column("HELD", drop=1), lambda use: f"{use.cores_held:g}"),
            (Column("MEMORY USED"), lambda use: _memory(use.memory_used)),
            (Column("HELD", drop=2), lambda use: f"{use.memory_held / _GIB:.1f} GiB"),
        )
        page += [line(""), grid]
    for node in nodes:
        if node.problem:
            page.append(line(f"{node.node}: {node.problem}", WARN))
    silent = [node.node for node in nodes if not node.problem and not node.measured]
    if silent:
        some = ", ".join(silent[:5]) + (f" and {len(silent) - 5} more" if len(silent) > 5 else "")
        page.append(
            line(f"Use is not measured on {some}: what is shown there is what is held.", WARN)
        )
    if nodes and at:
        page.append(line(f"Measured at {at}, by the agents of these nodes.", DIM))
    if not nodes:
        text = (
            f"No agent was found: {sought}. In the simulator there is none: its agents are no pods."
        )
        page.append(line(text, WARN))
    return page


def _most_used_first(use: ContainerUsage) -> tuple[float, str, str, str]:
    return -(use.cores_used or 0), use.namespace, use.pod, use.container


def _known(uuid: str, cards: Cards) -> tuple[str, int | str, str]:
    return cards.get(uuid, ("", uuid, ""))


def _bar(used: float | None) -> Cell:
    return cell("") if used is None else cell(bar(round(used), 100), level(round(used), 100))


def _held_memory(card: CardUsage) -> str:
    total = card.memory_held + card.memory_free
    return f"{card.memory_held / _GIB:.1f}/{total / _GIB:.1f} GiB"


def _cores(used: float | None, held: float = math.inf) -> Cell:
    """Write cores; those of who uses more than it holds stand out."""
    return cell("-", DIM) if used is None else cell(f"{used:.0f}", WARN if used > held else "")


def _memory(used: float | None) -> Cell:
    return cell("-", DIM) if used is None else cell(f"{used / _GIB:.1f} GiB")


_MOST_PAST = 20


def show_history(
    history: History | None, namespace: str | None = None, *, wide: bool = False
) -> Page:
    """Lay out what pods held and left idle in the last day, those that left most idle first."""
    if history is None:
        return [line(SWITCHED_OFF, DIM)]
    if history.problem:
        why = f"Unknown: what was held and idle in the last day. {history.problem}"
        return [line(""), line(why, WARN)]
    nothing_now = ClusterReport((), (), (), ())
    rows = usage_rows(nothing_now, {}, history, GroupBy.POD, namespace or "")
    rows.sort(key=lambda row: (-(row.idle_hours or 0), -(row.held_hours or 0), row.pod))
    shown = rows if wide else rows[:_MOST_PAST]
    heading = f"The last day, of which {history.seen / 3600:.1f} hours have been seen"
    more = f"; {_MOST_PAST} of {count_of(len(rows), 'pod')}, all of them: -o wide"
    grid = table(
        shown,
        (Column("POD"), lambda row: f"{row.namespace}/{row.pod}"),
        (Column("HELD, CARD HOURS"), lambda row: _hours(row.held_hours)),
        (Column("IDLE, CARD HOURS"), lambda row: _hours(row.idle_hours)),
        (Column("IDLE PART"), lambda row: _part(row.idle_share)),
    )
    return [line(""), line(heading + more * (len(shown) < len(rows)), BOLD), grid]


def _hours(hours: float | None) -> str:
    return "unknown" if hours is None else f"{hours:.2f}"


def _part(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.0%}"
