"""Follows a nomination: evicts its victims as long as the pod needs their room, and ends it."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from common.apiserver.errors import REQUEST_ERRORS, Rejected, TooManyRequests
from placement.cluster.nodes import Problem
from placement.cluster.nominations import Nomination
from placement.cluster.preemption import EvictablePod
from placement.pods import PodInfo
from scheduler.preemptors import AGAIN_SECONDS
from scheduler.state import State
from scheduler.victims import VictimSearch
from scheduler.writer import PreemptionWriter

_REFUSED_SECONDS = 30.0
"""How long a pod is no victim after the Eviction API has refused to evict it."""
_SHOWN_SECONDS = 10.0
"""How long an eviction counts before the watch shows it."""
_UNUSED_SECONDS = 600.0
"""How long nobody is evicted for a pod that did not use free cards while they were kept for it.

Its gang may never be complete, or its volume never provisioned.
"""
_GONE = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Evictor:
    """Evicts victims. Belongs to the thread that preempts.

    Attributes:
        search: looks at nodes without victims.
        clock: monotonic seconds.
        unused: pods that did not use free cards which were kept for them; until when, by UID.
    """

    state: State
    search: VictimSearch
    writer: PreemptionWriter
    clock: Callable[[], float]
    unused: dict[str, float] = field(default_factory=dict, init=False)
    _evicted: dict[str, float] = field(default_factory=dict, init=False)
    _renewed: dict[str, float] = field(default_factory=dict, init=False)

    def forget_past(self) -> None:
        """Forget what was to count for some time, and what belongs to nominations that are over."""
        now = self.clock()
        for until_by_uid in (self.search.refused, self.unused, self._evicted):
            for uid in [uid for uid, until in until_by_uid.items() if until <= now]:
                del until_by_uid[uid]
        with self.state.lock:
            nominated = self.state.nominations.by_pod.keys()
            self._renewed = {uid: at for uid, at in self._renewed.items() if uid in nominated}

    def follow(self, pod: PodInfo, nomination: Nomination) -> str:
        """Evict the victims of a nominated pod that are still needed.

        Return why the nomination is over, one word; empty if it is not.
        """
        uid = pod.id.uid
        with self.state.lock:
            if self.state.find(uid) is None or self.state.assumed_on(uid):
                return ""
            over, remaining = self._judge(pod, nomination)
            is_free = not remaining and self.search.fits_now(pod, [nomination.node])
        if over:
            if over == "expired" and is_free:
                self.unused[uid] = self.clock() + _UNUSED_SECONDS
        elif is_free and self._renewed.get(uid, 0.0) <= self.clock():
            # kube-scheduler may have tried the pod before the watch showed the victims' end.
            self._renewed[uid] = self.clock() + AGAIN_SECONDS
            self.writer.ask_again(pod.id, nomination)
        return over or self._evict(pod, nomination, remaining)

    def _judge(self, pod: PodInfo, nomination: Nomination) -> tuple[str, Sequence[PodInfo]]:
        """Return why a nomination is over, else the victims that must still be evicted."""
        room = self.search.room(pod.id.uid, nomination.node)
        allocations = self.state.allocations(nomination.node)
        if room is None or allocations is None:
            return "lost", ()
        if self.state.now() > nomination.until:
            return "expired", ()
        if room.node.problem is Problem.AGENT_DISCONNECTED:
            return "", ()  # it may come back in time
        leaving = self.state.nominations.leaving(allocations.pods, self.state.now())
        priority = self.state.nominations.priority(pod.id.uid)
        victims = [
            EvictablePod(each, 0, allocations.holding(each) or {})
            for each in nomination.victims
            if each in allocations.pods
            and each not in leaving
            # Who may write the status of one pod must not choose victims.
            and self.state.nominations.priority(each) < priority
        ]
        staying = [each for each in victims if self._stays(each.uid)]
        slow = [each for each in victims if each not in staying]
        if not room.fits(pod, victims):
            return "lost", ()
        if room.fits(pod, slow) and not nomination.all_leave:
            return "", ()
        return "", [allocations.pods[each.uid] for each in staying]

    def _stays(self, uid: str) -> bool:
        """Return whether a victim has not been evicted yet."""
        standing = self.state.nominations.standing(uid)
        if standing is None or standing.ends_at is not None:
            return False
        return self._evicted.get(uid, 0.0) <= self.clock()

    def _evict(self, pod: PodInfo, nomination: Nomination, victims: Sequence[PodInfo]) -> str:
        """Evict pods, as long as none stays.

        Returns:
            ``refused`` if the Eviction API has refused, and none of the nomination's victims ends:
            others are to be looked for. Else an empty string.
        """
        for victim in victims:
            try:
                if not self.writer.evict(victim.id, pod.id, nomination.node):
                    break
            except REQUEST_ERRORS as error:
                if isinstance(error, Rejected) and error.status in _GONE:
                    continue
                extra = {"pod": str(pod), "victim": str(victim), "reason": str(error)}
                log.warning("not evicted", extra=extra)
                # Of any other error it is unknown whether the pod ends: the next step tries again.
                if isinstance(error, Rejected | TooManyRequests):
                    self.search.refused[victim.id.uid] = self.clock() + _REFUSED_SECONDS
                    with self.state.lock:
                        if all(self._stays(each) for each in nomination.victims):
                            return "refused"
                break
            self._evicted[victim.id.uid] = self.clock() + _SHOWN_SECONDS
        return ""
