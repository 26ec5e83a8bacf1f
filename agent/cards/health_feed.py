"""The set of unhealthy cards, for the streams that wait for a change of it.

No I/O. Safe to share between threads.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """The unhealthy cards at one moment."""

    version: int = 0
    """Counts the changes."""
    unhealthy: frozenset[str] = frozenset()
    """UUIDs of the cards whose places are not to be given out: ill, or cordoned."""


class HealthFeed:
    """Holds the unhealthy cards, and wakes the threads that wait for a change."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._snapshot = HealthSnapshot()
        self._ill: frozenset[str] = frozenset()
        self._cordoned: frozenset[str] = frozenset()

    @property
    def showing(self) -> HealthSnapshot:
        """The present snapshot."""
        return self._snapshot

    def turn(self, uuid: str, *, healthy: bool) -> None:
        """Set a card's health; setting the same again changes nothing."""
        with self._changed:
            self._ill = self._ill - {uuid} if healthy else self._ill | {uuid}
            self._show()

    def cordon(self, uuids: frozenset[str]) -> None:
        """Set the cordoned cards."""
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
        """Wait for a snapshot later than *version*.

        Several changes may be returned as one. *leave* is called after every :meth:`wake`; once it
        returns true, ``None`` is returned.
        """
        with self._changed:
            self._changed.wait_for(lambda: leave() or self._snapshot.version > version)
            return None if leave() else self._snapshot
