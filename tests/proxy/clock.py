"""An event loop whose time a test advances, while its sockets are real."""

import asyncio
import threading
import time
from contextlib import suppress

SLOW = 0.1
"""Seconds of a clock in a second: a loaded machine does not exceed the proxy's short timeouts."""


class Clock:
    """The clock of event loops. Safe to share between threads."""

    def __init__(self, speed: float = SLOW) -> None:
        self._speed = speed
        self._advanced = 0.0
        self._loops: list[ClockedLoop] = []

    def __call__(self) -> float:
        return time.monotonic() * self._speed + self._advanced

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass at once; return when the loops are awake."""
        self._advanced += seconds
        for each in self._loops:
            awake = threading.Event()
            with suppress(RuntimeError):  # it is closed
                each.call_soon_threadsafe(awake.set)
                awake.wait(1)

    def make_loop(self) -> asyncio.AbstractEventLoop:
        """Make an event loop with this clock."""
        made = ClockedLoop(self)
        self._loops.append(made)
        return made


class ClockedLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own; timers, timeouts and sleeps follow it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        super().__init__()

    def time(self) -> float:
        return self._clock()
