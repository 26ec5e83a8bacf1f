"""How well chosen cards are connected: every set of free cards, and sets taken in a row."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from bench.peers.machines import MACHINES as ALL
from bench.peers.machines import Machine, choose_as_nvidia
from bench.peers.questions import choose_whole
from bench.result import Table

MACHINES = tuple(
    ALL[name]
    for name in (
        *("DGX-1 Pascal", "DGX-1 Volta", "4 x RTX8000", "6 cards, PCIe"),
        *("cube mesh", "NVLink bridges", "8 cards, PCIe", "NVSwitch"),
    )
)
SIZES = (2, 3, 4)

Choose = Callable[[Machine, tuple[int, ...], int], tuple[int, ...]]


def every_set(machine: Machine) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield every set of free cards with every size that it has enough for."""
    for count in range(min(SIZES), machine.count + 1):
        for free in combinations(range(machine.count), count):
            yield from ((free, size) for size in SIZES if size <= count)


def compare_sets(machine: Machine) -> tuple[int, int, int, int, int]:
    """Compare ours with NVIDIA's choice in every set.

    Returns:
        The sets, in how many the sum of ours is below, equal and above, and in how many below the
        best sum there is.
    """
    below = equal = above = short = 0
    for free, size in every_set(machine):
        ours = machine.score(choose_whole(machine, free, size))
        nvidias = machine.score(choose_as_nvidia(machine, free, size))
        below += ours < nvidias
        equal += ours == nvidias
        above += ours > nvidias
        short += ours < max(map(machine.score, combinations(free, size)))
    return below + equal + above, below, equal, above, short


def in_a_row(machine: Machine, size: int, choose: Choose) -> int:
    """Return the sum over the sets of a size that one after the other takes, until none is left."""
    free, total = set(range(machine.count)), 0
    while len(free) >= size:
        chosen = choose(machine, tuple(sorted(free)), size)
        if len(chosen) < size:
            break
        total += machine.score(chosen)
        free -= {*chosen}
    return total


def tables(machines: Sequence[Machine] = MACHINES) -> tuple[Table, Table]:
    """Return what both comparisons find on every machine."""
    rows = [(machine.name, *compare_sets(machine)) for machine in machines]
    in_rows = [
        (
            machine.name,
            *(
                f"{in_a_row(machine, size, choose_whole)} "
                f"({in_a_row(machine, size, choose_as_nvidia)})"
                for size in SIZES
            ),
        )
        for machine in machines
    ]
    return (
        Table(
            "links of a chosen set: the sum by NVIDIA's count, next to NVIDIA's best-effort policy",
            (
                "",
                "sets",
                "below",
                "equal",
                "above",
                "below the best sum",
            ),
            rows,
            (
                "every set of free cards, 2, 3 and 4 of them chosen",
                "cube mesh: where the PCIe level is not told, ours supposes the farthest",
            ),
        ),
        Table(
            "sets in a row until the machine is full, the sum of all: ours (NVIDIA's)",
            ("", *(f"{size} cards each" for size in SIZES)),
            in_rows,
        ),
    )
