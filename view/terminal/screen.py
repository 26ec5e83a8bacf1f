"""Draws pages. The only module that knows ``rich``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from typing import TextIO

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console
from rich.live import Live
from rich.style import Style
from rich.text import Text

from view.terminal.layout import BOLD, Cell, Column, Grid, Line, Page

_UNLIMITED = 100_000
"""Columns where output goes to a file or another program: nothing is cut there."""

_LEAST_WRAPPED = 24
"""Columns are left out until what wraps has so much."""

_NARROWEST = 12
_LEAST_ROWS = 3
_GAP = 3
_WRAPPER = Console(file=StringIO())


class Screen:
    """Where pages are drawn."""

    def __init__(self, out: TextIO, *, color: bool = True, width: int | None = None) -> None:
        """Choose how to draw."""
        self._out = out
        self._color = color and out.isatty()
        self._given = width

    @property
    def is_terminal(self) -> bool:
        """Whether a person looks at it."""
        return self._out.isatty()

    @property
    def width(self) -> int:
        """How many columns there are."""
        if self._given is not None:
            return self._given
        return Console(file=self._out).width if self.is_terminal else _UNLIMITED

    def show(self, page: Page, *, headings: bool = True) -> None:
        """Print a page; without headings only the rows of its tables."""
        if not headings:
            page = [part for part in page if isinstance(part, Grid)]
        self._out.write(self.draw(page, headings=headings))
        self._out.flush()

    def draw(self, page: Page, height: int = 0, *, headings: bool = True) -> str:
        """Return a page as text, with its styles if there are any.

        In fewer lines than it has, the *height*, tables lose rows, and say how many; 0 is no bound.
        """
        width = self.width
        blocks = [self._block(part, width, headings=headings) for part in page]
        over = sum(len(row) for block in blocks for row in block) - height
        if height and over > 0:
            _shorten(page, blocks, over)
        lines = [each.rstrip() for block in blocks for row in block for each in row]
        if height and len(lines) > height:
            cut = len(lines) - height + 1
            lines[height - 1 :] = [f"... {cut} more lines: this terminal has {height}"]
        return "".join(f"{each}\n" for each in lines)

    def _block(self, part: Grid | Line, width: int, *, headings: bool) -> list[list[str]]:
        """Return the rows of a part, each of one or more lines."""
        if isinstance(part, Grid):
            rows = list(_rows_of(part, width, self._styled)) if part.rows else []
            return rows if headings else rows[1:]
        buffer = StringIO()
        console = Console(
            file=buffer,
            width=width,
            force_terminal=self._color,
            color_system="standard" if self._color else None,
            markup=False,
            highlight=False,
            emoji=False,
            legacy_windows=False,
        )
        console.print(_text_of(part, width), soft_wrap=width == _UNLIMITED)
        return [buffer.getvalue().splitlines()]

    def _styled(self, text: str, style: str) -> str:
        if not self._color or not style or not text:
            return text
        return Style.parse(style).render(text, color_system=ColorSystem.STANDARD)

    @contextmanager
    def redrawing(self, *, on: bool = True) -> Iterator[Callable[[Page], None]]:
        """Hand over a function that draws one page in the place of another, if it is *on*."""
        if not on:
            yield self.show
            return
        console = Console(file=self._out, markup=False, highlight=False, emoji=False)
        with Live(console=console, screen=True, auto_refresh=False) as live:

            def redraw(page: Page) -> None:
                text = self.draw(page, console.height).removesuffix("\n")
                live.update(Text.from_ansi(text), refresh=True)

            yield redraw


def _text_of(line: Line, width: int) -> Text:
    text = Text(" " * line.indent if width == _UNLIMITED else "")
    for each in line.cells:
        text.append(each.text, style=each.style)
    if width == _UNLIMITED or not line.indent:
        return text
    # Lines that go on hang under their first one.
    console = Console(width=max(width - line.indent, _LEAST_WRAPPED), file=StringIO())
    wrapped = text.wrap(console, max(width - line.indent, _LEAST_WRAPPED))
    return Text("\n").join(Text(" " * line.indent) + each for each in wrapped)


def _shorten(page: Page, blocks: list[list[list[str]]], over: int) -> None:
    """Take rows off tables, and say how many, those to be kept last."""
    grids = [at for at, part in enumerate(page) if isinstance(part, Grid) and blocks[at]]
    for at in sorted(grids, key=lambda at: (page[at].keep, -at)):  # type: ignore[union-attr]  # grids
        gone, rows = 0, blocks[at]
        while over > 0 and len(rows) > (_LEAST_ROWS if page[at].keep else 1):  # type: ignore[union-attr]
            over += not gone
            over -= len(rows.pop())
            gone += 1
        if gone:
            rows.append([f"... and {gone} more rows, for which this terminal is too low"])


def _rows_of(grid: Grid, width: int, styled: Callable[[str, str], str]) -> Iterator[list[str]]:
    """Yield the lines of each row of a grid, the headings first.

    Not by the library's table, which takes milliseconds a row: there may be thousands.
    """
    kept = _fitting(grid, width)
    widths = {at: _width(grid, at) for at in kept}
    over = sum(widths.values()) + _GAP * (len(kept) - 1) - width
    for at in sorted(kept, key=lambda at: (not grid.columns[at].wraps, -widths[at])):
        if over > 0:  # what wraps, then the widest: names go on in the next line, none is lost
            less = min(over, max(widths[at] - _NARROWEST, 0))
            widths[at], over = widths[at] - less, over - less
    heading = [Cell(grid.columns[at].name, BOLD) for at in range(len(grid.columns))]
    for row in (heading, *grid.rows):
        cells = [(_wrapped(row[at].text, widths[at]), row[at].style, widths[at]) for at in kept]
        found = []
        for number in range(max(len(lines) for lines, _, _ in cells)):
            parts = []
            for lines, style, wide in cells:
                text = lines[number] if number < len(lines) else ""
                parts.append(styled(text, style) + " " * (wide - cell_len(text)))
            found.append((" " * _GAP).join(parts))
        yield found


def _wrapped(text: str, width: int) -> list[str]:
    if cell_len(text) <= width:
        return [text]
    return [each.plain.rstrip() for each in Text(text).wrap(_WRAPPER, width, overflow="fold")]


def _fitting(grid: Grid, width: int) -> list[int]:
    """Choose columns that fit into a width: those to be dropped first go first."""
    kept = list(range(len(grid.columns)))
    while sum(_least(grid, at) + _GAP for at in kept) - _GAP > width:
        droppable = [at for at in kept if grid.columns[at].drop]
        if not droppable:
            break
        kept.remove(max(droppable, key=lambda at: (grid.columns[at].drop, at)))
    return kept


def _least(grid: Grid, at: int) -> int:
    natural = _width(grid, at)
    column: Column = grid.columns[at]
    return min(natural, _LEAST_WRAPPED) if column.wraps else natural


def _width(grid: Grid, at: int) -> int:
    texts = (row[at].text for row in grid.rows)
    return max(len(grid.columns[at].name), *map(cell_len, texts))
