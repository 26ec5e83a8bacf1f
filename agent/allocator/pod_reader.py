"""Reading pods from the API while a call of the kubelet waits: in time, with another try."""

import time
from collections.abc import Callable, Iterable

from agent.allocator.model.ports import PodSource
from agent.errors import Unavailable
from placement.pods import Key

_PAUSES = (0.05, 0.2)
# After so many failures in a row the API server is away, and another try is a waste of time.
_AWAY_AFTER = 4


class PodReader:
    """Reads pods within a deadline. Safe to share between threads."""

    def __init__(
        self,
        pods: PodSource,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """Read from *pods*; *clock* and *pause* are in seconds."""
        self._pods = pods
        self._clock = clock
        self._pause = pause
        self._failures = 0

    def deadline(self, within: float) -> float:
        """Return the time *within* seconds from now."""
        return self._clock() + within

    def read(self, keys: Iterable[Key], *, deadline: float) -> bool:
        """Ask for pods, one after the other; return whether all answers came in time."""
        return all(self._read(key, deadline) for key in keys)

    def _read(self, key: Key, deadline: float) -> bool:
        pauses = _PAUSES if self._failures < _AWAY_AFTER else _PAUSES[:1]
        for pause in (*pauses, None):
            left = deadline - self._clock()
            if left <= 0:
                break
            try:
                # So that an answer that never comes leaves time for another try.
                within = left if pause is None else left / 2
                self._pods.fetch(*key, within=within)
            except Unavailable:
                self._failures += 1
                if pause is not None:
                    self._pause(min(pause, max(deadline - self._clock(), 0)))
            else:
                self._failures = 0
                return True
        return False

    def refresh(self, *, within: float) -> bool:
        """List the node's pods once, in so many seconds; return whether that could be had."""
        try:
            self._pods.refresh(within=within)
        except Unavailable:
            self._failures += 1
            return False
        self._failures = 0
        return True
