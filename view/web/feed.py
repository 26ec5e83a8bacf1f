"""Server-sent events: tells browsers that there is a newer edition. No HTTP.

An event is a number and nothing else, so a slow browser misses none: it wakes up to the newest.
The number of streams is bounded, because each holds a thread of the server; so is the life of
each, after which a browser connects anew by itself.
"""

import threading
import time
from collections.abc import Callable, Iterator

RETRY_SECONDS = 3
HEARTBEAT_SECONDS = 15.0
LIFE_SECONDS = 600.0


class Feed:
    """The newest edition's number, and the streams that wait for the next."""

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without streams.

        Args:
            most: streams at the same time.
            clock: seconds, monotonic.
        """
        self.most = most
        self.refused = 0
        self._clock = clock
        self._changed = threading.Condition()
        self._open = 0
        self._number = 0
        self._closed = False

    @property
    def streams(self) -> int:
        """How many are open."""
        return self._open

    def publish(self, number: int) -> None:
        """Announce an edition to every stream."""
        with self._changed:
            self._number = number
            self._changed.notify_all()

    def close(self) -> None:
        """End every stream."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def open(self, seen: int) -> "Stream | None":
        """Open a stream; ``None`` when there are too many.

        Args:
            seen: the edition that the browser has.
        """
        with self._changed:
            if self._open >= self.most or self._closed:
                self.refused += 1
                return None
            self._open += 1
        return Stream(self, seen, self._clock() + LIFE_SECONDS)

    def leave(self) -> None:
        """Count a stream no more."""
        with self._changed:
            self._open -= 1

    def wait(self, seen: int, until: float) -> int | None:
        """Wait for an edition other than *seen*; return its number.

        Args:
            seen: the edition that the browser has.
            until: when the stream ends.

        Returns:
            ``0`` when it is time for a heartbeat, ``None`` at the end.
        """
        beat = self._clock() + HEARTBEAT_SECONDS
        with self._changed:
            while True:
                now = self._clock()
                if self._closed or now >= until:
                    return None
                if self._number not in (0, seen):
                    return self._number
                if now >= beat:
                    return 0
                self._changed.wait(min(beat, until) - now)


class Stream:
    """The events of one browser. Not a generator: one that never started would not be closed."""

    def __init__(self, feed: Feed, seen: int, until: float) -> None:
        self._feed = feed
        self._seen = seen
        self._until = until
        self._begun = False
        self._left = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if not self._begun:  # sent at once, so that the browser knows it is connected
            self._begun = True
            return f"retry: {RETRY_SECONDS * 1000}\n\n".encode()
        number = self._feed.wait(self._seen, self._until)
        if number is None:
            raise StopIteration
        if not number:
            return b": heartbeat\n\n"
        self._seen = number
        return f"id: {number}\nevent: edition\ndata: {number}\n\n".encode()

    def close(self) -> None:
        """Make room for another; as often as one likes."""
        if not self._left:
            self._left = True
            self._feed.leave()
