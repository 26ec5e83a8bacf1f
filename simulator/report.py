"""Print the demo's output; the simulator's only module that imports ``rich``."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text


class Report:
    """Prints to standard output, in columns.

    Attributes:
        verbose: whether details are printed.
        detail: the report for details; prints nothing unless verbose.
    """

    def __init__(
        self, console: Console | None = None, *, verbose: bool = False, width: int = 118
    ) -> None:
        """Prepare; *width* is the number of columns if standard output is no terminal."""
        console = console or Console(highlight=False)
        if not console.is_terminal:
            console = Console(
                file=console.file,
                width=width,
                highlight=False,
                no_color=True,
                quiet=console.quiet,
            )
        self._console = console
        self.verbose = verbose
        self.detail: Report = self
        if not verbose and not console.quiet:
            self.detail = Report(Console(quiet=True))

    def heading(self, text: str) -> None:
        """Print the heading of a part."""
        self._console.print()
        self._console.print(Text(text, style="bold"))

    def print_line(self, text: str) -> None:
        """Print plain text."""
        self._console.print(Text(text), soft_wrap=True)

    def table(
        self, titles: Sequence[str], rows: Sequence[Sequence[str]], *, counts: bool = False
    ) -> None:
        """Print rows under titles; the last column wraps.

        Args:
            titles: the column titles.
            rows: the cells.
            counts: whether all columns except the first are numbers.
        """
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
        for index, title in enumerate(titles):
            table.add_column(
                title,
                no_wrap=index + 1 < len(titles) and not counts,
                overflow="fold",
                justify="right" if counts and index else "left",
            )
        for row in rows:
            table.add_row(*map(Text, row))
        self._console.print(table)

    def cards(self, nodes: Mapping[str, Sequence[int]]) -> None:
        """Print how many cores of each card are held, a row for each node."""
        most = max(map(len, nodes.values()), default=0)
        self.table(
            ["NODE", *(f"CARD {index}" for index in range(most))],
            [
                [name, *(f"{'█' * (cores // 10):░<10} {cores:>3}" for cores in cards)]
                for name, cards in nodes.items()
            ],
        )
