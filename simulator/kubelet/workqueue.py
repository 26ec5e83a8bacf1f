"""A queue of keys to process now or later, each by one thread at a time.

As client-go's: a key added while it is processed is processed again, once even if it was added
twice.
"""

import threading
import time
from collections.abc import Callable

from simulator.kubelet.errors import Stopping

Work = Callable[[str], float | None]
"""Processes a key; returns in how many seconds to do so again, or ``None``."""


class WorkQueue:
    """A few threads that process keys.

    Args:
        work: called with a key; if it raises :class:`Stopping`, the queue ends.
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
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def add(self, key: str, delay: float = 0.0) -> None:
        """Process *key* after *delay* seconds, or earlier if it was due earlier."""
        due = time.monotonic() + delay
        with self._changed:
            self._due[key] = min(due, self._due.get(key, due))
            self._changed.notify()

    def stop(self) -> None:
        """Start no more work; :meth:`join` waits for the work in progress."""
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
                self._changed.wait(wait)  # notified when a busy key is done
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
