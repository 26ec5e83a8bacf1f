"""Reports pods that run with GPU limits and without a claim, where claims give out the cards."""

import logging
from collections.abc import Callable, Collection, Iterable

from common.apiserver.events import EventSubject, Notice
from placement.pods import PodId, PodInfo

log = logging.getLogger(__name__)

_REASON = "GPUNotClaimed"
_TEXT = (
    "the pod runs with GPU limits but without a resource claim: it has no card, or one that is "
    "not counted. Delete it, so that it is created again with a claim (webhook --claims on)"
)


class UnclaimedPods:
    """Logs each such pod once, and sends an Event on it."""

    def __init__(self, send_event: Callable[[Notice], None]) -> None:
        self._send_event = send_event
        self._reported: frozenset[PodId] = frozenset()

    def report(self, pods: Iterable[PodInfo], claimed: Collection[str]) -> None:
        """Report the running pods with GPU limits that were not reported at the last call.

        Args:
            pods: the node's pods.
            claimed: the UIDs of those with a claim. One that is allocated counts before it is
                prepared: after a reboot, pods still count as running while the kubelet has yet to
                prepare their claims again.
        """
        found = frozenset(
            each.id for each in pods if each.running and each.demand and each.id.uid not in claimed
        )
        for pod in sorted(found - self._reported):
            log.warning("runs without a claim", extra={"pod": str(pod)})
            subject = EventSubject("Pod", pod.namespace, pod.name, pod.uid)
            self._send_event(Notice(subject, _REASON, _TEXT))
        self._reported = found
