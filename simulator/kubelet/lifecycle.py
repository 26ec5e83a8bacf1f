"""Pod workers: start containers in order, keep them running, end pods (K10, K12).

A worker works on one pod until nothing is left to do now, and says when to look again;
so a few threads serve any number of pods, and admission never waits for them.
"""

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from contract.demand import ContainerKind
from simulator.kubelet.dice import dice
from simulator.kubelet.errors import StartFailure, Stopping
from simulator.kubelet.manager import DeviceManager
from simulator.kubelet.pods import RUN_SECONDS, Container, Pod
from simulator.kubelet.runtime import Run, Runtime
from simulator.kubelet.settings import Settings
from simulator.kubelet.status import StatusManager
from simulator.kubelet.statusbody import Waiting, status_body
from simulator.kubelet.trace import Trace
from simulator.kubelet.workqueue import WorkQueue

_THREADS = 12  # the real one has no limit
_KILLED = 143
_FAILED = 1


@dataclass(slots=True)
class _Work:
    """One pod that runs or ends."""

    pod: Pod
    random: Random
    ends_at: float = 0.0
    waiting: dict[str, Waiting] = field(default_factory=dict)


class PodWorkers:
    """Starts and ends the containers of the pods that a kubelet knows. Safe between threads.

    Args:
        clock: unix seconds.
        stopping: once set, nothing is started or said any more.
    """

    def __init__(  # noqa: PLR0913 - collaborators, each a word for itself
        self,
        settings: Settings,
        manager: DeviceManager,
        runtime: Runtime,
        statuses: StatusManager,
        trace: Trace,
        *,
        clock: Callable[[], float],
        stopping: threading.Event,
    ) -> None:
        self._settings = settings
        self._manager = manager
        self._runtime = runtime
        self._statuses = statuses
        self._trace = trace
        self._clock = clock
        self._stopping = stopping
        self._works: dict[str, _Work] = {}
        self.queue = WorkQueue("pods", self._sync, threads=_THREADS)

    def restart(self, uid: str, container: str) -> None:
        """Let a container crash; it is started again with what it had (K12)."""
        self._runtime.finish(uid, container, _FAILED)
        self.queue.add(uid)

    def forget(self, uid: str) -> None:
        """Drop a pod that is gone everywhere."""
        with self._manager.lock:
            self._works.pop(uid, None)
        self._statuses.forget(uid)
        self._runtime.remove(uid)

    def _sync(self, uid: str) -> float | None:
        self._check()
        with self._manager.lock:
            known = self._manager.state.pods.get(uid)
            if known is None or known.ended or (known.refused and not known.ending):
                return None
            work = self._works.setdefault(uid, _Work(known.pod, dice(self._settings.seed, uid)))
            work.pod = known.pod
        if known.ending:
            return self._terminate(work)
        again = self._start_all(work)
        self._check()
        if self._ends(uid):
            return 0.0
        self._statuses.set(work.pod, status_body(work.pod, self._runtime.get, work.waiting))
        return again

    def _terminate(self, work: _Work) -> float | None:
        pod, now = work.pod, self._clock()
        if any(self._runs(pod, each) for each in pod.containers):
            if not work.ends_at:
                work.ends_at = now + work.random.uniform(*self._settings.grace_s)
            if now < work.ends_at:
                return work.ends_at - now
        for container in pod.containers:
            self._runtime.finish(pod.uid, container.name, _KILLED)
        self._end(pod)
        return None

    def _end(self, pod: Pod) -> None:
        with self._manager.lock:
            self._manager.state.end(pod.uid)
            gone = pod.uid not in self._manager.state.pods
            deleting = not gone and self._manager.state.pods[pod.uid].pod.deleting
        self._trace.add("end", pod)
        if gone:
            self.forget(pod.uid)
        elif deleting:
            self._statuses.remove(pod)

    def _start_all(self, work: _Work) -> float | None:
        """Bring every container as far as it can be now; answer when to look again."""
        pod = work.pod
        waits: list[float] = []
        for container in pod.containers:
            wait = self._bring_up(work, container)
            if wait is not None and container.kind is not ContainerKind.MAIN:
                return wait  # what comes after an init container or a sidecar waits for it
            if wait is not None:
                waits.append(wait)
        mains = [each for each in pod.containers if each.kind is ContainerKind.MAIN]
        if mains and all(self._finished(pod, each) for each in mains):
            for container in pod.containers:
                self._runtime.finish(pod.uid, container.name, 0)
            self._statuses.set(pod, status_body(pod, self._runtime.get, work.waiting))
            self._end(pod)
            return None
        return min(waits, default=None)

    def _bring_up(self, work: _Work, container: Container) -> float | None:
        """Start a container, or let it finish; answer how long to wait for it, if at all."""
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
        received: dict[str, Any] = {**asdict(merged.answer), "conflicts": list(merged.conflicts)}
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
        """Return whether a container has ended well, and is one that may."""
        run: Run | None = self._runtime.get(pod.uid, container.name)
        if run is None or run.running or run.exit_code:
            return False
        return container.kind is ContainerKind.INIT or run.finish_at is not None

    def _ends(self, uid: str) -> bool:
        with self._manager.lock:
            known = self._manager.state.pods.get(uid)
            return known is not None and known.ending

    def _runs(self, pod: Pod, container: Container) -> bool:
        run = self._runtime.get(pod.uid, container.name)
        return run is not None and run.running

    def _check(self) -> None:
        if self._stopping.is_set():
            raise Stopping
