"""``kubectl gpu top``: what cards and containers use of what they hold. Pure."""

from collections.abc import Mapping, Sequence

from view.model.usage import CardUse, ContainerUse, NodeUse
from view.terminal.layout import (
    BOLD,
    DIM,
    WARN,
    Cell,
    Column,
    Grid,
    Line,
    Page,
    bar,
    cell,
    level,
    line,
)
from view.terminal.words import short_model

_GIB = 2**30

Cards = Mapping[str, tuple[str, int, str]]
"""By UUID: node, index and model."""


def show_use(
    nodes: Sequence[NodeUse],
    cards: Cards,
    *,
    namespace: str | None = None,
    sought: str = "",
    at: str = "",
) -> Page:
    """Lay use out, by card and by container."""
    page: list[Grid | Line] = []
    on = [(node, card) for node in nodes for card in node.cards]
    if on:
        rows = tuple(_card_row(node, card, cards) for node, card in on)
        columns = (
            Column("NODE"),
            Column("CARD"),
            Column("MODEL", drop=2),
            Column("CORES USED"),
            Column("", drop=3),
            Column("HELD", drop=1),
            Column("MEMORY USED"),
            Column("HELD", drop=2),
        )
        page.append(Grid(columns, rows))
    containers = [
        each for node in nodes for each in node.containers if namespace in (None, each.namespace)
    ]
    if containers:
        rows = tuple(
            _container_row(each, cards) for each in sorted(containers, key=_most_used_first)
        )
        heads = (
            Column("POD"),
            Column("CONTAINER"),
            Column("CARDS"),
            Column("CORES USED"),
            Column("HELD", drop=1),
            Column("MEMORY USED"),
            Column("HELD", drop=2),
        )
        page += [line(""), Grid(heads, rows)]
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


def _most_used_first(use: ContainerUse) -> tuple[float, str, str, str]:
    return -(use.cores_used or 0), use.namespace, use.pod, use.container


def _card_row(node: NodeUse, card: CardUse, cards: Cards) -> tuple[Cell, ...]:
    _, index, model = cards.get(card.uuid, ("", card.uuid, ""))
    used = card.cores_used
    total = card.memory_held + card.memory_free
    return (
        cell(node.node, BOLD),
        cell(index),
        cell(short_model(model)),
        _cores(used),
        cell("" if used is None else bar(round(used), 100), level(round(used or 0), 100)),
        cell(f"{card.cores_held:g}/100"),
        _memory(card.memory_used),
        cell(f"{card.memory_held / _GIB:.1f}/{total / _GIB:.1f} GiB"),
    )


def _container_row(use: ContainerUse, cards: Cards) -> tuple[Cell, ...]:
    on = ",".join(str(cards[uuid][1]) if uuid in cards else uuid for uuid in use.cards)
    over = use.cores_used is not None and use.cores_used > use.cores_held
    return (
        cell(f"{use.namespace}/{use.pod}"),
        cell(use.container),
        cell(on),
        cell(_cores(use.cores_used).text, WARN if over else ""),
        cell(f"{use.cores_held:g}"),
        _memory(use.memory_used),
        cell(f"{use.memory_held / _GIB:.1f} GiB"),
    )


def _cores(used: float | None) -> Cell:
    return cell("-", DIM) if used is None else cell(f"{used:.0f}")


def _memory(used: float | None) -> Cell:
    return cell("-", DIM) if used is None else cell(f"{used / _GIB:.1f} GiB")
