"""What preemption writes to the API server: conditions of pods, evictions and their Events."""

import logging
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from http import HTTPStatus

from common.apiserver.client import Json
from common.apiserver.errors import REQUEST_ERRORS, Rejected
from common.apiserver.events import EventSubject, Notice
from contract.text import format_count
from placement.cluster.nominations import CONDITION, Nomination, read_nomination
from placement.pods import PodId
from scheduler.cluster import SchedulerApi
from scheduler.nominations import ASK_AGAIN

REASON = "GPUPreemption"
"""The Events of pods for which others are evicted."""

VICTIM_REASON = "Preempted"
"""The Events of victims; kube-scheduler's have the same reason."""

MOST_TRIES = 3
"""Most plans for one pod, and writes, while node or pod change all the time."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class PreemptionWriter:
    """Writes only while this replica leads. Belongs to one thread.

    Attributes:
        not_leading: returns why this replica must write nothing; empty if it may.
        on_victim: called for each evicted pod.
        now: Unix seconds.
    """

    api: SchedulerApi
    not_leading: Callable[[], str]
    on_victim: Callable[[], None]
    now: Callable[[], float]
    _to_remove: dict[str, PodId] = field(default_factory=dict, init=False)

    def nominate(self, pod: PodId, nomination: Nomination) -> bool:
        """Write a nomination; return whether it was written, see :meth:`_patch`.

        Raises:
            Rejected, Gone, Unavailable: as requests do; after the last it may have been written.
        """
        written = self._patch(pod, nomination.node, nomination.as_condition(self.now()))
        if written:
            self._to_remove.pop(pod.uid, None)
        return written

    def ask_again(self, pod: PodId, nomination: Nomination | None = None) -> None:
        """Let kube-scheduler try a pod again, as it does when the status of a pod changes.

        Its nomination is written again; without one a condition is written, and removed later.
        """
        try:
            if nomination is not None:
                self.nominate(pod, nomination)
            elif self._patch(pod, "", dict(ASK_AGAIN)):
                self._to_remove[pod.uid] = pod
        except REQUEST_ERRORS as error:
            log.warning("not asked again", extra={"pod": str(pod), "reason": str(error)})

    def forget(self) -> None:
        """Remove nothing any more: another replica leads."""
        self._to_remove.clear()

    def remove(self, ended: Iterable[PodId], nominated: AbstractSet[str]) -> None:
        """Remove the conditions of pods that need theirs no more, and what is still to be removed.

        Args:
            ended: pods that are bound, or whose nomination was withdrawn.
            nominated: UIDs of pods that keep theirs: a write that was not answered has nominated
                them.
        """
        self._to_remove |= {each.uid: each for each in ended}
        for uid in self._to_remove.keys() & nominated:
            del self._to_remove[uid]
        for uid, pod in [*self._to_remove.items()]:
            try:
                self._patch(pod, "", None)
            except REQUEST_ERRORS as error:
                log.warning("condition not removed", extra={"pod": str(pod), "reason": str(error)})
                if not isinstance(error, Rejected) or error.status == HTTPStatus.CONFLICT:
                    continue  # until the next step
            del self._to_remove[uid]

    def _patch(self, pod: PodId, node: str, condition: Json | None) -> bool:
        """Write or remove the condition, and with a nomination the nominated node.

        Returns:
            Whether it was done: not if the pod is gone, or to be nominated and bound, or if another
            replica leads by now.
        """
        for attempt in range(MOST_TRIES):
            obj = self.api.find_pod(pod.namespace, pod.name)
            if obj is None or obj["metadata"].get("uid") != pod.uid:
                return False
            bound = obj["spec"].get("nodeName")
            if condition is not None and (bound or obj["metadata"].get("deletionTimestamp")):
                return False
            # Unless the pod has changed since it was read: a merge patch replaces lists.
            kept = {each: obj["metadata"].get(each) for each in ("uid", "resourceVersion")}
            conditions = [
                each
                for each in (obj.get("status") or {}).get("conditions") or ()
                if each.get("type") != CONDITION
            ]
            status: Json = {"conditions": [*conditions, *([condition] if condition else [])]}
            ours, nominated = read_nomination(obj), obj["status"].get("nominatedNodeName")
            if node:
                status["nominatedNodeName"] = node
            elif ours is not None and ours.node == nominated:  # else kube-scheduler has chosen it
                status["nominatedNodeName"] = None
            if self.not_leading():
                return False
            try:
                patch = {"metadata": kept, "status": status}
                self.api.patch_pod_status(pod.namespace, pod.name, patch)
            except Rejected as error:
                if error.status != HTTPStatus.CONFLICT or attempt == MOST_TRIES - 1:
                    raise
            else:
                return True
        return False

    def evict(self, victim: PodId, pod: PodId, node: str) -> bool:
        """Evict a pod from a node for another one; return ``False`` if another replica leads.

        Raises:
            Rejected, TooManyRequests: the API server refuses to evict it.
            Gone, Unavailable: it may or may not be evicted.
        """
        if self.not_leading():
            return False
        self.api.evict(*victim)
        self.on_victim()
        log.info("evicted", extra={"pod": str(pod), "victim": str(victim), "node": node})
        self._notify(
            victim,
            VICTIM_REASON,
            f"by pod {_name_for(victim, pod)} of higher priority, which fits on no card without "
            f"leaving node {node} to it",
        )
        return True

    def report(self, pod: PodId, node: str, victims: Sequence[PodId]) -> None:
        """Report that a nomination was written."""
        log.info("nominated", extra={"pod": str(pod), "node": node, "victims": len(victims)})
        names = ", ".join(_name_for(pod, each) for each in victims)
        self._notify(
            pod,
            REASON,
            f"it fits on no card, so {format_count(len(victims), 'pod')} of lower priority must "
            f"leave node {node}: {names}",
        )

    def _notify(self, pod: PodId, reason: str, message: str) -> None:
        subject = EventSubject("Pod", pod.namespace, pod.name, pod.uid)
        notice = Notice(subject, reason, message, warning=False)
        try:
            self.api.create_event(notice, self.now())
        except REQUEST_ERRORS as error:  # such as by another replica already
            log.debug("event not written", extra={"reason": str(error)})


def _name_for(reader: PodId, pod: PodId) -> str:
    """Return how a pod is named to those who may read the Events of another one."""
    return pod.name if pod.namespace == reader.namespace else f"with UID {pod.uid}"
