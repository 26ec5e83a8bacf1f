"""Which pod is tried next, and when one that failed is tried again. Pure.

As ``pkg/scheduler/backend/queue`` of 1.36 with its default features: hints decide whether an
event helps, waits end at whole seconds, and a pod that waits after a rejection (not after
an error) is taken before its time when nothing else is to do.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from simulator.client import Json
from simulator.scheduler.events import Event, interests

LONGEST_STAY_S = 300.0
"""Seconds after which a rejected pod is tried again without any event."""


@dataclass(slots=True)
class QueuedPod:
    """A pod that waits.

    Attributes:
        pod: as last seen.
        since: when it came, or failed last.
        rejected_by: plugins that rejected it last; none after an error.
        rejections: how often it was rejected, in all.
        errors: how often in a row something went wrong.
    """

    pod: Json
    since: float
    rejected_by: frozenset[str] = frozenset()
    rejections: int = 0
    errors: int = 0

    @property
    def uid(self) -> str:
        """The pod's own."""
        return str(self.pod["metadata"]["uid"])

    @property
    def order(self) -> tuple[int, float, str]:
        """The plugin PrioritySort: by priority, then by age."""
        return (-(self.pod["spec"].get("priority") or 0), self.since, self.uid)


@dataclass(slots=True)
class _Pools:
    active: dict[str, QueuedPod] = field(default_factory=dict)
    backing_off: dict[str, QueuedPod] = field(default_factory=dict)
    rejected: dict[str, QueuedPod] = field(default_factory=dict)


class SchedulingQueue:
    """Pods that wait for a node.

    Args:
        clock: gives seconds.
        initial_backoff_s: seconds after the first failed attempt; each further one doubles it.
        max_backoff_s: seconds, the longest wait.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        initial_backoff_s: float = 1.0,
        max_backoff_s: float = 10.0,
    ) -> None:
        self._clock = clock
        self._initial = initial_backoff_s
        self._longest = max_backoff_s
        self._pools = _Pools()

    def __contains__(self, uid: str) -> bool:
        return any(uid in pool for pool in self._all())

    def add(self, pod: Json) -> None:
        """Take in a pod that was never tried."""
        queued = QueuedPod(pod, self._clock())
        self._pools.active[queued.uid] = queued

    def discard(self, uid: str) -> None:
        """Forget a pod that is gone or has a node."""
        for pool in self._all():
            pool.pop(uid, None)

    def update(self, pod: Json, events: Collection[Event]) -> None:
        """Keep a newer version of a pod that waits, and try it if that may help it."""
        uid = pod["metadata"]["uid"]
        for pool in self._all():
            if uid in pool:
                pool[uid].pod = pod
        queued = self._pools.rejected.get(uid)
        if queued and any(_helps(each, queued) for each in events):
            self._requeue(queued)

    def pop(self) -> QueuedPod | None:
        """Take the pod to try now, or ``None``."""
        self._flush()
        active = self._pools.active
        if active:
            return active.pop(min(active.values(), key=lambda each: each.order).uid)
        early = [each for each in self._pools.backing_off.values() if each.rejected_by]
        if not early:
            return None
        first = min(early, key=lambda each: (self._due(each), each.order))
        return self._pools.backing_off.pop(first.uid)

    def put_back(self, queued: QueuedPod, rejected_by: frozenset[str]) -> None:
        """Put back a pod that was tried in vain.

        Args:
            queued: as it was taken.
            rejected_by: the plugins that rejected it; none where something went wrong, such
                as an extender that did not answer.
        """
        queued.rejected_by = rejected_by
        queued.since = self._clock()
        if rejected_by:
            queued.rejections += 1
            queued.errors = 0
            self._pools.rejected[queued.uid] = queued
        else:
            queued.errors += 1
            self._requeue(queued)

    def move(self, event: Event) -> None:
        """Try again the pods that *event* may help, once their waits are over."""
        for queued in list(self._pools.rejected.values()):
            if _helps(event, queued):
                self._requeue(queued)

    def seconds_to_next(self) -> float | None:
        """Return the seconds until :meth:`pop` may have a pod without any event before."""
        if self._pools.active:
            return 0.0
        now = self._clock()
        waits = [math.floor(self._due(each)) + 1 - now for each in self._pools.backing_off.values()]
        waits += [each.since + LONGEST_STAY_S - now for each in self._pools.rejected.values()]
        return max(min(waits), 0.0) if waits else None

    def _all(self) -> tuple[dict[str, QueuedPod], ...]:
        return (self._pools.active, self._pools.backing_off, self._pools.rejected)

    def _requeue(self, queued: QueuedPod) -> None:
        self._pools.rejected.pop(queued.uid, None)
        waits = self._waits(queued)
        (self._pools.backing_off if waits else self._pools.active)[queued.uid] = queued

    def _flush(self) -> None:
        for queued in list(self._pools.backing_off.values()):
            if not self._waits(queued):
                self._pools.active[queued.uid] = self._pools.backing_off.pop(queued.uid)
        now = self._clock()
        for queued in list(self._pools.rejected.values()):
            if now - queued.since >= LONGEST_STAY_S:
                self._requeue(queued)

    def _waits(self, queued: QueuedPod) -> bool:
        return bool(self._longest) and self._due(queued) >= math.floor(self._clock())

    def _due(self, queued: QueuedPod) -> float:
        count = queued.errors or queued.rejections
        return math.floor(queued.since + backoff_s(count, self._initial, self._longest))


def backoff_s(count: int, initial_s: float, longest_s: float) -> float:
    """Return the seconds to wait after so many failed attempts."""
    if not count:
        return 0.0
    # Doubling is cut short before a number gets too large for a float.
    return min(initial_s * 2.0 ** min(count - 1, 64), longest_s)


def _helps(event: Event, queued: QueuedPod) -> bool:
    return any(interests(plugin, event) for plugin in queued.rejected_by)
