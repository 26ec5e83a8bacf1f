"""The simulated kubelet, driven step by step in one thread by a test."""

from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Protocol

from contract.resource import Resource
from simulator.kubelet.devices import (
    AllocateStep,
    Devices,
    PluginOptions,
    PodHoldings,
    PreferStep,
    PreStartStep,
    Reply,
    RunningSteps,
    Step,
    drive,
)
from simulator.kubelet.errors import AdmissionFailure, PluginCallFailed, StartFailure
from simulator.kubelet.numa import NO_NODE, Device, DeviceAllocation
from simulator.kubelet.pods import TERMINAL_PHASES
from simulator.kubelet.responses import PluginResponse
from simulator.kubelet.state import KnownPod, KubeletCheckpoint, KubeletState
from simulator.node.api import InMemoryApi
from tests.in_memory.pods import OTHER_PLUGIN, Container, Pod

_OTHERS = tuple(Device(f"other-{number}") for number in range(500))

Held = dict[Resource, frozenset[str]]
"""Device IDs by resource."""


class Plugins(Protocol):
    """The plugins that the kubelet calls; each call may raise :class:`PluginCallFailed`."""

    def prefer(self, pod: Pod, container: Container, call: PreferStep) -> Sequence[str]: ...
    def give(
        self, pod: Pod, container: Container, resource: Resource, ids: Sequence[str]
    ) -> None: ...
    def prestart(
        self, pod: Pod, container: Container, resource: Resource, ids: Sequence[str]
    ) -> None: ...
    def ask_other(self, pod: Pod, container: Container) -> None: ...


class Kubelet:
    """One kubelet, across its restarts.

    Attributes:
        instance: counts its instances.
        queue: bound pods that it has not begun to admit.
        statuses: changes not reported to the API server yet.
        statics: the pods that it reads from files.
        runs: UID and name of the started containers; they survive a restart of the kubelet.
        unhealthy: device IDs that the plugin advertises as unhealthy the next time.
        connected: whether the plugin has registered with the current instance.
        first: the order of a container's resources; random if empty (K1).
    """

    def __init__(
        self,
        device_ids: Mapping[Resource, Collection[str]],
        api: InMemoryApi[Pod],
        plugins: Plugins,
        random: Random,
        *,
        active_only: bool = True,
        overtaken: float = 0.0,
    ) -> None:
        """Start without pods, with all device IDs healthy and no plugin registered.

        *active_only*: ``List`` is in its new form (K8); *overtaken*: how likely a write for a
        plugin's list is overtaken (K33).
        """
        self.active_only = active_only
        self.instance = 0
        self.pods: dict[str, Pod] = {}
        self.queue: list[Pod] = []
        self.admitting: Pod | None = None
        self.statuses: list[tuple[Pod, str]] = []
        self.statics: list[Pod] = []
        self.runs: set[tuple[str, str]] = set()
        self.unhealthy: set[str] = set()
        self.connected = False
        self.first: tuple[str, ...] = ()
        self._device_ids = {each: tuple(ids) for each, ids in device_ids.items()}
        self._api, self._plugins, self._random = api, plugins, random
        self._overtaken = overtaken
        self._batch = 0  # how many of the queue are of this instance's first list
        self._run: RunningSteps | None = None
        self._removed: bool | None = None  # by force, in mid-admission; whether it keeps devices
        self.state = self._begin(KubeletCheckpoint(registered=dict.fromkeys(Resource, ())))
        self.state.end_first_batch()

    # --- instances-------------------------------------------------------------------------

    def _begin(self, checkpoint: KubeletCheckpoint | None) -> KubeletState:
        devices = Devices(random=self._random, order=self._order)
        state = KubeletState(
            devices,
            random=self._random,
            active_pods_only=self.active_only,
            overtaken_writes=self._overtaken,
        )
        state.restore(checkpoint, frozenset(self.runs), 0.0)
        devices.connected(OTHER_PLUGIN, PluginOptions())
        devices.advertised(OTHER_PLUGIN, _OTHERS)
        return state

    def _order(self, resources: list[str]) -> None:
        if self.first:  # other vendors' come last
            resources.sort(key=lambda each: [*self.first, each].index(each))
        else:
            self._random.shuffle(resources)

    def restart(self) -> None:
        """Restart (K11): the plugin must register again, and all pods are queued again."""
        self.instance += 1
        self.connected = False
        self.admitting = self._run = self._removed = None
        self.state = self._begin(self.state.checkpoint)
        self.statuses.clear()
        pods = [each for each in self._api.pods() if not each.static]
        by_uid = {each.uid: each for each in pods}
        listed = self.state.in_order([each.as_known for each in pods])
        self.queue = [*self.statics, *(by_uid[each.uid] for each in listed)]
        self._batch = len(self.queue)
        if not self._batch:
            self.state.end_first_batch()

    def register(self) -> None:
        for resource in Resource:
            self.state.devices.connected(resource, PluginOptions(pre_start=True, preferred=True))
        self.connected = True
        self.advertise()

    def advertise(self) -> None:
        """Make the plugin list its devices."""
        for resource, ids in self._device_ids.items():
            self.state.advertised(
                resource, [Device(each, each not in self.unhealthy) for each in ids]
            )

    def overtake(self) -> None:
        """Make the plugin list its devices; the write for this is delayed until after the next."""
        self.state._late = self.state._build_checkpoint()

    def hold(self, pod: Pod, container: str, held: Mapping[Resource, Sequence[str]]) -> None:
        devices = self.state.devices
        for resource, ids in held.items():
            holding = DeviceAllocation(tuple(ids), PluginResponse(), {NO_NODE: tuple(ids)})
            devices.pods.setdefault(pod.uid, {}).setdefault(container, {})[resource] = holding
        devices.forget_in_flight()
        self.state.write()

    def know(self, pod: Pod) -> None:
        """Add a pod as admitted earlier: ``List`` shows it."""
        self.pods[pod.uid] = pod
        self.state.pods[pod.uid] = KnownPod(pod.as_known)

    # --- admitting ------------------------------------------------------------------------

    def bind(self, pod: Pod) -> None:
        self.pods[pod.uid] = pod
        self.queue.append(pod)

    def begin(self, pod: Pod) -> None:
        """Begin to admit a pod: ``List`` shows it (K3), but no call was made yet."""
        assert self.admitting is None, f"{self.admitting} is being admitted"
        self.pods[pod.uid] = pod
        self._unqueue(pod)
        self.admitting = pod
        try:
            self._run = RunningSteps(self.state.admit(pod.as_known))
        except AdmissionFailure:
            self._run = None
        self._through()

    @property
    def next_call(self) -> Step | None:
        return None if self._run is None else self._run.step

    def step(self) -> None:
        """Make the next call for the pod being admitted, or a checkpoint write."""
        pod, run = self.admitting, self._run
        assert pod is not None
        assert run is not None
        assert run.step is not None
        try:
            try:
                reply = self._do(pod, run.step)
            except PluginCallFailed as error:
                run.failed(error)
            else:
                run.done(reply)
        except AdmissionFailure:
            self._run = None
        self._through()

    def admit_next(self) -> None:
        self.begin(self.queue[0])
        while self.admitting is not None:
            self.step()

    def _through(self) -> None:
        """Handle the end of an admission, and what was delivered meanwhile."""
        pod = self.admitting
        if pod is None or self.next_call is not None:
            return
        known = self.state.pods[pod.uid]
        self.admitting = self._run = None
        if pod.phase in TERMINAL_PHASES:
            self.state.end(pod.uid)
        elif known.ending:  # never admitted, or not again; what ran is ended
            self.end(pod)
        elif known.rejected:
            self._forget_runs(pod)
            self.statuses.append((pod, "Failed"))
        elif pod.phase != "Running" and not self.to_start(pod):
            self.statuses.append((pod, "Running"))  # the previous instance may not have reported it
        if self._removed is not None:
            self._remove(pod, keeps=self._removed)
            self._removed = None
        if not self._batch:
            self.state.end_first_batch()

    def _do(self, pod: Pod, step: Step) -> Reply:
        container = pod.container(step.container.name)
        if isinstance(step, PreferStep):
            return tuple(self._plugins.prefer(pod, container, step))
        if isinstance(step, AllocateStep):
            if step.resource == OTHER_PLUGIN:
                self._plugins.ask_other(pod, container)
            else:
                self._plugins.give(pod, container, Resource(step.resource), step.ids)
            return PluginResponse()
        if isinstance(step, PreStartStep):
            self._plugins.prestart(pod, container, Resource(step.resource), step.ids)
        else:
            self.state.write()
        return None

    # --- the lifecycle of pods ------------------------------------------------------------

    def start(self, pod: Pod, container: Container) -> bool:
        """Start a container, for the first time or again; return whether the start succeeded."""
        steps = self.state.devices.start(pod.uid, container.as_asked)
        try:
            drive(steps, lambda step: self._do(pod, step))
        except StartFailure:
            return False
        self.runs.add((pod.uid, container.name))
        if not self.to_start(pod):
            self.statuses.append((pod, "Running"))
        return True

    def to_start(self, pod: Pod) -> list[Container]:
        return [each for each in pod.containers if (pod.uid, each.name) not in self.runs]

    def end(self, pod: Pod) -> None:
        self._forget_runs(pod)
        self.state.end(pod.uid)
        if pod.uid not in self.state.pods:
            return
        if pod.deleting:
            self._untell(pod)
            self.removed(pod)
            self._api.remove(pod)
        else:
            self.statuses.append((pod, "Succeeded"))

    def deleting(self, pod: Pod) -> None:
        self.state.update(pod.as_known)

    def removed(self, pod: Pod) -> None:
        self._unqueue(pod)
        self.state.remove(pod.uid)

    def deleted_by_force(self, pod: Pod, *, keeps: bool = True) -> None:
        """Remove a pod (K20); *keeps*: it holds its devices until it has ended."""
        self._unqueue(pod)
        if self.admitting is pod:
            self._removed = keeps
        else:
            self._remove(pod, keeps=keeps)

    def _remove(self, pod: Pod, *, keeps: bool) -> None:
        self._untell(pod)
        self.state.remove(pod.uid, keeps=keeps)

    def _untell(self, pod: Pod) -> None:
        self.statuses = [each for each in self.statuses if each[0] is not pod]

    def _unqueue(self, pod: Pod) -> None:
        if pod in self.queue:
            at = self.queue.index(pod)
            self._batch -= at < self._batch
            self.queue.remove(pod)

    def _forget_runs(self, pod: Pod) -> None:
        self.runs = {each for each in self.runs if each[0] != pod.uid}

    def write_statuses(self, count: int = 1_000_000) -> None:
        """Report up to *count* changes to the API server, the oldest first."""
        while self.statuses and count > 0 and not self._api.away:
            pod, phase = self.statuses.pop(0)
            count -= 1
            if self._api.has(pod) and pod.phase not in TERMINAL_PHASES:
                pod.phase = phase
                self._api.changed(pod)

    # --- queries --------------------------------------------------------------------------

    def starting(self) -> list[Pod]:
        return [each for each in self._alive() if self.to_start(each)]

    def running(self) -> list[Pod]:
        """Return the pods whose containers were all started."""
        return [each for each in self._alive() if not self.to_start(each)]

    def zombies(self) -> list[Pod]:
        """Return the pods that were removed from the API server and have not ended yet (K20)."""
        return [self.pods[each.pod.uid] for each in self._known() if each.removed]

    def ended(self) -> list[Pod]:
        return [self.pods[each.pod.uid] for each in self._known() if each.ended]

    def _alive(self) -> list[Pod]:
        return [
            self.pods[each.pod.uid]
            for each in self._known()
            if not (each.admitting or each.removed or each.finished)
        ]

    def _known(self) -> list[KnownPod]:
        return [each for _, each in sorted(self.state.pods.items())]

    def untold(self) -> set[str]:
        """Return the UIDs of listed pods whose end or rejection was not reported yet."""
        pods = [self.pods[each.pod.uid] for each in self.state.listed() if each.finished]
        return {uid for pod in pods if pod.phase not in TERMINAL_PHASES for uid in pod.uids}

    # --- what pods hold -------------------------------------------------------------------

    @property
    def holdings(self) -> Mapping[str, Mapping[str, Held]]:
        return read_holdings(self.state.devices.pods)

    def saved(self, uid: str, container: str) -> Held:
        """Return a container's devices in the checkpoint."""
        checkpoint = self.state.checkpoint
        pods = {} if checkpoint is None else checkpoint.pods
        return _held(pods.get(uid, {}).get(container, {}))

    @property
    def behind(self) -> bool:
        """Return whether the checkpoint lacks devices that a container holds."""
        return any(
            self.saved(uid, name) != _held(held)
            for uid, containers in self.state.devices.pods.items()
            for name, held in containers.items()
        )

    def of(self, pod: Pod, container: str) -> Held:
        return _held(self.state.devices.pods.get(pod.uid, {}).get(container, {}))

    def held(self, resource: Resource, *, but: Collection[str] = ()) -> set[str]:
        """Return the device IDs held by pods, except the pods *but*."""
        return {
            each
            for uid, containers in self.state.devices.pods.items()
            if uid not in but
            for held in containers.values()
            if resource in held
            for each in held[resource].ids
        }

    def free(self, resource: Resource) -> set[str]:
        """Return the IDs that would be offered: healthy and not counted as allocated."""
        devices = self.state.devices
        return {*devices.healthy[resource]} - devices.allocated.get(resource, set())


def read_holdings(pods: Mapping[str, PodHoldings]) -> dict[str, dict[str, Held]]:
    return {
        uid: {name: _held(held) for name, held in containers.items()}
        for uid, containers in pods.items()
    }


def _held(held: Mapping[str, DeviceAllocation]) -> Held:
    return {each: frozenset(held[each].ids) for each in Resource if each in held}
