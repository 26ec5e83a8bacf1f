"""Reading pods from the API while a call of the kubelet waits: in time, with another try."""

import threading
import time
from collections.abc import Callable, Iterable

from agent.allocator.model.pod_view import Key
from agent.allocator.model.ports import PodSource
from agent.errors import Unavailable

_PAUSES = (0.05, 0.2)
_ASLEEP = threading.Event()  # nobody sets it: waiting for it is a pause
# After so many failures in a row the API server is away, and another try is a waste of time.
_AWAY_AFTER = 4


class PodReader:
    """Reads single pods within a deadline. Safe to share between threads."""

    def __init__(
        self,
        pods: PodSource,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = _ASLEEP.wait,
    ) -> None:
        """Read from *pods*.

        Args:
            pods: the pods of this node.
            clock: seconds, monotonic.
            pause: waits so many seconds.
        """
        self._pods = pods
        self._clock = clock
        self._pause = pause
        self._failures = 0

    def deadline(self, within: float) -> float:
        """Return the time *within* seconds from now."""
        return self._clock() + within

    def read(
        self, keys: Iterable[Key], *, deadline: float, again: bool = False
    ) -> list[Key] | None:
        """Ask for pods, one after the other; a question that fails is asked again.

        Args:
            keys: which pods.
            deadline: when to give up.
            again: ask although the same pods were asked for a moment ago.

        Returns:
            The names that no pod on this node has; ``None`` if the API did not answer in time.
        """
        missing: list[Key] = []
        for key in keys:
            found = self._read(key, deadline, again=again)
            if found is None:
                return None
            if not found:
                missing.append(key)
        return missing

    def _read(self, key: Key, deadline: float, *, again: bool) -> bool | None:
        """Ask for one pod; tell whether there is one, ``None`` without an answer."""
        pauses = _PAUSES if self._failures < _AWAY_AFTER else _PAUSES[:1]
        for pause in (*pauses, None):
            left = deadline - self._clock()
            if left <= 0:
                return None
            try:
                # So that an answer that never comes leaves time for another try.
                within = left if pause is None else left / 2
                view = self._pods.fetch(*key, within=within, again=again)
            except Unavailable:
                self._failures += 1
                if pause is None:
                    return None
                self._pause(min(pause, max(deadline - self._clock(), 0)))
            else:
                self._failures = 0
                return view is not None
        return None

    def refresh(self, *, within: float) -> bool:
        """List the node's pods once; return whether that could be had.

        Args:
            within: seconds for the answer.
        """
        try:
            self._pods.refresh(within=within)
        except Unavailable:
            self._failures += 1
            return False
        self._failures = 0
        return True
