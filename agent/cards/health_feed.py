"""The feed on which the cards' health stands for everyone who streams it.

No I/O: it waits, for as long as nothing changes. Safe to share between threads.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """What stood on the feed at one moment."""

    version: int = 0
    """Counts the changes."""
    unhealthy: frozenset[str] = frozenset()
    """UUIDs of the cards whose places are not to be given out: ill, or cordoned."""


class HealthFeed:
    """Tells which cards are unhealthy, and wakes who waits for a change."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._snapshot = HealthSnapshot()
        self._ill: frozenset[str] = frozenset()
        self._cordoned: frozenset[str] = frozenset()

    @property
    def showing(self) -> HealthSnapshot:
        """What stands there now."""
        return self._snapshot

    def turn(self, uuid: str, *, healthy: bool) -> None:
        """Write a card's health down; the same again is no change."""
        with self._changed:
            self._ill = self._ill - {uuid} if healthy else self._ill | {uuid}
            self._show()

    def cordon(self, uuids: frozenset[str]) -> None:
        """Write down which cards are cordoned, and no others."""
        with self._changed:
            self._cordoned = uuids
            self._show()

    def _show(self) -> None:
        before, unhealthy = self._snapshot, self._ill | self._cordoned
        if unhealthy != before.unhealthy:
            self._snapshot = HealthSnapshot(before.version + 1, unhealthy)
            self._changed.notify_all()

    def wake(self) -> None:
        """Wake all waiters, so that each checks whether to leave."""
        with self._changed:
            self._changed.notify_all()

    def after(self, version: int, *, leave: Callable[[], bool]) -> HealthSnapshot | None:
        """Wait until something later than *version* stands there.

        Changes that came one upon the other are shown as one. *leave* is asked after every
        :meth:`wake`; ``None`` is returned when it gave up.
        """
        with self._changed:
            self._changed.wait_for(lambda: leave() or self._snapshot.version > version)
            return None if leave() else self._snapshot
