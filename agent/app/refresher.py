"""Learns what containers hold before the agent registers, and refreshes it between calls."""

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass

from agent.holdings.core import NodeCore
from agent.host import process

# The files of deleted pods are removed at every twelfth refresh, and at the second one after a
# release: the API has deleted the pod by then. With MPS a card's daemon runs as long as its files.
_SWEEP_EVERY = 12
_SWEEP_AFTER = 2


@dataclass(frozen=True, slots=True)
class RefreshPace:
    """Intervals, in seconds.

    Attributes:
        refresh: longest delay before a pod gets the annotation that a killed agent did not write.
        release: longest delay before the devices of an ended pod are reported as free.
        sync: longest wait for the node's pods. Without them ``List`` is enough to resolve the
            kubelet's calls; the pods' specs make the evidence better. Meanwhile calls wait at the
            device plugin proxy, at most 20 s.
    """

    refresh: float = 5.0
    release: float = 0.5
    sync: float = 10.0


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
    pace: RefreshPace

    def load(self) -> None:
        """Build the first snapshot, after the list of the node's pods or a timeout."""
        self.synced.wait(self.pace.sync)
        self.core.refresh()
        self.on_tick()
        process.freeze()

    def run(self) -> None:
        """Refresh until the agent stops: write missing annotations, release ended pods."""
        pause = min(self.pace.release, self.pace.refresh)
        often = max(round(self.pace.refresh / pause), 1)
        sweep_at = often * _SWEEP_EVERY
        for tick in itertools.count(1):
            if self.stop.wait(pause):
                return
            if self.core.refresh(thorough=tick % often == 0):
                self.on_released()
                sweep_at = min(sweep_at, tick + often * _SWEEP_AFTER)
            if tick % often == 0:
                self.on_tick()
            if tick >= sweep_at and self.synced.is_set():
                self.core.sweep()
                sweep_at = tick + often * _SWEEP_EVERY
