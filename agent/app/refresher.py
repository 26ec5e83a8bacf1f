"""Builds the snapshot before the agent registers, and refreshes it between calls."""

import itertools
import threading
from collections.abc import Callable
from typing import Protocol

from agent.app.container_setup import EnforcerRunner
from agent.host import process

# Longest delay before a pod gets the annotation that a killed agent did not write.
_REFRESH_SECONDS = 5.0
# Longest delay before the devices of an ended pod are reported as free.
_RELEASE_SECONDS = 0.5
# The files of deleted pods are removed at every twelfth refresh.
_SWEEP_EVERY = 12
# Longest wait for the node's pods. Without them List is enough to resolve the kubelet's calls; the
# pods' specs make the evidence better. Meanwhile calls wait at the device plugin proxy, at most
# 20 s.
_SYNC_SECONDS = 10.0


class Refreshable(Protocol):
    """What is refreshed: the allocator, or the driver of claims."""

    def refresh(self, *, thorough: bool = True) -> bool:
        """Apply changes that came without a call; return whether something has become free."""
        ...

    def sweep(self) -> None:
        """Remove the files of deleted pods."""
        ...


class Refresher:
    """Refreshes the snapshot periodically: for missing annotations and for ended pods."""

    def __init__(  # noqa: PLR0913 -- its surroundings, by keyword
        self,
        *,
        allocator: Refreshable,
        enforcer_runner: EnforcerRunner,
        synced: threading.Event,
        stop: threading.Event,
        on_released: Callable[[], None],
        on_tick: Callable[[], None],
    ) -> None:
        """Prepare; nothing is read yet.

        *synced* is set once the node's pods are listed, and together with *stop*. *on_released* is
        called when devices of an ended pod have become free, *on_tick* every few seconds.
        """
        self._allocator = allocator
        self._enforcer_runner = enforcer_runner
        self._synced = synced
        self._stop = stop
        self._on_released = on_released
        self._on_tick = on_tick

    def load(self) -> None:
        """Build the first snapshot, after the list of the node's pods or a timeout."""
        self._synced.wait(_SYNC_SECONDS)
        self._allocator.refresh()
        self._tick()
        process.freeze()

    def run(self) -> None:
        """Refresh until the agent stops: write missing annotations, release ended pods."""
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
        self._enforcer_runner.tick()
        self._on_tick()
