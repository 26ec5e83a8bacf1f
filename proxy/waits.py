"""How many calls wait for a plugin, and how long."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

MOST_CALLS = 512
"""Most calls of one resource at a time: more than a node has pods."""
_RECENT_SECONDS = 60.0


class CallWaits:
    """The waiting calls of one resource, or of one driver."""

    def __init__(self) -> None:
        """Start without any."""
        self._waiting: dict[object, float] = {}
        self._waited: deque[tuple[float, float]] = deque(maxlen=MOST_CALLS)

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Count a call as waiting meanwhile."""
        token, began = object(), time.monotonic()
        self._waiting[token] = began
        try:
            yield
        finally:
            del self._waiting[token]
            now = time.monotonic()
            self._waited.append((now, now - began))

    @property
    def waiting(self) -> int:
        """The number of calls that wait."""
        return len(self._waiting)

    def longest(self) -> float:
        """Return the longest wait of a call now or within the last minute, in seconds."""
        now = time.monotonic()
        recent = (waited for end, waited in tuple(self._waited) if now - end < _RECENT_SECONDS)
        current = (now - since for since in tuple(self._waiting.values()))
        return max((*recent, *current), default=0.0)
