"""What is being read, on standard error, while a person waits for it."""

import threading
import time
from collections.abc import Callable
from typing import TextIO

_QUIET_SECONDS = 0.5
"""What is faster than this needs no progress."""


class Progress:
    """Counts what has been read. Safe to share between threads."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """Start to count."""
        self._out = out
        self._clock = clock
        self._since = clock()
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._shown = 0
        self._ended = False

    def __call__(self, what: str, count: int) -> None:
        """Take in how many objects of a kind have been read so far."""
        with self._lock:
            if self._ended:
                return
            self._counts[what] = max(count, self._counts.get(what, 0))
            if not self._out.isatty() or self._clock() - self._since < _QUIET_SECONDS:
                return
            counts = ", ".join(f"{number} {kind}" for kind, number in sorted(self._counts.items()))
            self._write(f"Reading the cluster: {counts}")

    def end(self) -> None:
        """Take it off the screen, which is a page's from here on, whatever is read again."""
        with self._lock:
            self._ended = True
            if self._shown:
                self._write("")

    def _write(self, text: str) -> None:
        self._out.write(f"\r{text.ljust(self._shown)}" + ("" if text else "\r"))
        self._out.flush()
        self._shown = len(text)
