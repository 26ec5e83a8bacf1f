"""One instance of the kubelet process: everything that is lost at a restart."""

import logging
import queue
import threading
import time
from random import Random

from simulator.client import ApiClient
from simulator.kubelet.admission import status_of
from simulator.kubelet.devices import Devices
from simulator.kubelet.errors import AdmissionFailure, Stopping
from simulator.kubelet.lifecycle import PodWorkers
from simulator.kubelet.manager import DeviceManager
from simulator.kubelet.nodestatus import NodeStatus
from simulator.kubelet.podresources import PodResourcesServer
from simulator.kubelet.pods import Pod
from simulator.kubelet.runtime import SimulatedRuntime
from simulator.kubelet.settings import Settings
from simulator.kubelet.source import Op, PodBatch, pods_of
from simulator.kubelet.state import KubeletState
from simulator.kubelet.trace import Trace

_log = logging.getLogger(__name__)

_JOIN_S = 1.5
_POLL_S = 0.1


class RunningInstance:
    """One run of the kubelet, from its start until it is stopped or killed.

    Args:
        settings: of the kubelet.
        api: the API server; ``None`` if pods come only from :meth:`deliver`.
        runtime: the container runtime, which survives this instance.
        trace: survives this instance, too.
        random: of this instance.
    """

    def __init__(
        self,
        settings: Settings,
        api: ApiClient | None,
        runtime: SimulatedRuntime,
        trace: Trace,
        random: Random,
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self._trace = trace
        self.stopping = threading.Event()
        devices = Devices(
            random=random,
            numa_hint=settings.numa_hint,
            preferred_when_exact=settings.preferred_when_exact,
        )
        self.state = KubeletState(
            devices,
            random=random,
            active_pods_only=settings.active_pods_only,
            overtaken_writes=settings.overtaken_writes,
        )
        self._changes: queue.Queue[PodBatch] = queue.Queue()
        self._ready = False
        self._node_changed = threading.Event()
        self.manager = DeviceManager(
            settings,
            self.state,
            trace,
            on_change=self._node_changed.set,
            stopping=self.stopping,
        )
        self._node = NodeStatus(
            api,
            settings.node_name,
            self.manager.counts,
            every=settings.node_status_s,
            changed=self._node_changed,
            stop=self.stopping,
        )
        self.workers = PodWorkers(
            settings,
            self.manager,
            runtime,
            trace,
            api=api,
            clock=time.time,
            stopping=self.stopping,
        )
        self.pod_resources: PodResourcesServer | None = None
        if settings.pod_resources_socket is not None:
            self.pod_resources = PodResourcesServer(
                settings.pod_resources_socket,
                self.manager.list_pods,
                rate=settings.list_rate,
                burst=settings.list_burst,
                misbehavior=settings.misbehavior,
            )
        self._source = pods_of(settings.node_name, api, self.deliver) if api else None
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start to serve, then to follow the node's pods."""
        self._trace.add("kubelet")
        self.manager.start(self._runtime.running())
        if self.pod_resources is not None:
            self.pod_resources.start()
        self.workers.queue.start()
        loops = [("sync", self._sync_loop), ("node", self._node.run)]
        if self._source is not None:
            loops.append(("pods-source", self._source.run))
        for name, loop in loops:
            thread = threading.Thread(target=loop, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self, *, leave_sockets: bool = False) -> None:
        """End at once, without further records, reports or writes; a killed one leaves sockets."""
        self.stopping.set()
        self._node_changed.set()
        if self._source is not None:
            self._source.stop()
        self.deliver(PodBatch(Op.DROP, ()))  # wakes the sync loop
        deadline = time.monotonic() + _JOIN_S
        self.workers.queue.stop()
        self.manager.stop(leave_socket=leave_sockets)
        if self.pod_resources is not None:
            self.pod_resources.stop(leave_socket=leave_sockets)
        self.workers.queue.join(deadline - time.monotonic())
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def deliver(self, change: PodBatch) -> None:
        """Pass a batch to the sync loop, without mirror pods: the static pods themselves run."""
        pods = tuple(pod for pod in change.pods if not pod.mirror)
        self._changes.put(PodBatch(change.op, pods))

    def find(self, full_name: str) -> Pod | None:
        """Find the newest pod of a ``namespace/name``."""
        newest_first = reversed(self.pods())
        return next((pod for pod in newest_first if pod.full_name == full_name), None)

    def pods(self) -> tuple[Pod, ...]:
        """Return all pods of the node: also static and terminating ones (K20)."""
        with self.manager.lock:
            return tuple(each.pod for each in self.state.pods.values())

    def idle(self) -> bool:
        """Return whether all delivered batches have been processed."""
        return self._changes.unfinished_tasks == 0

    # The sync loop: one thread, one batch at a time (K1)

    def _sync_loop(self) -> None:
        while not self.stopping.is_set():
            try:
                change = self._changes.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            try:
                self._handle(change)
            except Stopping:
                return
            finally:
                self._changes.task_done()

    def _handle(self, change: PodBatch) -> None:
        if change.op is Op.DROP:
            for pod in change.pods:
                self._remove(pod.uid)
            return
        with self.manager.lock:
            known = {
                each.pod.uid: each.pod for each in self.state.pods.values() if not each.removed
            }
        delivered = {pod.uid for pod in change.pods}
        names = {pod.full_name for pod in change.pods}
        for uid, pod in known.items():
            missing = change.op is Op.LIST and not pod.static
            # If another pod has this pod's name now, the DELETED event was missed.
            if uid not in delivered and (missing or pod.full_name in names):
                self._remove(uid)
        if not self._ready and self._settings.plugin_wait_s:
            self.manager.wait_for_plugins(self._settings.plugin_wait_s)
        for pod in self.state.in_order(each for each in change.pods if each.uid not in known):
            self._add(pod)
        if not self._ready and not any(pod.static for pod in change.pods):
            # Not before: while the first batch is admitted, pods that are not known yet may
            # still hold devices.
            self._ready = True
            with self.manager.lock:
                self.state.end_first_batch()
        for pod in change.pods:
            if pod.uid in known:
                self._update(pod)

    def _add(self, pod: Pod) -> None:
        try:
            self.manager.run(pod, self.state.admit(pod))
        except AdmissionFailure as failure:
            status = status_of(failure)
            self._trace.add("reject", pod, error=status["message"])
            self.workers.reject(pod, dict(status))
        else:
            self.workers.queue.add(pod.uid)

    def _update(self, pod: Pod) -> None:
        with self.manager.lock:
            self.state.update(pod)
        self.workers.queue.add(pod.uid)

    def _remove(self, uid: str) -> None:
        stays = self._settings.removed_pods_stay
        with self.manager.lock:
            self.state.remove(uid, listed=stays, keeps=stays)
            gone = uid not in self.state.pods
        if gone:
            self.workers.forget(uid)
        else:
            self.workers.queue.add(uid)
