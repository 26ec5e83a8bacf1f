"""Draws pages. The only module that knows ``rich``.

In a terminal tables are its own; in a file or a pipe each row is one line, and nothing is cut.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from threading import Timer
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from view.terminal.layout import BOLD, Grid, Page, TextLine

_WRAPPED = 24
"""Columns are left out until what wraps has so much."""

_NARROWEST = 12
"""No column is folded to less: before that the terminal wraps the line."""

_GAP = 3
_LEAST_ROWS = 2
_MOST_ROWS = 1000
"""Of a table in a terminal: a thousand rows take ``rich`` a second."""


class Screen:
    """Where pages are drawn."""

    def __init__(self, out: TextIO, *, color: bool = True, width: int | None = None) -> None:
        """Choose how to draw; a *width* is one of a terminal, by default of this one."""
        self._out = out
        self._color = color and out.isatty()
        self._given = width

    @property
    def is_terminal(self) -> bool:
        """Whether a person looks at it."""
        return self._out.isatty()

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
        if self._given is None and not self.is_terminal:
            return "".join(f"{each}\n" for part in page for each in _plain(part, headings=headings))
        width = self._given or Console(file=self._out).width
        grids = {at: part for at, part in enumerate(page) if isinstance(part, Grid)}
        blocks = [
            self._table(part, width, height or _MOST_ROWS, headings=headings)
            if isinstance(part, Grid)
            else self._line(part, width)
            for part in page
        ]
        for at, grid in sorted(grids.items(), key=lambda each: (each[1].keep, -each[0])):
            rows = min(len(grid.rows), height)
            least = min(rows, _LEAST_ROWS * grid.keep)
            while (over := sum(map(len, blocks)) - height) > 0 and rows > least:
                rows = max(least, rows - max(1, over * rows // len(blocks[at])))
                blocks[at] = self._table(grid, width, rows, headings=headings)
        lines = [each for block in blocks for each in block]
        if height and len(lines) > height:
            cut = len(lines) - height + 1
            lines[height - 1 :] = [f"... {cut} more lines: this terminal has {height}"]
        return "".join(f"{each}\n" for each in lines)

    def _line(self, part: TextLine, width: int) -> list[str]:
        text = Text.assemble(*((each.text, each.style) for each in part.cells))
        return self._rendered(Padding(text, (0, 0, 0, part.indent)), width)

    def _table(self, grid: Grid, width: int, most: int, *, headings: bool) -> list[str]:
        """Return the lines of a table, of no more rows than *most*.

        Of columns that do not fit those to be dropped first go first; then names are folded.
        """
        columns, widths = grid.columns, _widths(grid)
        kept = list(range(len(columns)))

        def over() -> bool:
            least = (min(widths[at], _WRAPPED if columns[at].wraps else widths[at]) for at in kept)
            return sum(least) + _GAP * (len(kept) - 1) > width

        while over():
            dropped = max(kept, key=lambda at: (columns[at].drop, at))
            if not columns[dropped].drop:
                break
            kept.remove(dropped)
        folded = over()
        table = Table(
            box=None,
            pad_edge=False,
            padding=(0, _GAP, 0, 0),
            show_header=headings,
            header_style=BOLD,
        )
        for at in kept:
            whole = not (folded or columns[at].wraps)
            table.add_column(columns[at].name, no_wrap=whole, overflow="fold")
        for row in grid.rows[:most]:
            table.add_row(*(Text(row[at].text, row[at].style) for at in kept))
        least = sum(min(widths[at], _NARROWEST) + _GAP for at in kept) - _GAP
        lines = self._rendered(table, max(width, least)) if grid.rows else []
        gone = len(grid.rows) - most
        why = (
            "for which this terminal is too low" if most < _MOST_ROWS else "with | less all of them"
        )
        return [*lines, f"... and {gone} more rows, {why}"] if gone > 0 else lines

    def _rendered(self, part: RenderableType, width: int) -> list[str]:
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
        console.print(part)
        return [each.rstrip() for each in buffer.getvalue().splitlines()]

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


class Progress:
    """Shows a person who waits what has been read so far. Safe to share between threads."""

    def __init__(self, out: TextIO, quiet: float = 0.5) -> None:
        """Begin; what takes less than *quiet* seconds needs no progress."""
        self._counts: dict[str, int] = {}
        self._status = Console(file=out).status("Reading the cluster", spinner_style="")
        self._timer = Timer(quiet, self._status.start)
        self._timer.daemon = True
        if out.isatty():
            self._timer.start()

    def __call__(self, what: str, count: int) -> None:
        """Take in how many objects of a kind have been read so far."""
        self._counts[what] = max(count, self._counts.get(what, 0))
        counts = ", ".join(f"{number} {kind}" for kind, number in sorted({**self._counts}.items()))
        self._status.update(f"Reading the cluster: {counts}")

    def end(self) -> None:
        """Take it off the screen, which is a page's from here on, whatever is read again."""
        self._timer.cancel()
        if self._timer.is_alive():
            self._timer.join()
        self._status.stop()


def _plain(part: Grid | TextLine, *, headings: bool) -> Iterator[str]:
    """Yield the lines of a part as they stand in a file."""
    if isinstance(part, TextLine):
        yield " " * part.indent + "".join(each.text for each in part.cells)
        return
    widths = _widths(part)
    for row in _texts(part)[not headings :] if part.rows else ():
        cells = zip(row, widths, strict=True)
        yield (
            (" " * _GAP)
            .join(each + " " * (width - cell_len(each)) for each, width in cells)
            .rstrip()
        )


def _texts(grid: Grid) -> list[list[str]]:
    return [
        [each.name for each in grid.columns],
        *([each.text for each in row] for row in grid.rows),
    ]


def _widths(grid: Grid) -> list[int]:
    return [max(map(cell_len, column)) for column in zip(*_texts(grid), strict=True)]
