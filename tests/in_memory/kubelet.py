"""The simulated kubelet driven step by step, in one thread; a test says what happens when."""

from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Protocol

from contract.resource import Resource
from simulator.kubelet.answers import Answer
from simulator.kubelet.devices import (
    AllocateCall,
    Devices,
    Options,
    PodHoldings,
    PreferCall,
    PreStartCall,
    Reply,
    Run,
    Step,
    drive,
)
from simulator.kubelet.errors import AdmissionFailure, CallFailed, StartFailure
from simulator.kubelet.numa import NO_NODE, Device, Holding
from simulator.kubelet.pods import TERMINAL_PHASES
from simulator.kubelet.state import Checkpoint, KnownPod, KubeletState
from simulator.node.api import Api
from tests.in_memory.pods import OTHER_PLUGIN, Container, Pod

_OTHERS = tuple(Device(f"other-{number}") for number in range(500))

Held = dict[Resource, frozenset[str]]
"""Device IDs by resource."""


class Plugins(Protocol):
    """Who answers the kubelet's calls; each may raise :class:`CallFailed`."""

    def prefer(self, pod: Pod, container: Container, call: PreferCall) -> Sequence[str]:
        """``GetPreferredAllocation``."""

    def give(self, pod: Pod, container: Container, resource: Resource, ids: Sequence[str]) -> None:
        """``Allocate``."""

    def prestart(
        self, pod: Pod, container: Container, resource: Resource, ids: Sequence[str]
    ) -> None:
        """``PreStartContainer``."""

    def ask_other(self, pod: Pod, container: Container) -> None:
        """``Allocate`` of another vendor's plugin."""


class Kubelet:
    """One kubelet, life after life.

    Attributes:
        state: of this life.
        life: counts its lives.
        pods: what its pods truly are, by UID.
        queue: bound pods that it has not come to.
        admitting: the pod that it is admitting, if any.
        statuses: what it has not told the API server yet.
        statics: the pods that it reads from files.
        runs: UID and name of the containers that were started; they outlive a kubelet.
        ill: device IDs that the plugin advertises as unhealthy, once it says so.
        connected: whether the plugin has registered in this life.
        first: the order in which a container's resources are asked for; by chance if empty (K1).
    """

    def __init__(
        self,
        places: Mapping[Resource, Collection[str]],
        api: Api[Pod],
        plugins: Plugins,
        random: Random,
        *,
        active_only: bool = True,
        overtaken: float = 0.0,
    ) -> None:
        """Know no pod, with all places healthy; no plugin has registered.

        Args:
            places: the device IDs of the node.
            api: where pods come from, and statuses go.
            plugins: answers the calls.
            random: all that is left to chance.
            active_only: ``List`` is in its new form (K8).
            overtaken: how likely a write for a plugin's list is overtaken (K33).
        """
        self.active_only = active_only
        self.life = 0
        self.pods: dict[str, Pod] = {}
        self.queue: list[Pod] = []
        self.admitting: Pod | None = None
        self.statuses: list[tuple[Pod, str]] = []
        self.statics: list[Pod] = []
        self.runs: set[tuple[str, str]] = set()
        self.ill: set[str] = set()
        self.connected = False
        self.first: tuple[str, ...] = ()
        self._places = {each: tuple(ids) for each, ids in places.items()}
        self._api, self._plugins, self._random = api, plugins, random
        self._overtaken = overtaken
        self._batch = 0  # how many of the queue are of the first list of this life
        self._run: Run | None = None
        self._removed: bool | None = None  # by force, in mid-admission; whether it keeps its places
        self.state = self._begin(Checkpoint(registered=dict.fromkeys(Resource, ())))
        self.state.all_admitted()

    # --- lives ----------------------------------------------------------------------------

    def _begin(self, checkpoint: Checkpoint | None) -> KubeletState:
        devices = Devices(random=self._random, order=self._order)
        state = KubeletState(
            devices,
            random=self._random,
            active_pods_only=self.active_only,
            overtaken_writes=self._overtaken,
        )
        state.begin(checkpoint, frozenset(self.runs), 0.0)
        devices.connected(OTHER_PLUGIN, Options())
        devices.advertised(OTHER_PLUGIN, _OTHERS)
        return state

    def _order(self, resources: list[str]) -> None:
        if self.first:  # other vendors' come last
            resources.sort(key=lambda each: [*self.first, each].index(each))
        else:
            self._random.shuffle(resources)

    def restart(self) -> None:
        """Die and come up again (K11); the plugin has to register anew, and all pods come back."""
        self.life += 1
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
            self.state.all_admitted()

    def register(self) -> None:
        """Let the plugin register, and list its devices."""
        for resource in Resource:
            self.state.devices.connected(resource, Options(pre_start=True, preferred=True))
        self.connected = True
        self.advertise()

    def advertise(self) -> None:
        """Let the plugin list its devices."""
        for resource, ids in self._places.items():
            self.state.advertised(resource, [Device(each, each not in self.ill) for each in ids])

    def overtake(self) -> None:
        """Let the plugin list its devices; the write that comes next overtakes the one for it."""
        self.state._late = self.state._gathered()

    def hold(self, pod: Pod, container: str, held: Mapping[Resource, Sequence[str]]) -> None:
        """Have given places to a container at some time, whatever they are; and write it down."""
        devices = self.state.devices
        for resource, ids in held.items():
            holding = Holding(tuple(ids), Answer(), {NO_NODE: tuple(ids)})
            devices.pods.setdefault(pod.uid, {}).setdefault(container, {})[resource] = holding
        devices.forget_in_flight()
        self.state.write()

    def know(self, pod: Pod) -> None:
        """Have admitted a pod at some time: ``List`` shows it."""
        self.pods[pod.uid] = pod
        self.state.pods[pod.uid] = KnownPod(pod.as_known)

    # --- admitting ------------------------------------------------------------------------

    def bind(self, pod: Pod) -> None:
        """See a pod that was bound here."""
        self.pods[pod.uid] = pod
        self.queue.append(pod)

    def begin(self, pod: Pod) -> None:
        """Come to a pod: ``List`` shows it (K3), and no call was made yet."""
        assert self.admitting is None, f"{self.admitting} is being admitted"
        self.pods[pod.uid] = pod
        self._unqueue(pod)
        self.admitting = pod
        try:
            self._run = Run(self.state.admit(pod.as_known))
        except AdmissionFailure:
            self._run = None
        self._through()

    @property
    def next_call(self) -> Step | None:
        """What the kubelet does next for the pod that it is admitting."""
        return None if self._run is None else self._run.step

    def step(self) -> None:
        """Make the next call for the pod that is being admitted, or write the checkpoint."""
        pod, run = self.admitting, self._run
        assert pod is not None
        assert run is not None
        assert run.step is not None
        try:
            try:
                reply = self._do(pod, run.step)
            except CallFailed as error:
                run.failed(error)
            else:
                run.done(reply)
        except AdmissionFailure:
            self._run = None
        self._through()

    def admit_next(self) -> None:
        """Admit the pod that is next, all of its containers."""
        self.begin(self.queue[0])
        while self.admitting is not None:
            self.step()

    def _through(self) -> None:
        """See whether an admission is over; what was told meanwhile is handled then."""
        pod = self.admitting
        if pod is None or self.next_call is not None:
            return
        known = self.state.pods[pod.uid]
        self.admitting = self._run = None
        if pod.phase in TERMINAL_PHASES:
            self.state.end(pod.uid)
        elif known.ending:  # never admitted, or not again; what ran is ended
            self.end(pod)
        elif known.refused:
            self._forget_runs(pod)
            self.statuses.append((pod, "Failed"))
        elif pod.phase != "Running" and not self.to_start(pod):
            self.statuses.append((pod, "Running"))  # the kubelet before may not have told it
        if self._removed is not None:
            self._remove(pod, keeps=self._removed)
            self._removed = None
        if not self._batch:
            self.state.all_admitted()

    def _do(self, pod: Pod, step: Step) -> Reply:
        container = pod.container(step.container.name)
        if isinstance(step, PreferCall):
            return tuple(self._plugins.prefer(pod, container, step))
        if isinstance(step, AllocateCall):
            if step.resource == OTHER_PLUGIN:
                self._plugins.ask_other(pod, container)
            else:
                self._plugins.give(pod, container, Resource(step.resource), step.ids)
            return Answer()
        if isinstance(step, PreStartCall):
            self._plugins.prestart(pod, container, Resource(step.resource), step.ids)
        else:
            self.state.write()
        return None

    # --- what becomes of pods -------------------------------------------------------------

    def start(self, pod: Pod, container: Container) -> bool:
        """Start a container, again or for the first time; return whether it was let through."""
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
        """Return the containers of a pod that were not started yet, in order."""
        return [each for each in pod.containers if (pod.uid, each.name) not in self.runs]

    def end(self, pod: Pod) -> None:
        """Record that all containers of a pod have ended."""
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
        """See that a pod is to end, some time later."""
        self.state.update(pod.as_known)

    def removed(self, pod: Pod) -> None:
        """See that the API server no longer has a pod that ended."""
        self._unqueue(pod)
        self.state.remove(pod.uid)

    def deleted_by_force(self, pod: Pod, *, keeps: bool = True) -> None:
        """See that the API server has a pod no more (K20).

        *keeps*: it holds its devices until it has ended, or frees them at once.
        """
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
        """Report the API server of so many changes, the oldest first."""
        while self.statuses and count > 0 and not self._api.away:
            pod, phase = self.statuses.pop(0)
            count -= 1
            if self._api.has(pod) and pod.phase not in TERMINAL_PHASES:
                pod.phase = phase
                self._api.changed(pod)

    # --- what is so -----------------------------------------------------------------------

    def starting(self) -> list[Pod]:
        """Return the pods that have containers to start."""
        return [each for each in self._alive() if self.to_start(each)]

    def running(self) -> list[Pod]:
        """Return the pods all of whose containers were started."""
        return [each for each in self._alive() if not self.to_start(each)]

    def zombies(self) -> list[Pod]:
        """Return the pods that the API server has forgotten, and that still end (K20)."""
        return [self.pods[each.pod.uid] for each in self._known() if each.removed]

    def ended(self) -> list[Pod]:
        """Return the pods that are known to have ended."""
        return [self.pods[each.pod.uid] for each in self._known() if each.ended]

    def _alive(self) -> list[Pod]:
        return [
            self.pods[each.pod.uid]
            for each in self._known()
            if not (each.admitting or each.removed or each.over)
        ]

    def _known(self) -> list[KnownPod]:
        return [each for _, each in sorted(self.state.pods.items())]

    def untold(self) -> set[str]:
        """Return the UIDs of listed pods that ended or were rejected, which nobody was told."""
        pods = [self.pods[each.pod.uid] for each in self.state.listed() if each.over]
        return {uid for pod in pods if pod.phase not in TERMINAL_PHASES for uid in pod.uids}

    # --- what pods hold -------------------------------------------------------------------

    @property
    def holdings(self) -> Mapping[str, Mapping[str, Held]]:
        """What pods hold: UID -> container -> device IDs."""
        return read_holdings(self.state.devices.pods)

    def saved(self, uid: str, container: str) -> Held:
        """Return what the checkpoint says of a container."""
        checkpoint = self.state.checkpoint
        pods = {} if checkpoint is None else checkpoint.pods
        return _held(pods.get(uid, {}).get(container, {}))

    @property
    def behind(self) -> bool:
        """Whether the checkpoint lacks what a container has got."""
        return any(
            self.saved(uid, name) != _held(held)
            for uid, containers in self.state.devices.pods.items()
            for name, held in containers.items()
        )

    def of(self, pod: Pod, container: str) -> Held:
        """Return what a container holds."""
        return _held(self.state.devices.pods.get(pod.uid, {}).get(container, {}))

    def held(self, resource: Resource, *, but: Collection[str] = ()) -> set[str]:
        """Return what pods hold, but for some pods."""
        return {
            each
            for uid, containers in self.state.devices.pods.items()
            if uid not in but
            for held in containers.values()
            if resource in held
            for each in held[resource].ids
        }

    def free(self, resource: Resource) -> set[str]:
        """Return what would be offered: healthy, and in no account of what is given."""
        devices = self.state.devices
        return {*devices.healthy[resource]} - devices.allocated.get(resource, set())


def read_holdings(pods: Mapping[str, PodHoldings]) -> dict[str, dict[str, Held]]:
    """Read who holds which device IDs: UID -> container -> device IDs."""
    return {
        uid: {name: _held(held) for name, held in containers.items()}
        for uid, containers in pods.items()
    }


def _held(held: Mapping[str, Holding]) -> Held:
    return {each: frozenset(held[each].ids) for each in Resource if each in held}
