"""Draws pages. The only module that imports ``rich``.

``rich`` draws tables in a terminal. In a file or a pipe each row is one line, and nothing is cut.
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

from contract.text import format_count
from view.terminal.layout import BOLD, Grid, Page, TextLine

_WRAPPED = 24
"""Columns are left out until wrapping columns have this width."""

_NARROWEST = 12
"""No column gets narrower than this; rather the terminal wraps the line."""

_GAP = 3
_LEAST_ROWS = 2
_MOST_ROWS = 1000
"""Rows of a table in a terminal: ``rich`` needs a second for a thousand rows."""


class Screen:
    """A stream to which pages are written."""

    def __init__(self, out: TextIO, *, color: bool = True, width: int | None = None) -> None:
        """Set how to draw; *width* is that of a terminal, by default of this one."""
        self._out = out
        self._color = color and out.isatty()
        self._width = width

    @property
    def is_terminal(self) -> bool:
        """Whether the stream is a terminal."""
        return self._out.isatty()

    def show(self, page: Page, *, headings: bool = True) -> None:
        """Print a page; without *headings* only the rows of its tables."""
        if not headings:
            page = [part for part in page if isinstance(part, Grid)]
        self._out.write(self.draw(page, headings=headings))
        self._out.flush()

    def draw(self, page: Page, height: int = 0, *, headings: bool = True) -> str:
        """Return a page as text, with styles if colors are on.

        If the page has more lines than *height*, tables lose rows and show how many; 0 is no limit.
        """
        if self._width is None and not self.is_terminal:
            return "".join(f"{each}\n" for part in page for each in _plain(part, headings=headings))
        width = self._width or Console(file=self._out).width
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
            lines[height - 1 :] = [
                f"... {format_count(cut, 'more line')} (the terminal has {height})"
            ]
        return "".join(f"{each}\n" for each in lines)

    def _line(self, part: TextLine, width: int) -> list[str]:
        text = Text.assemble(*((each.text, each.style) for each in part.cells))
        if part.hang and width - part.hang >= _WRAPPED:
            start, rest = text.divide([part.hang])
            grid = Table.grid()
            grid.add_column(width=part.hang, no_wrap=True)
            grid.add_column(overflow="fold")
            grid.add_row(start, rest)
            return self._rendered(grid, width)
        return self._rendered(Padding(text, (0, 0, 0, part.indent)), width)

    def _table(self, grid: Grid, width: int, most: int, *, headings: bool) -> list[str]:
        """Return the lines of a table with at most *most* rows.

        If it is too wide, columns are removed in the order of ``drop``; then text is folded.
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
        hidden = len(grid.rows) - most
        hint = "the terminal is too low" if most < _MOST_ROWS else "all rows: add | less"
        return [*lines, f"... {format_count(hidden, 'more row')} ({hint})"] if hidden > 0 else lines

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
        """Yield a function that draws each page over the previous one, or after it if not *on*."""
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
    """Shows a waiting user what has been read so far. Safe to share between threads."""

    def __init__(self, out: TextIO, quiet: float = 0.5) -> None:
        """Start; nothing is shown in the first *quiet* seconds."""
        self._counts: dict[str, int] = {}
        self._status = Console(file=out).status("Reading the cluster", spinner_style="")
        self._timer = Timer(quiet, self._status.start)
        self._timer.daemon = True
        if out.isatty():
            self._timer.start()

    def __call__(self, what: str, count: int) -> None:
        """Set how many objects of a kind have been read so far."""
        self._counts[what] = max(count, self._counts.get(what, 0))
        counts = ", ".join(f"{number} {kind}" for kind, number in sorted({**self._counts}.items()))
        self._status.update(f"Reading the cluster: {counts}")

    def end(self) -> None:
        """Remove it from the screen for good; pages are drawn there from now on."""
        self._timer.cancel()
        if self._timer.is_alive():
            self._timer.join()
        self._status.stop()


def _plain(part: Grid | TextLine, *, headings: bool) -> Iterator[str]:
    """Yield the lines of a part as they are written to a file."""
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
