"""The pods that filter has just refused: kube-scheduler may have asked too early. No I/O.

kube-scheduler tries a pending pod again when its own watch shows that something has changed. If
ours shows that a moment later, filter still refuses the pod, and nothing else may happen for five
minutes. So the pods of the last seconds are remembered, and a thread looks whether they fit by now.
"""

import threading
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from placement.pods import PodInfo
from scheduler.decisions import FilterResult
from scheduler.preemptors import SETTLE_SECONDS
from scheduler.state import State
from scheduler.victims import VictimSearch

_LAG_SECONDS = 10.0
"""How long after kube-scheduler asked a change of ours may be one that it has already seen."""
_MOST_REMEMBERED = 200
_MOST_AT_ONCE = 10
"""Most pods that are taken at once: of many equal ones for one release, few are tried in vain."""


@dataclass(frozen=True, slots=True)
class _RefusedPod:
    """A refused pod, its nodes, when kube-scheduler asked, and the pod's group.

    Changes of the state until *version* have been considered.
    """

    pod: PodInfo
    found: FilterResult
    version: int
    asked: float
    group: str = ""

    def was_refused(self, node: str) -> bool:
        return node in self.found.failed or node in self.found.unresolvable


@dataclass(eq=False)
class RefusedPods:
    """The pods that were refused just now. Thread-safe.

    Attributes:
        clock: monotonic seconds.
    """

    state: State
    clock: Callable[[], float]
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _pods: dict[str, _RefusedPod] = field(default_factory=dict, init=False)

    def consider(self, pod: PodInfo, found: FilterResult, group: str = "") -> None:
        """Remember a pod that fits on no node; forget it if it fits on one."""
        with self._lock:
            self._pods.pop(pod.id.uid, None)
            if not found.fitting:
                if len(self._pods) >= _MOST_REMEMBERED:
                    del self._pods[next(iter(self._pods))]
                self._pods[pod.id.uid] = _RefusedPod(pod, found, found.version, self.clock(), group)

    def pass_over(self, groups: AbstractSet[str]) -> None:
        """Ignore the changes until now for the pods of groups.

        Cards have become free that were kept for these groups, which do not fit on them.
        """
        with self._lock:
            for uid, each in [*self._pods.items()]:
                if each.group and each.group in groups:
                    self._pods[uid] = replace(each, version=self.state.version)

    def take_released(self, search: VictimSearch) -> Sequence[PodInfo]:
        """Take the pods that fit on a node by now that has changed since they were refused.

        A pod that is bound meanwhile, or for which others are evicted, is not among them.
        """
        now, released = self.clock(), list[PodInfo]()
        with self._lock:
            due = [each for each in self._pods.values() if now - each.asked >= SETTLE_SECONDS]
        for each in sorted(due, key=lambda each: each.pod.rank):
            uid = each.pod.id.uid
            with self.state.lock:
                version = self.state.version
                changed = [*filter(each.was_refused, self.state.changed_since(each.version))]
                waits = self.state.find(uid) is not None and not self.state.assumed_on(uid)
                waits = waits and self.state.nominations.find(uid) is None
            fits = waits and search.fits_now(each.pod, changed)
            if fits and len(released) == _MOST_AT_ONCE:
                break
            with self._lock:
                if self._pods.get(uid) is not each:
                    continue  # kube-scheduler has asked again meanwhile
                if fits or not waits or now - each.asked > _LAG_SECONDS:
                    del self._pods[uid]
                else:
                    self._pods[uid] = replace(each, version=version)
            if fits:
                released.append(each.pod)
        return released

    def clear(self) -> None:
        """Forget all pods: another replica leads."""
        with self._lock:
            self._pods.clear()
