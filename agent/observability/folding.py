"""Equal news told together: the first few alone, then only how many there were. Pure.

A pod that fits a node by count and none of its cards is refused. Where a controller makes a new
one at once, that goes on for as long as nobody stops it. A log line and an Event for each would
bury everything else.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


ALONE = 5
"""So many equal news are told one by one."""
EVERY_SECONDS = 10.0
"""Over so long further ones are told together."""
QUIET_SECONDS = 60.0
"""After so long without any they are news again."""
MOST_KINDS = 64
"""Kinds of news that are told apart; any further are told together."""


@dataclass(slots=True)
class _Kind(Generic[T]):
    told: int = 0
    folded: int = 0
    last: T | None = None
    told_at: float = 0.0
    seen_at: float = 0.0


class Folding(Generic[T]):
    """Decides what is told. Not safe to share between threads: its owner locks."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Know nothing yet; *clock* gives seconds."""
        self._clock = clock
        self._kinds: dict[Hashable, _Kind[T]] = {}

    def add(self, kind: Hashable, news: T) -> int:
        """Apply news, and return how many are to be told of now with these: 0 is none."""
        now = self._clock()
        entry = self._entry(kind)
        entry.seen_at = now
        if entry.told < ALONE:
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
            if not entry.folded and now - entry.seen_at >= QUIET_SECONDS:
                del self._kinds[kind]
        return found

    def _entry(self, kind: Hashable) -> _Kind[T]:
        known = self._kinds.get(kind)
        if known is None:
            if len(self._kinds) >= MOST_KINDS:
                kind = None  # of its own, and never forgotten for another
            known = self._kinds.setdefault(kind, _Kind())
        return known

    def _unfold(self, entry: _Kind[T], now: float) -> int:
        if not entry.folded or now - entry.told_at < EVERY_SECONDS:
            return 0
        count, entry.folded, entry.last, entry.told_at = entry.folded, 0, None, now
        return count
