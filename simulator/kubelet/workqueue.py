"""Keys to work on, now or later; one key is never worked on by two threads at once.

The same idea as client-go's: a key added while it is worked on is worked on again, and
adding it twice before that is once.
"""

import heapq
import threading
import time
from collections.abc import Callable

from simulator.kubelet.errors import Stopping

Work = Callable[[str], float | None]
"""Works on a key; answers in how many seconds to work on it again, or ``None``."""


class WorkQueue:
    """A few threads that work on keys.

    Args:
        name: of the threads.
        work: called with a key; a :class:`Stopping` from it ends the queue.
        threads: how many.
    """

    def __init__(self, name: str, work: Work, *, threads: int) -> None:
        self._work = work
        self._changed = threading.Condition()
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._busy: set[str] = set()
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{index}", daemon=True)
            for index in range(threads)
        ]

    def start(self) -> None:
        """Begin to work."""
        for thread in self._threads:
            thread.start()

    def add(self, key: str, delay: float = 0.0) -> None:
        """Work on *key* after *delay* seconds, or earlier if it was due earlier."""
        due = time.monotonic() + delay
        with self._changed:
            known = self._due.get(key)
            if known is not None and known <= due:
                return
            self._due[key] = due
            heapq.heappush(self._heap, (due, key))
            self._changed.notify()

    def stop(self) -> None:
        """Take no more work; what is under way goes on until :meth:`join`."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def join(self, timeout: float) -> None:
        """Wait for the threads to end."""
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _next(self) -> str | None:
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                wait: float | None = None
                skipped: list[tuple[float, str]] = []
                found: str | None = None
                while self._heap:
                    due, key = self._heap[0]
                    if self._due.get(key) != due:
                        heapq.heappop(self._heap)  # due at another time by now
                    elif due > now:
                        wait = due - now
                        break
                    elif key in self._busy:
                        skipped.append(heapq.heappop(self._heap))
                    else:
                        heapq.heappop(self._heap)
                        found = key
                        break
                for entry in skipped:  # done() wakes us for these
                    heapq.heappush(self._heap, entry)
                if found is not None:
                    del self._due[found]
                    self._busy.add(found)
                    return found
                self._changed.wait(wait)
            return None

    def _run(self) -> None:
        while (key := self._next()) is not None:
            again: float | None = None
            try:
                again = self._work(key)
            except Stopping:
                self.stop()
            finally:
                with self._changed:
                    self._busy.discard(key)
                    self._changed.notify_all()
            if again is not None:
                self.add(key, again)
