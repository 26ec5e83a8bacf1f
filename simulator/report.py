"""What the demo prints: the only importer of ``rich``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from simulator.attribution import Tally

_WIDTH_WITHOUT_TERMINAL = 118


@dataclass(frozen=True, slots=True)
class Row:
    """One container: what it asked for, what the kubelet's record shows, by which evidence."""

    pod: str
    container: str
    asked: str
    got: str
    evidence: str


@dataclass(frozen=True, slots=True)
class LinkRow:
    """One pod: what it asked for, the cards it got, their links and NUMA nodes."""

    pod: str
    asked: str
    cards: str
    links: str
    numa: str


class Report:
    """Prints to standard output, in columns."""

    def __init__(self, console: Console | None = None) -> None:
        """Print to *console*, by default standard output."""
        console = console or Console(highlight=False)
        if not console.is_terminal:
            console = Console(
                file=console.file, width=_WIDTH_WITHOUT_TERMINAL, highlight=False, no_color=True
            )
        self._console = console

    def heading(self, text: str) -> None:
        """Print a line that begins a part."""
        self._console.print()
        self._console.print(Text(text, style="bold"))

    def say(self, text: str) -> None:
        """Print plain text."""
        self._console.print(Text(text), soft_wrap=True)

    def containers(self, rows: Sequence[Row]) -> None:
        """Print a table of containers."""
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
        for title in ("POD", "CONTAINER", "ASKED", "GOT", "EVIDENCE"):
            table.add_column(title, no_wrap=title != "GOT", overflow="fold")
        for row in rows:
            table.add_row(*map(Text, (row.pod, row.container, row.asked, row.got, row.evidence)))
        self._console.print(table)

    def links(self, rows: Sequence[LinkRow]) -> None:
        """Print a table of pods and the links between their cards."""
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
        for title in ("POD", "ASKED", "CARDS", "LINKS", "NUMA"):
            table.add_column(title, no_wrap=True)
        for row in rows:
            table.add_row(*map(Text, (row.pod, row.asked, row.cards, row.links, row.numa)))
        self._console.print(table)

    def cards(self, nodes: Mapping[str, Sequence[int]]) -> None:
        """Print how many hundredths of each card are taken, a row for each node."""
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
        table.add_column("NODE")
        for index in range(max(map(len, nodes.values()), default=0)):
            table.add_column(f"CARD {index}", no_wrap=True)
        for name, cards in nodes.items():
            bars = (f"{'█' * (cores // 10):░<10} {cores:>3}" for cores in cards)
            table.add_row(*map(Text, (name, *bars)))
        self._console.print(table)

    def inside(self, rows: Sequence[tuple[str, str, str]]) -> None:
        """Print a table of what a container finds: kind, name, value."""
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
        for title in ("KIND", "NAME", "VALUE"):
            table.add_column(title, no_wrap=title != "VALUE", overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        self._console.print(table)

    def tallies(self, rows: Sequence[tuple[str, Tally]]) -> None:
        """Print a table of rules and how they did."""
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
        table.add_column("RULE")
        for title in ("ALLOCATE CALLS", "RIGHT", "WRONG", "REFUSED"):
            table.add_column(title, justify="right")
        for name, tally in rows:
            counts = (tally.calls, tally.right, tally.wrong, tally.refused)
            table.add_row(name, *map(str, counts))
        self._console.print(table)
