"""The device manager: connects a kubelet's state to plugins, checkpoint file and trace."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from simulator.kubelet.checkpoint import CheckpointStore
from simulator.kubelet.devices import (
    AllocateStep,
    PluginOptions,
    PodHoldings,
    PreferStep,
    PreStartStep,
    Reply,
    Step,
    Steps,
    drive,
)
from simulator.kubelet.errors import CorruptCheckpoint, CrashHere, PluginCallFailed, Stopping
from simulator.kubelet.numa import Device
from simulator.kubelet.plugins import PluginClient, Plugins
from simulator.kubelet.pods import Container, Pod
from simulator.kubelet.responses import MergedResponse, PluginResponse
from simulator.kubelet.settings import HookPoint, Settings
from simulator.kubelet.state import KubeletState
from simulator.kubelet.trace import Trace

_log = logging.getLogger(__name__)


class DeviceManager:
    """Drives a :class:`KubeletState` with real calls; safe between threads.

    Attributes:
        state: the kubelet's state.
        lock: must be held to read or change *state*; it is free during a call to a plugin.

    Args:
        on_change: called when the number of devices may have changed.
        stopping: once set, nothing more is recorded or called.
    """

    def __init__(
        self,
        settings: Settings,
        state: KubeletState,
        trace: Trace,
        *,
        on_change: Callable[[], None],
        stopping: threading.Event,
    ) -> None:
        self._settings = settings
        self.state = state
        self._trace = trace
        self._on_change = on_change
        self._stopping = stopping
        # Re-entrant: a step may read the node's counts while the state is locked.
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._file = CheckpointStore(settings.plugin_dir)
        self.plugins = Plugins(settings.plugin_dir, self, settings.misbehavior)

    def start(self, running: frozenset[tuple[str, str]]) -> None:
        """Read the checkpoint, then accept registrations.

        Args:
            running: (pod UID, container) of the containers running in the runtime (K11).
        """
        self._settings.plugin_dir.mkdir(parents=True, exist_ok=True)
        try:
            loaded = self._file.load()
        except CorruptCheckpoint as error:
            _log.warning("checkpoint not used", extra={"reason": str(error)})
            loaded = None
        with self.lock:
            self.state.restore(loaded, running, time.monotonic())
        self.plugins.start()

    def stop(self, *, leave_socket: bool = False) -> None:
        """Close all connections to plugins."""
        with self._changed:
            self._changed.notify_all()
        self.plugins.stop(leave_socket=leave_socket)

    # Messages from plugins

    def connected(self, resource: str, options: PluginOptions) -> None:
        """Add a plugin that has registered."""
        self._trace.add("plugin", resource=resource, detail=asdict(options))
        with self.lock:
            self.state.devices.connected(resource, options)

    def advertised(self, resource: str, devices: tuple[Device, ...]) -> None:
        """Store a plugin's list of devices, and write the checkpoint."""
        healthy = sum(each.healthy for each in devices)
        self._trace.add("devices", resource=resource, size=len(devices), available=healthy)
        with self._changed, suppress(Stopping):
            self._check()
            self.state.advertised(resource, devices)
            self._changed.notify_all()
            if not self.state.overtaken:
                self._write_file()
        self._on_change()

    def disconnected(self, resource: str) -> None:
        """Record that the stream of a plugin broke."""
        self._trace.add("lost", resource=resource)
        with self.lock:
            self.state.devices.disconnected(resource, time.monotonic())
        self._on_change()

    def wait_for_plugins(self, timeout: float) -> None:
        """Wait until every plugin of the checkpoint has devices again, or *timeout*."""
        healthy = self.state.devices.healthy
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopping.is_set() or all(healthy.values()), timeout
            )

    def counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return (capacity, allocatable) of each resource."""
        devices = self.state.devices
        with self.lock:
            gone = devices.forget_gone(time.monotonic(), self._settings.endpoint_grace_s)
            if gone and not self._stopping.is_set():
                self._write()
            return devices.counts()

    # Pods

    def run(self, pod: Pod, steps: Steps) -> None:
        """Do all steps; the lock is free during calls to plugins.

        Raises:
            AdmissionFailure: from the steps.
            StartFailure: likewise.
            Stopping: the kubelet ended meanwhile; nothing has been recorded since.
        """
        drive(steps, lambda step: self._do(pod, step), self._locked)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self.lock:
            self._check()
            yield

    def start_container(self, pod: Pod, container: Container) -> MergedResponse:
        """Call ``PreStartContainer``; return the merged container edits (K10, K12).

        Raises:
            StartFailure: a plugin refused, or the container has no devices of it.
            Stopping: the kubelet ended meanwhile.
        """
        self.run(pod, self.state.devices.start(pod.uid, container))
        with self.lock:
            return self.state.devices.received(pod.uid, container.name)

    def list_pods(self) -> list[tuple[Pod, PodHoldings]]:
        """Return the pods of a ``List`` response, with their devices."""
        with self.lock:
            return self.state.list_pods()

    def active_holdings(self) -> list[tuple[Pod, PodHoldings]]:
        """Return the devices of all active pods."""
        with self.lock:
            return self.state.active_holdings()

    # Calls

    def _do(self, pod: Pod, step: Step) -> Reply:
        if isinstance(step, PreferStep):
            return self._prefer(pod, step)
        if isinstance(step, AllocateStep):
            return self._allocate(pod, step)
        if isinstance(step, PreStartStep):
            self._pre_start(pod, step)
            return None
        self._at(HookPoint("before", "Checkpoint", pod, step.container.name))
        with self.lock:
            self._check()
            self._write()
        self._at(HookPoint("after", "Checkpoint", pod, step.container.name))
        return None

    def _prefer(self, pod: Pod, step: PreferStep) -> tuple[str, ...]:
        fields: dict[str, Any] = {
            "size": step.size,
            "available": len(step.available),
            "must_include": step.must_include,
        }
        with self._call(
            "GetPreferredAllocation", pod, step.container, step.resource, fields
        ) as client:
            fields["ids"] = client.prefer(step.available, step.must_include, step.size)
        preferred: tuple[str, ...] = fields["ids"]
        return preferred

    def _allocate(self, pod: Pod, step: AllocateStep) -> PluginResponse | None:
        fields: dict[str, Any] = {"ids": step.ids, "size": len(step.ids)}
        with self._call("Allocate", pod, step.container, step.resource, fields) as client:
            return client.allocate(step.ids)

    def _pre_start(self, pod: Pod, step: PreStartStep) -> None:
        fields: dict[str, Any] = {"ids": step.ids, "size": len(step.ids)}
        with self._call("PreStartContainer", pod, step.container, step.resource, fields) as client:
            client.pre_start(step.ids)

    @contextmanager
    def _call(
        self, method: str, pod: Pod, container: Container, resource: str, fields: dict[str, Any]
    ) -> Iterator[PluginClient]:
        """Run hooks before and after one call, and trace it unless the kubelet has ended."""
        self._at(HookPoint("before", method, pod, container.name, resource))
        client = self.plugins.get(resource)
        if client is None:
            raise PluginCallFailed(f"endpoint {resource} has been stopped")
        began = self._trace.now()
        error_text = ""
        try:
            yield client
        except PluginCallFailed as error:
            error_text = str(error)
            raise
        finally:
            # A call that was cut off by our own end is not traced: the plugin may have received
            # it, but a dead kubelet records nothing.
            self._check()
            self._trace.add(
                "rpc",
                pod,
                at=began,
                rpc=method,
                resource=resource,
                container=container.name,
                took_ms=round(self._trace.now() - began, 3),
                error=error_text,
                **fields,
            )
            self._at(HookPoint("after", method, pod, container.name, resource))

    def _at(self, moment: HookPoint) -> None:
        self._check()
        try:
            self._settings.hook(moment)
        except CrashHere:
            self._stopping.set()
            raise
        self._check()  # the hook may have killed the kubelet

    def _check(self) -> None:
        if self._stopping.is_set():
            raise Stopping

    def _write(self) -> None:
        self.state.write()
        self._write_file()

    def _write_file(self) -> None:
        if self.state.checkpoint is not None:
            self._file.save(self.state.checkpoint)
