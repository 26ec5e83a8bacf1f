"""How well the sets of whole cards are connected that ours and NVIDIA's policy choose.

On the machines of NVIDIA's own tests (go-gpuallocator: two DGX-1, four RTX 8000) and on eight cards
that are linked over PCIe alone, for every set of free cards and every size: the sum of what the
pairs of the chosen set are worth, by NVIDIA's scale. Then the same request twice in a row, and both
sums together.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from bench.result import Goal, Table
from placement.cards import Card, Inventory, Link
from placement.topology import Links

_PCIE = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50}
_NVLINK = 100

Kinds = Mapping[tuple[int, int], str]
"""The ways between two cards, such as ``PHB NV2``."""

Set = tuple[int, ...]

Choose = Callable[[Set, int], Set]
"""Choose so many of the free cards."""


def _dgx1(nvlinks: str, switches: Iterable[tuple[int, int]]) -> Kinds:
    """Make a DGX-1; *nvlinks* names pairs and how many they have: ``0-1:2``."""
    lanes = {}
    for each in nvlinks.split():
        pair, _, count = each.partition(":")
        lanes[int(pair[0]), int(pair[2])] = f" NV{count or 1}"
    kinds = {}
    for low, high in combinations(range(8), 2):
        near = "PIX" if (low, high) in switches else "PHB"
        pcie = near if low // 4 == high // 4 else "SYS"
        kinds[low, high] = pcie + lanes.get((low, high), "")
    return kinds


MACHINES: Mapping[str, Kinds] = {
    "DGX-1 Pascal": _dgx1(
        "0-1 0-2 0-3 1-2 1-3 2-3 4-5 4-6 4-7 5-6 5-7 6-7 0-4 1-5 2-6 3-7",
        {(0, 2), (1, 3), (4, 6), (5, 7)},
    ),
    "DGX-1 Volta": _dgx1(
        "0-1 0-2 0-3:2 0-4:2 1-2:2 1-3 1-5:2 2-3:2 2-6 3-7 4-5 4-6 4-7:2 5-6:2 5-7 6-7:2",
        {(0, 1), (2, 3), (4, 5), (6, 7)},
    ),
    "8 cards over PCIe": {
        (low, high): "PIX" if low // 2 == high // 2 else "PXB" if low // 4 == high // 4 else "SYS"
        for low, high in combinations(range(8), 2)
    },
    "4 RTX 8000": {
        (0, 1): "NODE",
        (0, 2): "SYS",
        (0, 3): "SYS NV2",
        (1, 2): "SYS NV2",
        (1, 3): "SYS",
        (2, 3): "NODE",
    },
}


def compare(machines: Iterable[str] = tuple(MACHINES)) -> tuple[Table, Sequence[Goal]]:
    """Compare ours with NVIDIA's policy on *machines*."""
    rows, worse = [], 0
    for name in machines:
        machine = Machine(MACHINES[name])
        one = [(machine.ours(free, size), machine.nvidias(free, size)) for free, size in machine]
        sums = [(machine.worth(ours), machine.worth(theirs)) for ours, theirs in one]
        twice = [
            (
                machine.in_a_row(machine.ours, free, size),
                machine.in_a_row(machine.nvidias, free, size),
            )
            for free, size in machine
            if 2 * size <= len(free)
        ]
        worse += sum(ours < theirs for ours, theirs in sums)
        rows.append((name, *_tell(sums), *_tell(twice)))
    return (
        Table(
            "sets of whole cards beside NVIDIA's policy, by NVIDIA's own scale",
            ("", "requests", "below", "above", "two in a row", "below", "above"),
            rows,
            ("every set of free cards of each machine, every size from two cards on",),
        ),
        (Goal("sets whose sum is below that of NVIDIA's policy", 0, worse),),
    )


def _tell(sums: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    return (
        len(sums),
        sum(ours < theirs for ours, theirs in sums),
        sum(ours > theirs for ours, theirs in sums),
    )


class Machine:
    """A machine, and who would choose which of its cards."""

    def __init__(self, kinds: Kinds) -> None:
        self.cards = tuple(sorted({card for pair in kinds for card in pair}))
        half = len(self.cards) // 2
        self.links = Links(
            Inventory(
                tuple(Card(str(i), i, i, "", 1, i // half, "", "") for i in self.cards),
                tuple(Link(pair, kind) for pair in kinds for kind in kinds[pair].split()),
            )
        )
        self._worth = {
            pair: sum(_PCIE.get(kind) or _NVLINK * int(kind[2:]) for kind in ways.split())
            for pair, ways in kinds.items()
        }

    def __iter__(self) -> Iterator[tuple[Set, int]]:
        """Walk all requests: the free cards, and how many are asked for."""
        for count in range(2, len(self.cards) + 1):
            for free in combinations(self.cards, count):
                for size in range(2, count + 1):
                    yield free, size

    def worth(self, chosen: Sequence[int]) -> int:
        """Return the sum of what the pairs of a set are worth."""
        return sum(self._worth[pair] for pair in combinations(sorted(chosen), 2))

    def ours(self, free: Set, size: int) -> Set:
        """Choose as the agent does."""
        names = [str(each) for each in free]
        return tuple(map(int, self.links.best(size, names, free=frozenset(names))))

    def nvidias(self, free: Set, size: int) -> Set:
        """Choose as ``bestEffortPolicy`` does: the best set of the best division of all cards."""
        divisions = _divisions(free, size)
        best = max(divisions, key=lambda sets: sum(map(self.worth, sets)))
        return max((each for each in best if len(each) == size), key=self.worth)

    def in_a_row(self, choose: Choose, free: Set, size: int) -> int:
        """Return what two sets are worth together, chosen one after the other."""
        first = choose(free, size)
        rest = tuple(card for card in free if card not in first)
        return self.worth(first) + self.worth(choose(rest, size))


def _divisions(free: Set, size: int) -> Iterator[list[Set]]:
    """Yield all divisions of cards into sets of one size, and one set of those that are over."""
    over = len(free) % size
    if len(free) <= size:
        yield [free] if free else []
        return
    first, rest = free[0], free[1:]
    for length in {size, over} - {0}:
        for more in combinations(rest, length - 1):
            chosen = (first, *more)
            left = tuple(card for card in rest if card not in more)
            for others in _divisions(left, size):
                if sum(len(each) < size for each in (chosen, *others)) <= 1:
                    yield [chosen, *others]
