"""Keys to work on, now or later; one key is never worked on by two threads at once.

The same idea as client-go's: a key added while it is worked on is worked on again, and
adding it twice before that is once.
"""

import threading
import time
from collections.abc import Callable

from simulator.kubelet.errors import Stopping

Work = Callable[[str], float | None]
"""Works on a key; answers in how many seconds to work on it again, or ``None``."""


class WorkQueue:
    """A few threads that work on keys.

    Args:
        work: called with a key; a :class:`Stopping` from it ends the queue.
    """

    def __init__(self, name: str, work: Work, *, threads: int) -> None:
        self._work = work
        self._changed = threading.Condition()
        self._due: dict[str, float] = {}
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
            self._due[key] = min(due, self._due.get(key, due))
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
                free = ((due, key) for key, due in self._due.items() if key not in self._busy)
                due, key = min(free, default=(None, ""))
                wait = None if due is None else due - time.monotonic()
                if wait is not None and wait <= 0:
                    del self._due[key]
                    self._busy.add(key)
                    return key
                self._changed.wait(wait)  # whoever is done wakes us for what was busy
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
