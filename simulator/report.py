"""What the demo prints: the only importer of ``rich``."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text


class Report:
    """Prints to standard output, in columns.

    Attributes:
        detail: prints what is shown on request only, or nothing.
    """

    def __init__(
        self, console: Console | None = None, *, verbose: bool = False, width: int = 118
    ) -> None:
        """Prepare; *width*: columns where standard output is no terminal."""
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
        """Print a line that begins a part."""
        self._console.print()
        self._console.print(Text(text, style="bold"))

    def say(self, text: str) -> None:
        """Print plain text."""
        self._console.print(Text(text), soft_wrap=True)

    def table(
        self, titles: Sequence[str], rows: Sequence[Sequence[str]], *, counts: bool = False
    ) -> None:
        """Print rows under titles; the last column is folded. *counts*: the others are numbers."""
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
        """Print how many hundredths of each card are taken, a row for each node."""
        most = max(map(len, nodes.values()), default=0)
        self.table(
            ["NODE", *(f"CARD {index}" for index in range(most))],
            [
                [name, *(f"{'█' * (cores // 10):░<10} {cores:>3}" for cores in cards)]
                for name, cards in nodes.items()
            ],
        )
