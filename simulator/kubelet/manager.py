"""The device manager at work: the state of ``devices``, real plugins, the checkpoint, the trace."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from random import Random
from typing import Any

from simulator.kubelet.answers import Answer, Merged
from simulator.kubelet.checkpoint import Checkpoint, CheckpointFile
from simulator.kubelet.devices import (
    ActivePods,
    AllocateCall,
    Devices,
    Options,
    PodHoldings,
    PreferCall,
    Reply,
    Step,
    Steps,
    drive,
)
from simulator.kubelet.dice import dice
from simulator.kubelet.errors import (
    AdmissionFailure,
    CallFailed,
    CorruptCheckpoint,
    CrashHere,
    StartFailure,
    Stopping,
)
from simulator.kubelet.numa import Device
from simulator.kubelet.plugins import PluginClient, Plugins
from simulator.kubelet.podresources import snapshot
from simulator.kubelet.pods import Container, Pod
from simulator.kubelet.settings import Moment, Settings
from simulator.kubelet.trace import Trace

_log = logging.getLogger(__name__)


class DeviceManager:
    """Drives :class:`Devices`; safe between threads.

    Args:
        active: the pods that count as alive; called with the lock held.
        on_change: told when the number of devices may have changed.
        stopping: once set, nothing is recorded or called any more.
    """

    def __init__(  # noqa: PLR0913 - collaborators, each a word for itself
        self,
        settings: Settings,
        trace: Trace,
        random: Random,
        *,
        active: ActivePods,
        on_change: Callable[[], None],
        stopping: threading.Event,
    ) -> None:
        self._settings = settings
        self._trace = trace
        self._active = active
        self._on_change = on_change
        self._stopping = stopping
        # Re-entrant: a step may ask for the node's counts while the state is locked.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._saving = threading.Lock()
        self._file = CheckpointFile(settings.plugin_dir)
        self._overtaking = dice(settings.seed, "overtaken")
        self.plugins = Plugins(settings.plugin_dir, self, settings.mischief)
        self._devices = Devices(
            random=random,
            numa_hint=settings.numa_hint,
            topology=settings.topology,
            preferred_when_exact=settings.preferred_when_exact,
        )

    def start(self, running: frozenset[tuple[str, str]]) -> None:
        """Read the checkpoint, then take registrations.

        Args:
            running: (pod UID, container) of what the runtime says is running (K11).
        """
        self._settings.plugin_dir.mkdir(parents=True, exist_ok=True)
        try:
            loaded = self._file.load()
        except CorruptCheckpoint as error:
            _log.warning("checkpoint not used", extra={"reason": str(error)})
            loaded = None
        with self._lock:
            self._devices.running_before = running
            if loaded is not None:
                self._devices.restore(loaded.pods, loaded.registered, time.monotonic())
        self.plugins.start()

    def stop(self, *, leave_socket: bool = False) -> None:
        """Hang up on every plugin."""
        with self._changed:
            self._changed.notify_all()
        self.plugins.stop(leave_socket=leave_socket)

    # What plugins say

    def connected(self, resource: str, options: Options) -> None:
        """Take a plugin that registered."""
        self._trace.add("plugin", resource=resource, detail=asdict(options))
        with self._lock:
            self._devices.connected(resource, options)

    def advertised(self, resource: str, devices: tuple[Device, ...]) -> None:
        """Take a plugin's list of devices, and write it down."""
        healthy = sum(each.healthy for each in devices)
        self._trace.add("devices", resource=resource, size=len(devices), available=healthy)
        with self._changed:
            self._devices.advertised(resource, devices)
            self._changed.notify_all()
            overtaken = self._overtaking.random() < self._settings.overtaken_writes
        try:
            self._save(late=overtaken)
        except Stopping:
            return
        self._on_change()

    @property
    def overtaken(self) -> bool:
        """Whether the next write of the checkpoint overtakes one (K33)."""
        with self._saving:
            return self._file.overtaken

    def disconnected(self, resource: str) -> None:
        """Record that the stream of a plugin broke."""
        self._trace.add("lost", resource=resource)
        with self._lock:
            self._devices.disconnected(resource, time.monotonic())
        self._on_change()

    def wait_for_plugins(self, timeout: float) -> None:
        """Wait until every plugin of the checkpoint has devices again, or *timeout*."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopping.is_set() or all(self._devices.healthy.values()), timeout
            )

    def counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return (capacity, allocatable) of each resource."""
        with self._lock:
            gone = self._devices.forget_gone(time.monotonic(), self._settings.endpoint_grace_s)
            counts = self._devices.counts()
        if gone:
            with suppress(Stopping):
                self._save()
        return counts

    # Pods

    def sources_are_ready(self) -> None:
        """From now on, pods that are not there are gone."""
        with self._lock:
            self._devices.sources_ready = True

    def run(self, pod: Pod, make_steps: Callable[[Devices, ActivePods], Steps]) -> None:
        """Do what the steps say; the lock is free while a plugin is asked.

        Raises:
            AdmissionFailure: from the steps.
            Stopping: the kubelet ended meanwhile; nothing was recorded since.
        """
        steps = make_steps(self._devices, self._active)
        drive(steps, lambda step: self._do(pod, step), self._locked)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            self._check()
            yield

    def start_container(self, pod: Pod, container: Container) -> Merged:
        """Announce a start to the plugins, and give what the container receives (K10, K12).

        Raises:
            StartFailure: a plugin refused, or does not know the container.
            Stopping: the kubelet ended meanwhile.
        """
        reallocate = False
        resources = sorted(container.limits)
        dice(self._settings.seed, pod.uid, container.name).shuffle(resources)
        for resource in resources:
            with self._lock:
                self._check()
                if not container.limits[resource] or not self._devices.manages(resource):
                    continue
                ids = self._devices.devices_to_prestart(pod.uid, container.name, resource)
            if ids is not None:
                self._pre_start(pod, container, resource, ids)
            with self._lock:
                held = self._devices.pods.get(pod.uid, {}).get(container.name, {})
                reallocate |= resource not in held and pod.uid in self._active()
        if reallocate:
            try:
                self.run(pod, lambda devices, active: devices.allocate(pod.uid, container, active))
            except AdmissionFailure as error:
                raise StartFailure(str(error)) from error
        with self._lock:
            return self._devices.received(pod.uid, container.name)

    def listed(self, pods: Iterable[Pod]) -> list[tuple[Pod, PodHoldings]]:
        """Return what *pods* hold, after freeing what ended pods held (K15)."""
        with self._lock:
            self._devices.update_allocated(self._active())
            return [(pod, snapshot(self._devices.pods, pod.uid)) for pod in pods]

    def active_holdings(self) -> dict[str, PodHoldings]:
        """Copy what the pods that are alive hold."""
        with self._lock:
            alive: Collection[str] = self._active()
            return {
                uid: snapshot(self._devices.pods, uid) for uid in self._devices.pods if uid in alive
            }

    # Calls

    def _do(self, pod: Pod, step: Step) -> Reply:
        if isinstance(step, PreferCall):
            return self._prefer(pod, step)
        if isinstance(step, AllocateCall):
            return self._allocate(pod, step)
        self._at(Moment("before", "Checkpoint", pod, step.container.name))
        self._save()
        self._at(Moment("after", "Checkpoint", pod, step.container.name))
        return None

    def _prefer(self, pod: Pod, step: PreferCall) -> tuple[str, ...]:
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

    def _allocate(self, pod: Pod, step: AllocateCall) -> Answer | None:
        fields: dict[str, Any] = {"ids": step.ids, "size": len(step.ids)}
        with self._call("Allocate", pod, step.container, step.resource, fields) as client:
            return client.allocate(step.ids)

    def _pre_start(
        self, pod: Pod, container: Container, resource: str, ids: tuple[str, ...]
    ) -> None:
        fields: dict[str, Any] = {"ids": ids, "size": len(ids)}
        try:
            with self._call("PreStartContainer", pod, container, resource, fields) as client:
                client.pre_start(ids)
        except CallFailed as error:
            raise StartFailure(
                f"device plugin PreStartContainer rpc failed with err: {error}"
            ) from error

    @contextmanager
    def _call(
        self, method: str, pod: Pod, container: Container, resource: str, fields: dict[str, Any]
    ) -> Iterator[PluginClient]:
        """Surround one call: hooks, trace, and silence once the kubelet ends."""
        self._at(Moment("before", method, pod, container.name, resource))
        client = self.plugins.get(resource)
        if client is None:
            raise CallFailed(f"endpoint {resource} has been stopped")
        began = self._trace.now()
        error_text = ""
        try:
            yield client
        except CallFailed as error:
            error_text = str(error)
            raise
        finally:
            # A call that our own end cut off is no answer of the plugin: it may have
            # been heard, but a dead kubelet records nothing.
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
            self._at(Moment("after", method, pod, container.name, resource))

    def _at(self, moment: Moment) -> None:
        self._check()
        try:
            self._settings.hook(moment)
        except CrashHere:
            self._stopping.set()
            raise
        self._check()  # the hook may have killed us by hand

    def _check(self) -> None:
        if self._stopping.is_set():
            raise Stopping

    def _save(self, *, late: bool = False) -> None:
        """Write the checkpoint, or let the next one that is written overtake it (K33)."""
        with self._saving:
            with self._lock:
                self._check()
                pods = {uid: snapshot(self._devices.pods, uid) for uid in self._devices.pods}
                registered = {r: tuple(ids) for r, ids in self._devices.healthy.items()}
            save = self._file.save_late if late else self._file.save
            save(Checkpoint(pods, registered))
