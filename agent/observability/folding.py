"""Equal news told together: the first few alone, then only how many there were. Pure.

A pod that fits a node by count and none of its cards is refused. Where a controller makes a new
one at once, that goes on for as long as nobody stops it. A log line and an Event for each would
bury everything else.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FoldLimits:
    """How much is told.

    Attributes:
        alone: equal news that are told one by one.
        every: seconds over which further ones are told together.
        quiet: seconds without any after which they are news again.
        kinds: kinds of news that are told apart; any further are told together.
    """

    alone: int = 5
    every: float = 10.0
    quiet: float = 60.0
    kinds: int = 64


@dataclass(slots=True)
class _Kind(Generic[T]):
    told: int = 0
    folded: int = 0
    last: T | None = None
    told_at: float = 0.0
    seen_at: float = 0.0


class Folding(Generic[T]):
    """Decides what is told. Not safe to share between threads: its owner locks."""

    def __init__(self, clock: Callable[[], float], limits: FoldLimits | None = None) -> None:
        """Know nothing yet; *clock* gives seconds."""
        self._clock = clock
        self._limits = limits or FoldLimits()
        self._kinds: dict[Hashable, _Kind[T]] = {}

    def add(self, kind: Hashable, news: T) -> int:
        """Apply news, and return how many are to be told of now with these: 0 is none."""
        now = self._clock()
        entry = self._entry(kind)
        entry.seen_at = now
        if entry.told < self._limits.alone:
            entry.told += 1
            entry.told_at = now
            return 1
        entry.folded += 1
        entry.last = news
        return self._unfold(entry, now)

    def due(self) -> list[tuple[int, T]]:
        """Return what is to be told now though nothing came: how many, and the last of them."""
        now, found = self._clock(), list[tuple[int, T]]()
        for kind, entry in tuple(self._kinds.items()):
            last = entry.last
            count = self._unfold(entry, now)
            if count and last is not None:
                found.append((count, last))
            if not entry.folded and now - entry.seen_at >= self._limits.quiet:
                del self._kinds[kind]
        return found

    def _entry(self, kind: Hashable) -> _Kind[T]:
        known = self._kinds.get(kind)
        if known is None:
            if len(self._kinds) >= self._limits.kinds:
                kind = None  # of its own, and never forgotten for another
            known = self._kinds.setdefault(kind, _Kind())
        return known

    def _unfold(self, entry: _Kind[T], now: float) -> int:
        if not entry.folded or now - entry.told_at < self._limits.every:
            return 0
        count, entry.folded, entry.last, entry.told_at = entry.folded, 0, None, now
        return count
