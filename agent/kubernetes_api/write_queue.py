"""A queue of writes to the API server: one thread, the newest item of each key, retries.

Allocations, Events and the inventory differ in what they write, and in which writes can be dropped.
The rest is here.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from agent.errors import Unavailable
from agent.kubernetes_api.client import Gone, Rejected
from common.backoff import pause_after

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

MOST_REMEMBERED = 1024
"""So many keys are remembered with the value that was last written."""


class HopelessWrite(Exception):
    """No later try can succeed: the write is dropped."""


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[T]):
    """The waiting write of one key.

    Attributes:
        item: the newest item, or all items merged.
        due: when it may be tried, by the clock.
        failures: number of failed tries.
        refusals: number of tries that the API server rejected.
    """

    item: T
    due: float
    failures: int = 0
    refusals: int = 0


class WriteQueue(ABC, Generic[K, T]):
    """A queue of writes. :meth:`run` belongs to one thread, all else to any.

    A failed write is tried again after increasing pauses. Other keys are not delayed; new items
    of its key wait with it.
    """

    def __init__(
        self,
        *,
        backoff: tuple[float, float],
        on_result: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        most_waiting: int | None = None,
        most_refusals: int | None = None,
    ) -> None:
        """Start empty.

        Args:
            backoff: the shortest and the longest pause after a failure, in seconds.
            on_result: called with the result of each try: ``written``, ``retried`` or ``dropped``.
            clock: returns monotonic seconds.
            most_waiting: number of keys that may wait; a further one displaces the oldest.
            most_refusals: number of rejections after which a key is dropped.
        """
        self._backoff = backoff
        self._on_result = on_result
        self._clock = clock
        self._most_waiting = most_waiting
        self._most_refusals = most_refusals
        self._changed = threading.Condition()
        self._stopping = False
        self._waiting: OrderedDict[K, _Waiting[T]] = OrderedDict()
        self._writing: K | None = None

    # --- for subclasses ----------------------------------------------------------------

    @abstractmethod
    def _write(self, key: K, item: T) -> float | None:
        """Write an item.

        Returns:
            ``None`` if it is written; the seconds until the next try if it was too early to write.

        Raises:
            HopelessWrite: no later try can succeed.
            Rejected, Gone, Unavailable: a later try can succeed.
        """

    @abstractmethod
    def _log_failure(self, key: K, error: Exception, *, dropped: bool) -> None:
        """Log that a write has failed, and is either dropped or tried again."""

    def _merge(self, older: T, newer: T) -> T:  # noqa: ARG002 -- by default the newer one
        """Return the item to write instead of two items of one key."""
        return newer

    def _drops_first(self, key: K) -> bool:  # noqa: ARG002 -- by default all keys alike
        """Return whether a key is dropped before others if too many wait."""
        return True

    # --- the queue ---------------------------------------------------------------------

    def pending(self) -> int:
        """Count the keys that are not written yet."""
        with self._changed:
            return len(self._waiting) + (self._writing not in {None, *self._waiting})

    def stop(self) -> None:
        """Make :meth:`run` return; items that are not written yet are dropped."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        """Write until stopped."""
        while self._wait():
            self.write_next()

    def pause(self) -> float | None:
        """Return the seconds until something is due, ``None`` if nothing waits."""
        with self._changed:
            first = min((each.due for each in self._waiting.values()), default=None)
            return None if first is None else first - self._clock()

    def write_next(self) -> None:
        """Try the write with the earliest due time, even if that is not reached yet."""
        with self._changed:
            key = min(self._waiting, key=lambda each: self._waiting[each].due)
            tried = self._waiting.pop(key)
            self._writing = key
        try:
            pause = self._write(key, tried.item)
        except (HopelessWrite, Rejected, Gone, Unavailable) as error:
            self._fail(key, tried, error)
        except Exception as error:  # a defect with one key must not end the thread
            log.exception("write failed", extra={"object": str(key)})
            self._fail(key, tried, error)
        else:
            if pause is None:
                self._end_try(key, None)
                self._on_result("written")
            else:
                self._end_try(key, _Waiting(tried.item, self._clock() + pause))

    def _enqueue(self, key: K, item: T, *, after: float = 0.0) -> None:
        """Queue an item, due in so many seconds, or sooner if its key is queued again."""
        pushed_out = False
        with self._changed:
            new = _Waiting(item, self._clock() + after)
            self._waiting[key] = self._join(self._waiting.pop(key, None), new)
            if self._most_waiting is not None and len(self._waiting) > self._most_waiting:
                oldest = next(iter(self._waiting))
                del self._waiting[next(filter(self._drops_first, self._waiting), oldest)]
                pushed_out = True
            self._changed.notify()
        if pushed_out:
            self._on_result("dropped")

    def _wait(self) -> bool:
        """Wait until a write is due; return ``False`` once the queue is stopped."""
        with self._changed:
            while not self._stopping:
                pause = self.pause()
                if pause is not None and pause <= 0:
                    return True
                self._changed.wait(pause)
            return False

    def _fail(self, key: K, tried: _Waiting[T], error: Exception) -> None:
        """Postpone a failed write, or drop it."""
        failures = tried.failures + 1
        refusals = tried.refusals + isinstance(error, Rejected | Gone)
        dropped = isinstance(error, HopelessWrite) or refusals == self._most_refusals
        self._log_failure(key, error, dropped=dropped)
        due = self._clock() + pause_after(failures, *self._backoff)
        self._end_try(key, None if dropped else _Waiting(tried.item, due, failures, refusals))
        self._on_result("dropped" if dropped else "retried")

    def _end_try(self, key: K, again: _Waiting[T] | None) -> None:
        """End the present try; if *again* is given, queue it as the oldest."""
        with self._changed:
            self._writing = None
            if again is not None:
                newer = self._waiting.get(key)
                self._waiting[key] = self._join(again, newer) if newer else again
                self._waiting.move_to_end(key, last=False)

    def _join(self, older: _Waiting[T] | None, newer: _Waiting[T]) -> _Waiting[T]:
        """Return the write that replaces both; a failed write keeps its due time."""
        if older is None:
            return newer
        due = older.due if older.failures else min(older.due, newer.due)
        return replace(older, item=self._merge(older.item, newer.item), due=due)


def remember(known: OrderedDict[K, T], key: K, value: T) -> None:
    """Store a value as the newest, and remove the oldest beyond :data:`MOST_REMEMBERED`."""
    known[key] = value
    known.move_to_end(key)
    while len(known) > MOST_REMEMBERED:
        known.popitem(last=False)
