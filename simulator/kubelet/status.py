"""What the kubelet says about pods, written by its own threads so that nothing waits for it."""

import logging
import threading
from dataclasses import dataclass

from simulator.client import ApiClient, ApiError, Json
from simulator.kubelet.errors import Stopping
from simulator.kubelet.pods import TERMINAL_PHASES, Pod
from simulator.kubelet.workqueue import WorkQueue

_log = logging.getLogger(__name__)

_RETRY_S = 0.25
_THREADS = 4


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the API server should show of one pod."""

    pod: Pod
    status: Json
    gone: bool = False


class StatusManager:
    """Remembers each pod's status at once, and writes it to the API server later.

    Args:
        api: ``None`` when nobody is told.
        stopping: once set, nothing is written any more.
    """

    def __init__(self, api: ApiClient | None, stopping: threading.Event) -> None:
        self._api = api
        self._stopping = stopping
        self._lock = threading.Lock()
        self._wanted: dict[str, _Wanted] = {}
        self._written: dict[str, _Wanted] = {}
        self.queue = WorkQueue("status", self._write, threads=_THREADS)

    def set(self, pod: Pod, status: Json) -> None:
        """Remember a status; a pod that has ended stays ended."""
        with self._lock:
            before = self._wanted.get(pod.uid)
            if before is not None and (before.gone or _ended(before.status)):
                return
            self._wanted[pod.uid] = _Wanted(pod, status)
        self.queue.add(pod.uid)

    def get(self, uid: str) -> Json | None:
        """Return the status last set."""
        with self._lock:
            wanted = self._wanted.get(uid)
            return None if wanted is None else wanted.status

    def ended(self, uid: str) -> bool:
        """Return whether the kubelet itself has ended the pod."""
        return _ended(self.get(uid) or {})

    def remove(self, pod: Pod) -> None:
        """Take a pod whose containers are gone out of the API server."""
        with self._lock:
            before = self._wanted.get(pod.uid)
            self._wanted[pod.uid] = _Wanted(pod, {} if before is None else before.status, gone=True)
        self.queue.add(pod.uid)

    def forget(self, uid: str) -> None:
        """Drop what is remembered of a pod the API server no longer has."""
        with self._lock:
            self._wanted.pop(uid, None)
            self._written.pop(uid, None)

    def _write(self, uid: str) -> float | None:
        if self._stopping.is_set():
            raise Stopping
        with self._lock:
            wanted, written = self._wanted.get(uid), self._written.get(uid)
        if wanted is None or wanted == written or self._api is None or wanted.pod.static:
            return None
        pod = wanted.pod
        try:
            # With the UID, a pod of the same name that came after is left alone.
            if wanted.gone:
                self._api.delete(pod.path, grace_period_seconds=0, uid=pod.uid)
            else:
                patch = {"metadata": {"uid": pod.uid}, "status": wanted.status}
                self._api.patch(f"{pod.path}/status", patch)
        except ApiError as error:
            if error.status not in (404, 409, 422):
                _log.info("pod status waits", extra={"pod": pod.full_name, "reason": str(error)})
                return _RETRY_S
        with self._lock:
            self._written[uid] = wanted
        return None


def _ended(status: Json) -> bool:
    return status.get("phase") in TERMINAL_PHASES
