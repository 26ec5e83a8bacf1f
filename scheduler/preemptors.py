"""The pods that fit on no node, from kube-scheduler's request until victims are looked for.

No I/O. Filter reports them, and kube-scheduler's own preemption; a thread takes those that are due.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from placement.pods import PodInfo
from scheduler.decisions import FilterResult
from scheduler.nominations import read_standing
from scheduler.state import State

SETTLE_SECONDS = 0.3
"""kube-scheduler asks first about a node that it expects to fit, and then about all."""

AGAIN_SECONDS = 5.0
"""How long after one attempt the next one for the same pod follows."""

_STALE_SECONDS = 60.0
"""How long after kube-scheduler asked about a pod its nodes still count."""
_MOST_WAITING = 1000


@dataclass(frozen=True, slots=True)
class Preemptor:
    """A pod that fits nowhere, as kube-scheduler asked about it. Times are monotonic seconds.

    Attributes:
        pod: the pod.
        priority: its priority.
        nodes: the nodes on which no card has room.
        victims: UIDs of the pods that kube-scheduler would evict, by node, where the totals do not
            suffice.
        since: when kube-scheduler asked for the first time.
        asked: when it asked last.
        due: when victims are looked for.
    """

    pod: PodInfo
    priority: int
    nodes: Sequence[str]
    victims: Mapping[str, Sequence[str]]
    since: float
    asked: float
    due: float


@dataclass(eq=False)
class Preemptors:
    """The pods for which victims will be looked for. Thread-safe.

    Attributes:
        clock: monotonic seconds.
        changed: set when there is a new one.
    """

    state: State
    clock: Callable[[], float]
    changed: threading.Event = field(default_factory=threading.Event, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _waiting: dict[str, Preemptor] = field(default_factory=dict, init=False)
    _since: dict[str, float] = field(default_factory=dict, init=False)

    def consider(self, obj: Mapping[str, Any], pod: PodInfo, found: FilterResult) -> bool:
        """Remember a pod that fits on no node; forget it if it fits on one.

        *found* is what filter has found for the nodes that passed kube-scheduler's filters.

        Returns:
            Whether victims are looked for, by the replica that leads.
        """
        standing = read_standing(obj)
        with self._lock:
            self._waiting.pop(pod.id.uid, None)
            if found.fitting:
                self._since.pop(pod.id.uid, None)
            if found.fitting or not found.failed or not standing.may_preempt:
                return False
            if len(self._waiting) >= _MOST_WAITING:
                del self._waiting[next(iter(self._waiting))]
            self._waiting[pod.id.uid] = self._preemptor(pod, standing.priority, found.failed)
        self.changed.set()
        return True

    def take_over(
        self, obj: Mapping[str, Any], pod: PodInfo, victims: Mapping[str, Sequence[str]]
    ) -> bool:
        """Look for better victims than kube-scheduler has found by the totals of nodes.

        *victims* has the UIDs of kube-scheduler's victims, by node.

        Returns:
            Whether kube-scheduler must evict nobody: not if none of its nodes is one of ours, or
            all need the end of pods without cards.
        """
        uid = pod.id.uid
        with self.state.lock:
            if uid in self.state.nominations.by_pod:
                return True
            ours = {
                node: uids
                for node, uids in victims.items()
                if all(self.state.node_of(each) == node for each in uids)
            }
        if not ours:
            return False
        priority = read_standing(obj).priority
        with self._lock:
            waiting = self._waiting.get(uid) or self._preemptor(pod, priority, ())
            nodes = (*waiting.nodes, *(each for each in ours if each not in waiting.nodes))
            self._waiting[uid] = replace(waiting, nodes=nodes, victims=ours)
        self.changed.set()
        return True

    def _preemptor(self, pod: PodInfo, priority: int, nodes: Iterable[str]) -> Preemptor:
        now = self.clock()
        since = self._since.setdefault(pod.id.uid, now)
        return Preemptor(pod, priority, tuple(nodes), {}, since, now, now + SETTLE_SECONDS)

    def take_due(self) -> list[Preemptor]:
        """Take the pods whose time has come, the highest priority first."""
        now = self.clock()
        with self._lock:
            self._since = {
                uid: since
                for uid, since in self._since.items()
                if uid in self._waiting or self.state.find(uid) is not None
            }
            due = [each for each in self._waiting.values() if each.due <= now]
            for each in due:
                del self._waiting[each.pod.id.uid]
        return sorted(due, key=lambda each: (-each.priority, each.pod.rank))

    def put_back(self, preemptor: Preemptor) -> None:
        """Keep a pod that was taken, unless kube-scheduler has asked about it meanwhile."""
        with self._lock:
            self._waiting.setdefault(preemptor.pod.id.uid, preemptor)

    def try_again(self, preemptor: Preemptor) -> None:
        """Look again soon: kube-scheduler does not hear that a budget allows more by now.

        But not for long, because other filters of kube-scheduler may have changed meanwhile.
        """
        now = self.clock()
        if now - preemptor.asked < _STALE_SECONDS:
            self.put_back(replace(preemptor, due=now + AGAIN_SECONDS))

    def clear(self) -> None:
        """Forget the pods that wait: another replica leads."""
        with self._lock:
            self._waiting.clear()
