"""Learns what containers hold before the agent registers, and refreshes it between calls."""

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass

from agent.holdings.core import NodeCore
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


@dataclass(frozen=True, kw_only=True)
class Refresher:
    """Refreshes what containers hold periodically: for missing annotations and for ended pods.

    *synced* is set once the node's pods are listed, and together with *stop*. *on_released* is
    called when something that a container held has become free, *on_tick* every few seconds.
    """

    core: NodeCore
    synced: threading.Event
    stop: threading.Event
    on_released: Callable[[], None]
    on_tick: Callable[[], None]

    def load(self) -> None:
        """Build the first snapshot, after the list of the node's pods or a timeout."""
        self.synced.wait(_SYNC_SECONDS)
        self.core.refresh()
        self.on_tick()
        process.freeze()

    def run(self) -> None:
        """Refresh until the agent stops: write missing annotations, release ended pods."""
        pause = min(_RELEASE_SECONDS, _REFRESH_SECONDS)
        often = max(round(_REFRESH_SECONDS / pause), 1)
        for tick in itertools.count(1):
            if self.stop.wait(pause):
                return
            if self.core.refresh(thorough=tick % often == 0):
                self.on_released()
            if tick % often == 0:
                self.on_tick()
            if tick % (often * _SWEEP_EVERY) == 0 and self.synced.is_set():
                self.core.sweep()
