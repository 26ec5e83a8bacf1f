"""The nodes of ``data/machines.toml``, and the best-effort policy of ``NVIDIA/go-gpuallocator``."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from pathlib import Path

from contract.inventory import Link

Pair = tuple[int, int]

PCIE_SCORES = {"": 0, "SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50}
NVLINK_SCORE = 100


@dataclass(frozen=True)
class Machine:
    """Cards and what is between them; ``socket`` is the cards of a NUMA node, 0 if not known."""

    name: str
    count: int
    nvlinks: Mapping[Pair, int] = field(default_factory=dict, hash=False)
    pcie: Mapping[Pair, str] = field(default_factory=dict, hash=False)
    socket: int = 0

    def links(self) -> tuple[Link, ...]:
        """Return the links as the agent writes them: the PCIe level of a pair, then its NVLinks."""
        links = []
        for pair in combinations(range(self.count), 2):
            if pair in self.pcie:
                links.append(Link(pair, self.pcie[pair]))
            if pair in self.nvlinks:
                links.append(Link(pair, f"NV{self.nvlinks[pair]}"))
        return tuple(links)

    def numa(self, card: int) -> int | None:
        return card // self.socket if self.socket else None

    def score(self, cards: Iterable[int]) -> int:
        return sum(
            NVLINK_SCORE * self.nvlinks.get(pair, 0) + PCIE_SCORES[self.pcie.get(pair, "")]
            for pair in combinations(sorted(cards), 2)
        )


def _pairs(groups: Mapping[str, str], count: int) -> dict[Pair, str]:
    """Read which pairs have what; ``rest`` are all that were not named before."""
    found: dict[Pair, str] = {}
    for what, text in groups.items():
        rest = (pair for pair in combinations(range(count), 2) if pair not in found)
        named = ((int(pair[0]), int(pair[1])) for pair in text.split() if pair != "rest")
        found |= dict.fromkeys(list(rest) if text == "rest" else named, what)
    return dict(sorted(found.items()))


def _read(path: Path) -> dict[str, Machine]:
    machines = {}
    for name, facts in tomllib.loads(path.read_text(encoding="utf-8")).items():
        count = facts["cards"]
        nvlinks = _pairs(facts.get("nvlinks", {}), count)
        machines[name] = Machine(
            name,
            count,
            {pair: int(links) for pair, links in nvlinks.items()},
            _pairs(facts.get("pcie", {}), count),
            facts.get("socket", 0),
        )
    return machines


MACHINES = _read(Path(__file__).with_name("data") / "machines.toml")


@lru_cache(maxsize=64)
def plain(count: int) -> Machine:
    return Machine(f"{count} cards", count)


def choose_as_nvidia(machine: Machine, free: Sequence[int], size: int) -> tuple[int, ...]:
    """Choose the best set of the best division; empty where the policy's is not full."""
    padding = -len(free) % size
    best: list[tuple[int, ...]] = []
    most = -1
    for division in _divisions([*free, *[-1] * padding], size, padding):
        if any(-1 not in each for each in division):
            total = sum(_score(machine, each) for each in division)
            if total > most:
                best, most = division, total
    chosen = max(best, key=lambda each: _score(machine, each), default=())
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
    for indices in combinations(range(len(others)), size - 1):
        chosen = (first, *(others[index] for index in indices))
        if chosen.count(-1) not in (0, padding):
            continue
        rest = [card for index, card in enumerate(others) if index not in indices]
        for more in _divisions(rest, size, padding):
            yield [chosen, *more]
