"""Finds containers that use more of a card than they hold, for long; reports each once. Pure.

What holds a container to its share is a library inside it, and often there is none. One sample
says little: use of cores comes in bursts, and each process has some hundred MiB of the driver's
own on its card, for which nobody asks.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from agent.allocator.interfaces import ContainerRef
from agent.usage.holdings import HeldShare, Holder
from agent.usage.join import Use, Used

_MIB = 1 << 20
_NOTHING = HeldShare(0, 0)


SPARE_CORES = 10
SPARE_MEMORY = 512 * _MIB
"""Hundredths of a card, and bytes, beyond a share that are let pass."""
LASTING_SECONDS = 30.0
LASTING_LOOKS = 3
"""How long it has to go on, and how many looks in a row have to find it."""


@dataclass(frozen=True, slots=True)
class Overuse:
    """A container that takes more than it holds: of which card and how much."""

    ref: ContainerRef
    text: str


@dataclass(slots=True)
class _Streak:
    """Looks in a row that found too much."""

    since: float
    looks: int = 0


class OveruseWatch:
    """Remembers how long containers have taken too much. For one thread."""

    def __init__(self) -> None:
        self._streaks: dict[ContainerRef, _Streak] = {}
        self._told: set[ContainerRef] = set()

    def look(self, now: float, holders: Iterable[Holder], use: Use) -> list[Overuse]:
        """Apply one measurement; return the containers to report now, each once.

        Containers that hold nothing any more are forgotten.
        """
        there, found = set(), []
        for holder in holders:
            ref = holder.ref
            there.add(ref)
            texts = tuple(_excess(holder, use.get(ref, {})))
            if not texts:
                self._streaks.pop(ref, None)
                continue
            streak = self._streaks.setdefault(ref, _Streak(now))
            streak.looks += 1
            lasting = now - streak.since >= LASTING_SECONDS
            if lasting and streak.looks >= LASTING_LOOKS and ref not in self._told:
                self._told.add(ref)
                found.append(Overuse(ref, "; ".join(texts)))
        self._told &= there
        self._streaks = {ref: each for ref, each in self._streaks.items() if ref in there}
        return found

    def interrupt(self) -> None:
        """Restart all streaks: a measurement has failed."""
        self._streaks.clear()


def _excess(holder: Holder, used: Mapping[str, Used]) -> Iterator[str]:
    """List what a container takes beyond its share, card by card."""
    for uuid, each in sorted(used.items()):
        share = holder.shares.get(uuid, _NOTHING)
        allowed = max(share.cores, holder.core_limit or 0) if share.cores else 0
        if each.cores is not None and each.cores > allowed + SPARE_CORES:
            yield f"uses {each.cores} cores of {uuid} and holds {share.cores}"
        if each.memory is not None and each.memory > share.memory + SPARE_MEMORY:
            yield f"uses {each.memory // _MIB} MiB of {uuid} and holds {share.memory // _MIB}"
