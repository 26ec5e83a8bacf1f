"""A gate before the kubelet's calls: counts those under way, and can make new ones wait.

While no plugin is registered, the kubelet fails every GPU pod that it admits (fact K19); a call, in
contrast, may take its time (K10: 30 s for PreStartContainer, without limit the others). So an
agent registers first and reads the kubelet's record and the API server's pods afterwards. And
while one agent hands over to the next, no call is decided by either.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from agent.allocator.model.answer import Answer
from agent.kubelet.server import Calls
from contract.resource import Resource


class CallGate:
    """Passes calls on to what answers them. Implements :class:`agent.kubelet.server.Calls`."""

    def __init__(self, calls: Calls, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Keep every call waiting, until ``open``.

        Args:
            calls: what answers.
            clock: seconds, monotonic.
        """
        self._calls = calls
        self._clock = clock
        self._changed = threading.Condition()
        self._closed = True
        self._under_way = 0
        self._last = clock()
        self._after: Callable[[], None] = lambda: None

    def prefer(
        self, resource: Resource, available: Sequence[str], must: Sequence[str], size: int
    ) -> list[str]:
        """Choose places."""
        with self._passage():
            return self._calls.prefer(resource, available, must, size)

    def allocate(self, resource: Resource, device_ids: Sequence[str]) -> Answer:
        """Translate device IDs, and assign their places."""
        with self._passage():
            return self._calls.allocate(resource, device_ids)

    def prestart(self, resource: Resource, device_ids: Sequence[str]) -> None:
        """Prove a container."""
        with self._passage():
            self._calls.prestart(resource, device_ids)

    def close(self, within: float) -> bool:
        """Stop new calls; return whether those under way ended *within* seconds."""
        with self._changed:
            self._closed = True
        return self.settle(within)

    def settle(self, within: float) -> bool:
        """Wait until no call is under way; tell whether that is so *within* seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._under_way, within)

    def open(self, after: Callable[[], None] = lambda: None) -> None:
        """Let calls begin; *after* is called at the end of each, before it is answered."""
        with self._changed:
            self._after = after
            self._closed = False
            self._last = self._clock()
            self._changed.notify_all()

    def idle(self) -> float:
        """Return the seconds since the last call ended; 0 while one is under way."""
        with self._changed:
            return 0.0 if self._under_way else self._clock() - self._last

    @contextmanager
    def _passage(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._under_way += 1
        try:
            yield
        finally:
            try:
                self._after()
            finally:
                with self._changed:
                    self._under_way -= 1
                    self._last = self._clock()
                    self._changed.notify_all()
