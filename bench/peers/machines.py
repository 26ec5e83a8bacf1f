"""The nodes of the peers' tests, and the sets that NVIDIA's best-effort policy chooses on them.

Facts are from ``NVIDIA/go-gpuallocator`` (``common_test.go``, ``besteffort_policy.go``),
``tkestack/gpu-manager`` (``tree_test.go``) and ``coldzerofear/vgpu-manager`` (``tiered_test.go``).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations

from contract.inventory import NodeLink

Pair = tuple[int, int]

PCIE_SCORES = {"": 0, "SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50}
NVLINK_SCORE = 100


@dataclass(frozen=True)
class Machine:
    """Cards and what is between them.

    Attributes:
        name: for tables.
        count: of cards.
        nvlinks: how many NVLinks a pair has.
        pcie: the PCIe level of a pair; a pair that is missing is not known.
        socket: cards of one NUMA node; 0 where that is not known.
    """

    name: str
    count: int
    nvlinks: Mapping[Pair, int] = field(default_factory=dict, hash=False)
    pcie: Mapping[Pair, str] = field(default_factory=dict, hash=False)
    socket: int = 0

    def links(self) -> tuple[NodeLink, ...]:
        """Return the links as the agent writes them: the PCIe level of a pair, then its NVLinks."""
        links = []
        for pair in combinations(range(self.count), 2):
            if pair in self.pcie:
                links.append(NodeLink(pair, self.pcie[pair]))
            if pair in self.nvlinks:
                links.append(NodeLink(pair, f"NV{self.nvlinks[pair]}"))
        return tuple(links)

    def numa(self, card: int) -> int | None:
        """Return the NUMA node of a card, as the agent finds it on such a node."""
        return card // self.socket if self.socket else None

    def score(self, cards: Iterable[int]) -> int:
        """Return the sum over all pairs, as NVIDIA's policy counts it."""
        return sum(
            NVLINK_SCORE * self.nvlinks.get(pair, 0) + PCIE_SCORES[self.pcie.get(pair, "")]
            for pair in combinations(sorted(cards), 2)
        )


def _levels(count: int, level: Callable[[int, int], str]) -> dict[Pair, str]:
    return {(one, other): level(one, other) for one, other in combinations(range(count), 2)}


def _pairs(text: str) -> list[Pair]:
    return [(int(pair[0]), int(pair[1])) for pair in text.split()]


def _within(groups: str, near: str, quad: str) -> dict[Pair, str]:
    """Eight cards: *near* in pairs, *quad* on a socket of four, else across sockets."""
    close = _pairs(groups)
    return _levels(8, lambda a, b: near if (a, b) in close else quad if a // 4 == b // 4 else "SYS")


_CUBE_1 = dict.fromkeys(_pairs("01 02 13 26 37 45 46 57"), 1)
_CUBE = _CUBE_1 | dict.fromkeys(_pairs("03 04 12 15 23 47 56 67"), 2)
_BRIDGED = _pairs("01 23 45 67")

PASCAL = Machine(
    "DGX-1 Pascal",
    8,
    dict.fromkeys(_pairs("01 02 03 04 12 13 15 23 26 37 45 46 47 56 57 67"), 1),
    _within("02 13 46 57", "PIX", "PHB"),
    socket=4,
)
VOLTA = Machine("DGX-1 Volta", 8, _CUBE, _within("01 23 45 67", "PIX", "PHB"), 4)
RTX8000 = Machine(
    "4 x RTX8000",
    4,
    dict.fromkeys(_pairs("03 12"), 2),
    {(0, 1): "NODE", (2, 3): "NODE", (0, 2): "SYS", (1, 3): "SYS"},
    socket=2,
)
SIX = Machine(
    "6 cards, PCIe",
    6,
    pcie=_levels(
        6, lambda a, b: "PIX" if a // 2 == b // 2 else "PHB" if a // 4 == b // 4 else "SYS"
    ),
    socket=4,
)
CUBE = Machine(
    "cube mesh",
    8,
    _CUBE,
    {pair: "SYS" for pair in combinations(range(8), 2) if pair not in _CUBE},
)
BRIDGE = Machine(
    "NVLink bridges",
    8,
    dict.fromkeys(_BRIDGED, 12),
    {pair: level for pair, level in _within("", "", "PXB").items() if pair not in _BRIDGED},
    socket=4,
)
PCIE = Machine("8 cards, PCIe", 8, pcie=_within("01 23 45 67", "PIX", "PXB"), socket=4)
SWITCH = Machine("NVSwitch", 8, dict.fromkeys(combinations(range(8), 2), 18))


@lru_cache(maxsize=64)
def plain(count: int) -> Machine:
    """Return a machine of whose links nothing is known."""
    return Machine(f"{count} cards", count)


def choose_as_nvidia(
    machine: Machine, free: Sequence[int], size: int, required: frozenset[int] = frozenset()
) -> tuple[int, ...]:
    """Choose as NVIDIA's best-effort policy: the best set of the best division into such sets.

    Empty where the policy has no answer, or gives one that is not full (a known fault of it).
    """
    if not 0 < size <= len(free) or len(required) > size:
        return ()
    padding = -len(free) % size
    best: list[tuple[int, ...]] = []
    most = -1
    for division in _divisions([*free, *[-1] * padding], size, padding):
        if any(-1 not in each and required <= {*each} for each in division):
            total = sum(_score(machine, each) for each in division)
            if total > most:
                best, most = division, total
    fitting = [each for each in best if required <= {*each}]
    chosen = max(fitting, key=lambda each: _score(machine, each), default=())
    return () if -1 in chosen else chosen


@lru_cache(maxsize=65536)
def _score(machine: Machine, cards: tuple[int, ...]) -> int:
    return machine.score(card for card in cards if card >= 0)


def _divisions(cards: list[int], size: int, padding: int) -> Iterator[list[tuple[int, ...]]]:
    """Divide cards, padded with -1, into sets; the padding stays together."""
    if size == 1:
        for card in cards:
            yield [(card,)]
        return
    if len(cards) == size:
        yield [tuple(cards)]
        return
    first, *others = cards
    for places in combinations(range(len(others)), size - 1):
        chosen = (first, *(others[place] for place in places))
        if chosen.count(-1) not in (0, padding):
            continue
        rest = [card for place, card in enumerate(others) if place not in places]
        for more in _divisions(rest, size, padding):
            yield [chosen, *more]
