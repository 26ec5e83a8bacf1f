"""The map of all cards: one cell per card, filled as far as the card is held or used. Pure.

Filling and color show the same. A card with a problem is crossed out, an unknown one is a line.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from contract.text import format_count
from view.model.reports import CardReport, NodeReport
from view.web.figures import percent
from view.web.filters import CardFilter, MapColor, MapGrouping, is_of_kind

_COLUMNS = 4
_WIDTH, _HEIGHT, _GAP = 8, 12, 1
WRONG, UNKNOWN, OTHER = "wrong", "unknown", "other"
_MOST_GROUPS = 50


class Picture(NamedTuple):
    """A node on the map: paths of the outlines and of each kind of filling, and a text."""

    width: int
    height: int
    cells: str
    fills: tuple[tuple[str, str], ...]
    text: str


class Division(NamedTuple):
    """Nodes of one model or pool on the map, each with its cards of that model or pool."""

    name: str
    sums: str
    nodes: tuple[tuple[NodeReport, tuple[CardReport, ...]], ...]


def share(node: NodeReport, card: CardReport, paint: MapColor) -> int | None:
    """Return how many percent of a card are held or used; ``None`` if unknown."""
    if paint is MapColor.USE:
        return None if card.cores_used is None else percent(card.cores_used, card.cores)
    if node.problem:
        return None
    if paint is MapColor.MEMORY:
        return percent(card.blocks_held, card.blocks)
    return percent(card.cores_held, card.cores)


def picture(
    node: NodeReport, cards: Sequence[CardReport], selected: Collection[str], paint: MapColor
) -> Picture:
    """Draw cards of a node; those that are not *selected* are empty."""
    cells: list[str] = []
    fills: dict[str, list[str]] = {}
    texts: list[str] = []
    for at, card in enumerate(cards):
        x = at % _COLUMNS * (_WIDTH + _GAP)
        y = at // _COLUMNS * (_HEIGHT + _GAP)
        cells.append(f"M{x} {y}h{_WIDTH}v{_HEIGHT}h-{_WIDTH}z")
        kind, path, text = _cell(node, card, paint, x, y)
        if card.uuid not in selected:
            kind, path, text = OTHER, "", ""
        if path:
            fills.setdefault(kind, []).append(path)
        if text:
            texts.append(text)
    if not cards:
        cells.append(f"M0 0h{_WIDTH}v{_HEIGHT}h-{_WIDTH}z")
        fills[WRONG] = [_crossed(0, 0)]
    what = f"{paint.label}: {', '.join(texts)}" if texts else node.problem or "no cards"
    return Picture(
        max(min(len(cards), _COLUMNS), 1) * (_WIDTH + _GAP) - _GAP,
        max(-(-len(cards) // _COLUMNS), 1) * (_HEIGHT + _GAP) - _GAP,
        "".join(cells),
        tuple((kind, "".join(paths)) for kind, paths in sorted(fills.items())),
        f"{node.name}, {what}",
    )


def _cell(
    node: NodeReport, card: CardReport, paint: MapColor, x: int, y: int
) -> tuple[str, str, str]:
    if is_of_kind(CardFilter.WRONG, node, card):
        return WRONG, _crossed(x, y), "problem"
    found = share(node, card, paint)
    if found is None:
        return UNKNOWN, f"M{x + 2} {y + _HEIGHT // 2}h{_WIDTH - 4}", "unknown"
    high = min(-(-found * _HEIGHT // 100), _HEIGHT)
    kind = f"h{min(found * 3 // 100 + 1, 4)}"
    path = f"M{x} {y + _HEIGHT - high}h{_WIDTH}v{high}h-{_WIDTH}z" if high else ""
    return kind, path, f"{found} %"


def _crossed(x: int, y: int) -> str:
    return f"M{x + 1} {y + 1}l{_WIDTH - 2} {_HEIGHT - 2}m0 {2 - _HEIGHT}l{2 - _WIDTH} {_HEIGHT - 2}"


def divide(
    shown: Sequence[tuple[NodeReport, tuple[CardReport, ...]]], group: MapGrouping
) -> list[Division]:
    """Divide nodes and their cards by model or pool; those without one come last."""
    if group is MapGrouping.NONE:
        return [Division("", "", tuple((node, node.cards) for node, _ in shown))]
    found: dict[str, list[tuple[NodeReport, tuple[CardReport, ...]]]] = {}
    for node, _ in shown:
        by_name: dict[str, tuple[CardReport, ...]] = {}
        for card in node.cards:
            name = node.pool if group is MapGrouping.POOL else card.model
            by_name[name] = (*by_name.get(name, ()), card)
        for name, cards in (
            by_name or {node.pool if group is MapGrouping.POOL else "": ()}
        ).items():
            found.setdefault(name, []).append((node, cards))
    names = sorted(found, key=lambda each: (not each, each))
    kept = names if len(names) <= _MOST_GROUPS else names[: _MOST_GROUPS - 1]
    rest = [each for name in names[len(kept) :] for each in found[name]]
    none = "No cards" if group is MapGrouping.MODEL else "No pool"
    divisions = [Division(name or none, _sums(found[name]), tuple(found[name])) for name in kept]
    return [*divisions, Division("Others", _sums(rest), tuple(rest))] if rest else divisions


def _sums(nodes: Sequence[tuple[NodeReport, Sequence[CardReport]]]) -> str:
    cards = [(node, card) for node, own in nodes for card in own]
    whole = sum(is_of_kind(CardFilter.WHOLE, node, card) for node, card in cards)
    wrong = sum(is_of_kind(CardFilter.WRONG, node, card) for node, card in cards)
    counts = ((len(nodes), "node"), (len(cards), "card"), (whole, "whole card"))
    text = f"{', '.join(format_count(*each) for each in counts)} free"
    return f"{text}, {wrong} with problems" if wrong else text
