"""Reads the record before the agent registers, and keeps it true though no call comes."""

import itertools
import threading
from collections.abc import Callable

from agent.allocator.allocator import Allocator
from agent.app.container_setup import EnforcerRunner
from agent.host import process

# How long a running pod waits at most for the annotation that an agent killed in between owes it.
_REFRESH_SECONDS = 5.0
# How long the node shows what an ended pod held as taken, at most.
_RELEASE_SECONDS = 0.5
# What enforcement made for pods that are gone is removed each so many times.
_SWEEP_EVERY = 12
# How long the API server is waited for: what List shows is enough to answer the kubelet's calls,
# the pods' specs only make it better. Meanwhile the device plugin proxy keeps calls waiting, for
# 20 s at most.
_SYNC_SECONDS = 10.0


class Refresher:
    """Looks after the record, and after pods that nothing happens to any more."""

    def __init__(  # noqa: PLR0913 -- what it looks after, by keyword
        self,
        *,
        allocator: Allocator,
        upkeep: EnforcerRunner,
        synced: threading.Event,
        stop: threading.Event,
        on_released: Callable[[], None],
        on_tick: Callable[[], None],
    ) -> None:
        """Prepare; nothing is read yet.

        *synced* tells whether the node's pods are known; it is set with *stop*, too. *on_released*
        is told when what an ended pod held has become free, *on_tick* every few seconds.
        """
        self._allocator = allocator
        self._upkeep = upkeep
        self._synced = synced
        self._stop = stop
        self._on_released = on_released
        self._on_tick = on_tick

    def load(self) -> None:
        """Read the record, once the node's pods are known or have been waited for."""
        self._synced.wait(_SYNC_SECONDS)
        self._allocator.refresh()
        self._tick()
        process.freeze()

    def run(self) -> None:
        """Look after pods that wait for their annotation or have ended, until the agent ends."""
        pause = min(_RELEASE_SECONDS, _REFRESH_SECONDS)
        often = max(round(_REFRESH_SECONDS / pause), 1)
        for tick in itertools.count(1):
            if self._stop.wait(pause):
                return
            if self._allocator.refresh(thorough=tick % often == 0):
                self._on_released()
            if tick % often == 0:
                self._tick()
            if tick % (often * _SWEEP_EVERY) == 0 and self._synced.is_set():
                self._allocator.sweep()

    def _tick(self) -> None:
        self._upkeep.tick()
        self._on_tick()
