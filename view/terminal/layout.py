"""A page as plain values: lines of text, and grids with columns. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias, TypeVar

from view.model.words import safe

GOOD, BAD, WARN, DIM, BOLD, PLAIN = "green", "red", "yellow", "dim", "bold", ""
"""Styles of a cell."""

_FULL, _EMPTY = "\u2588", "\u2591"
_BAR = 8


@dataclass(frozen=True, slots=True)
class Cell:
    """A piece of text in one style; safe to print."""

    text: str
    style: str = PLAIN


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a grid."""

    name: Annotated[str, "its heading."]
    drop: Annotated[
        int, "order of removal in a narrow terminal, the highest first; 0 is never removed."
    ] = 0
    wraps: Annotated[bool, "whether long text wraps; other columns are as wide as their text."] = (
        False
    )


Row: TypeAlias = Sequence[Cell]


@dataclass(frozen=True, slots=True)
class Grid:
    """A table without lines, as ``kubectl get`` prints it."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    keep: bool = False
    """Whether other grids lose rows first if the screen is too small."""


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of text, which may be indented."""

    cells: tuple[Cell, ...] = ()
    indent: int = 0
    hang: int = 0
    """Characters at its start below which nothing is written if it wraps."""


Page: TypeAlias = Sequence[Grid | TextLine]

_T = TypeVar("_T")
Field: TypeAlias = tuple[Column, Callable[[_T], object]]
"""A column, and a function that returns its cell or text for an item."""


def cell(text: object, style: str = PLAIN) -> Cell:
    """Make a cell of any text."""
    return Cell(safe(str(text)), style)


def line(text: object, style: str = PLAIN, *, indent: int = 0) -> TextLine:
    """Make a line of any text."""
    return TextLine((cell(text, style),), indent)


def table(items: Iterable[_T], *fields: Field[_T], keep: bool = False) -> Grid:
    """Make a grid with a row for each item."""
    rows = tuple(
        tuple(
            each if isinstance(each, Cell) else cell(each)
            for each in (of(item) for _, of in fields)
        )
        for item in items
    )
    return Grid(tuple(column for column, _ in fields), rows, keep)


def bar(held: int, total: int) -> str:
    """Draw a bar; it is only empty if nothing is held, and only full if all is held."""
    if total <= 0:
        return _EMPTY * _BAR
    full = round(_BAR * held / total)
    if held > 0:
        full = max(full, 1)
    if held < total:
        full = min(full, _BAR - 1)
    return _FULL * full + _EMPTY * (_BAR - full)


def level(held: int, total: int) -> str:
    """Return the style of a bar: full ones stand out."""
    if not total or not held:
        return DIM
    return WARN if held >= total else GOOD
