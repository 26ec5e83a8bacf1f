"""Pod workers: start containers in order, restart them, end pods, report statuses (K10, K12).

A worker processes one pod until nothing is left to do now, and returns when to do so again. So a
few threads serve any number of pods, and admission never waits for them.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from contract.demand import ContainerKind
from simulator.client import ApiClient, ApiError, Json
from simulator.kubelet.errors import StartFailure, Stopping
from simulator.kubelet.manager import DeviceManager
from simulator.kubelet.pods import RUN_SECONDS, TERMINAL_PHASES, Container, Pod
from simulator.kubelet.runtime import ContainerRun, SimulatedRuntime
from simulator.kubelet.seeding import seeded_random
from simulator.kubelet.settings import Settings
from simulator.kubelet.statusbody import Waiting, status_body
from simulator.kubelet.trace import Trace
from simulator.kubelet.workqueue import WorkQueue

_log = logging.getLogger(__name__)

_THREADS = 12  # the real one has no limit
_RETRY_S = 0.25
_KILLED = 143
_FAILED = 1


@dataclass(slots=True)
class _Work:
    """One pod, its progress, and the state that the API server should show.

    Attributes:
        status: the status to show; empty for none yet.
        gone: whether the pod should be deleted there.
        shown: *status* and *gone* as last written to the API server.
    """

    pod: Pod
    random: Random
    ends_at: float = 0.0
    waiting: dict[str, Waiting] = field(default_factory=dict)
    status: Json = field(default_factory=dict)
    gone: bool = False
    shown: tuple[Json, bool] = ({}, False)


class PodWorkers:
    """Starts and ends the containers of the pods that a kubelet knows. Safe between threads.

    Args:
        api: the API server for statuses; ``None`` for none.
        clock: unix seconds.
        stopping: once set, nothing more is started or reported.
    """

    def __init__(  # noqa: PLR0913 - collaborators, each a word for itself
        self,
        settings: Settings,
        manager: DeviceManager,
        runtime: SimulatedRuntime,
        trace: Trace,
        *,
        api: ApiClient | None,
        clock: Callable[[], float],
        stopping: threading.Event,
    ) -> None:
        self._settings = settings
        self._manager = manager
        self._runtime = runtime
        self._trace = trace
        self._api = api
        self._clock = clock
        self._stopping = stopping
        self._works: dict[str, _Work] = {}
        self.queue = WorkQueue("pods", self._sync, threads=_THREADS)

    def restart(self, uid: str, container: str) -> None:
        """Crash a container; it is started again with the same container edits (K12)."""
        self._runtime.finish(uid, container, _FAILED)
        self.queue.add(uid)

    def reject(self, pod: Pod, status: Json) -> None:
        """Report that a pod is rejected."""
        self._set_status(self._work(pod), status)
        self.queue.add(pod.uid)

    def status(self, uid: str) -> Json | None:
        """Return the status that a pod should show, written or not."""
        with self._manager.lock:
            work = self._works.get(uid)
            return work.status if work is not None and work.status else None

    def forget(self, uid: str) -> None:
        """Forget a pod that no longer exists."""
        with self._manager.lock:
            self._works.pop(uid, None)
        self._runtime.remove(uid)

    def _work(self, pod: Pod) -> _Work:
        with self._manager.lock:
            work = self._works.setdefault(
                pod.uid, _Work(pod, seeded_random(self._settings.seed, pod.uid))
            )
            work.pod = pod
            return work

    def _set_status(self, work: _Work, status: Json) -> None:
        """Set the status to show; a terminal phase is final."""
        if work.status.get("phase") not in TERMINAL_PHASES:
            work.status = status

    def _sync(self, uid: str) -> float | None:
        self._check()
        with self._manager.lock:
            known = self._manager.state.pods.get(uid)
        if known is None:
            return None
        work = self._work(known.pod)
        again = None
        if known.ended:
            work.gone |= known.pod.deleting  # it has ended by itself, and is deleted now
        elif known.ending:
            again = self._terminate(work)
        elif not known.rejected:
            again = self._start_all(work)
        self._check()
        retry = self._publish(work)
        waits = [each for each in (again, retry) if each is not None]
        return min(waits, default=None)

    def _publish(self, work: _Work) -> float | None:
        """Write the status, or delete the pod; return when to retry."""
        pod, wanted = work.pod, (work.status, work.gone)
        if wanted == work.shown or self._api is None or pod.static:
            return None
        try:
            # The UID protects a later pod of the same name.
            if work.gone:
                self._api.delete(pod.path, grace_period_seconds=0, uid=pod.uid)
            else:
                patch = {"metadata": {"uid": pod.uid}, "status": work.status}
                self._api.patch(f"{pod.path}/status", patch)
        except ApiError as error:
            if error.status not in (404, 409, 422):
                _log.info(
                    "pod status not written, will retry",
                    extra={"pod": pod.full_name, "reason": str(error)},
                )
                return _RETRY_S
        work.shown = wanted
        return None

    def _terminate(self, work: _Work) -> float | None:
        pod, now = work.pod, self._clock()
        if any(self._runs(pod, each) for each in pod.containers):
            if not work.ends_at:
                work.ends_at = now + work.random.uniform(*self._settings.grace_s)
            if now < work.ends_at:
                return work.ends_at - now
        for container in pod.containers:
            self._runtime.finish(pod.uid, container.name, _KILLED)
        self._end(work)
        return None

    def _end(self, work: _Work) -> None:
        uid = work.pod.uid
        with self._manager.lock:
            self._manager.state.end(uid)
            known = self._manager.state.pods.get(uid)
            work.gone |= known is not None and known.pod.deleting
        self._trace.add("end", work.pod)
        if known is None:
            self.forget(uid)

    def _start_all(self, work: _Work) -> float | None:
        """Start every container that can start now; return when to continue."""
        pod = work.pod
        waits: list[float] = []
        for container in pod.containers:
            wait = self._bring_up(work, container)
            if wait is not None and container.kind is not ContainerKind.MAIN:
                # Later containers wait for an init container or sidecar.
                self._set_status(work, status_body(pod, self._runtime.get, work.waiting))
                return wait
            if wait is not None:
                waits.append(wait)
        mains = [each for each in pod.containers if each.kind is ContainerKind.MAIN]
        if mains and all(self._finished(pod, each) for each in mains):
            for container in pod.containers:
                self._runtime.finish(pod.uid, container.name, 0)
            self._set_status(work, status_body(pod, self._runtime.get, work.waiting))
            self._end(work)
            return None
        self._set_status(work, status_body(pod, self._runtime.get, work.waiting))
        return min(waits, default=None)

    def _bring_up(self, work: _Work, container: Container) -> float | None:
        """Start or finish a container; return how long to wait for it, or ``None``."""
        pod, now = work.pod, self._clock()
        run = self._runtime.get(pod.uid, container.name)
        if run is None or (not run.running and not self._finished(pod, container)):
            wait = self._start(work, container)
            if wait is not None:
                return wait
            run = self._runtime.get(pod.uid, container.name)
        if run is None or not run.running or run.finish_at is None:
            return None
        if now < run.finish_at:
            return run.finish_at - now
        self._runtime.finish(pod.uid, container.name, 0)
        return None

    def _start(self, work: _Work, container: Container) -> float | None:
        pod = work.pod
        try:
            merged = self._manager.start_container(pod, container)
        except StartFailure as failure:
            work.waiting[container.name] = Waiting("CreateContainerConfigError", str(failure))
            return self._settings.start_retry_s
        self._check()
        work.waiting.pop(container.name, None)
        received = merged.as_json()
        now = self._clock()
        run = self._runtime.start(
            pod.uid,
            container.name,
            received,
            now=now,
            finish_at=self._finish_at(work, container, now),
        )
        self._trace.add(
            "start", pod, container=container.name, detail={**received, "starts": run.starts}
        )
        return None

    def _finish_at(self, work: _Work, container: Container, now: float) -> float | None:
        if container.kind is ContainerKind.INIT:
            return now + work.random.uniform(*self._settings.init_run_s)
        seconds = work.pod.seconds(RUN_SECONDS)
        if seconds is None or container.kind is ContainerKind.SIDECAR:
            return None
        return now + seconds

    def _finished(self, pod: Pod, container: Container) -> bool:
        """Return whether a container has succeeded and is not to be started again."""
        run: ContainerRun | None = self._runtime.get(pod.uid, container.name)
        if run is None or run.running or run.exit_code:
            return False
        return container.kind is ContainerKind.INIT or run.finish_at is not None

    def _runs(self, pod: Pod, container: Container) -> bool:
        run = self._runtime.get(pod.uid, container.name)
        return run is not None and run.running

    def _check(self) -> None:
        if self._stopping.is_set():
            raise Stopping
