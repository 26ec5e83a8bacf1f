"""Server-sent events that announce new editions and the age of the data. No HTTP.

An event has only the number of the edition, so a slow browser misses nothing: it gets the newest
number. Number and duration of streams are limited; browsers reconnect by themselves.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable

RETRY_SECONDS = 3


class Feed:
    """The number of the newest edition, and the streams that wait for the next one."""

    def __init__(
        self,
        most: int,
        *,
        contact: Callable[[], str] = lambda: "{}",
        heartbeat: float = 4.0,
        duration: float = 600.0,
    ) -> None:
        """Start without streams, of which *most* may be open.

        *contact* returns the age of the data on one line, for an event every *heartbeat* seconds. A
        stream is ended after *duration* seconds.
        """
        self.contact = contact
        self.refused = 0
        self.heartbeat, self.duration = heartbeat, duration
        self.number = 0
        self.closed = False
        self._most = most
        self._lock = threading.Lock()
        self._open: set[Stream] = set()

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return len(self._open)

    def publish(self, number: int) -> None:
        """Announce an edition to every stream. Safe to call from any thread."""
        self.number = number
        self._wake()

    def close(self) -> None:
        """End every stream. Safe to call from any thread."""
        self.closed = True
        self._wake()

    def open(self, seen: int) -> "Stream | None":
        """Open a stream for a browser that has edition *seen*; ``None`` if too many are open."""
        with self._lock:
            if len(self._open) >= self._most or self.closed:
                self.refused += 1
                return None
            stream = Stream(self, seen)
            self._open.add(stream)
        return stream

    def leave(self, stream: "Stream") -> None:
        """Remove a stream; may be called again."""
        with self._lock:
            self._open.discard(stream)

    def _wake(self) -> None:
        with self._lock:
            for each in self._open:
                each.wake()


class Stream:
    """The events for one browser. Not a generator: one that never started would not be closed."""

    def __init__(self, feed: Feed, seen: int) -> None:
        self._feed = feed
        self._seen = seen
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ends = self._beat = 0.0
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Check the feed for news. Safe to call from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._woken.set)

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> bytes:
        loop = asyncio.get_running_loop()
        if self._loop is None:  # sent at once, so that the browser knows it is connected
            self._loop, self._ends = loop, loop.time() + self._feed.duration
            return f"retry: {RETRY_SECONDS * 1000}\n\n".encode()
        while True:
            number, now = self._feed.number, loop.time()
            if self._feed.closed or now >= self._ends:
                raise StopAsyncIteration
            if number not in {0, self._seen}:
                self._seen = number
                return f"id: {number}\nevent: edition\ndata: {number}\n\n".encode()
            if now >= self._beat:
                self._beat = now + self._feed.heartbeat
                return f"event: contact\ndata: {self._feed.contact()}\n\n".encode()
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(self._beat, self._ends)):
                    await self._woken.wait()

    async def aclose(self) -> None:
        """Close the stream; may be called again."""
        self._feed.leave(self)
