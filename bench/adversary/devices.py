"""The simulated kubelet's device manager, driven in one thread.

:mod:`simulator.kubelet.devices` decides; the world makes every call that it wants made.
"""

from collections.abc import Collection, Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from bench.adversary.pods import OTHER_PLUGIN, Container, Pod
from contract.resource import Resource
from simulator.kubelet import devices as simulated
from simulator.kubelet.answers import Answer
from simulator.kubelet.devices import AllocateCall, Options, PodHoldings, PreferCall, Reply, Step
from simulator.kubelet.numa import Device, Holding

if TYPE_CHECKING:
    from bench.adversary.world import World

_OVERTAKEN = 0.3
"""How likely a message of ``ListAndWatch`` is overtaken by the write that comes next."""

_OTHERS = tuple(Device(f"other-{number}") for number in range(500))

PodDevices: TypeAlias = dict[str, dict[str, dict[Resource, frozenset[str]]]]
"""UID -> container -> resource -> device IDs."""


class Devices:
    """One kubelet's device manager, life after life.

    Attributes:
        life: counts its lives.
        ill: device IDs that the plugin advertises as unhealthy, once it says so.
        connected: whether the plugin has registered in this life.
    """

    def __init__(self, places: Mapping[Resource, Collection[str]], random: Random) -> None:
        """Start with all places healthy and none given out; no plugin has registered."""
        self._random = random
        self._places = {each: tuple(ids) for each, ids in places.items()}
        self._saved: dict[str, PodHoldings] = {}  # the checkpoint
        self._late: dict[str, PodHoldings] | None = None  # of a writer that is overtaken (K33)
        self.life = 0
        self.ill: set[str] = set()
        self.connected = False
        self.core = self._begin(())

    # --- lives ----------------------------------------------------------------------------

    def restart(self, running: Iterable[tuple[str, str]]) -> None:
        """Begin a new life with what the checkpoint says.

        Args:
            running: UID and container of what the runtime says is running (K11).
        """
        self.life += 1
        self._late, self.connected = None, False
        self.core = self._begin(running)

    def _begin(self, running: Iterable[tuple[str, str]]) -> simulated.Devices:
        core = simulated.Devices(random=self._random)
        core.restore(_copied(self._saved), Resource, 0.0)
        core.running_before = frozenset(running)
        core.connected(OTHER_PLUGIN, Options())
        core.advertised(OTHER_PLUGIN, _OTHERS)
        return core

    def register(self) -> None:
        """Let the plugin register, and list its devices."""
        for resource in Resource:
            self.core.connected(resource, Options(pre_start=True, preferred=True))
        self.connected = True
        self.advertise()

    def advertise(self) -> None:
        """Let the plugin list its devices; each list is written (K28), or overtaken (K33)."""
        for resource, ids in self._places.items():
            self.core.advertised(resource, [Device(each, each not in self.ill) for each in ids])
            if self._late is None and self._random.random() < _OVERTAKEN:
                self._late = _copied(self.core.pods)
            else:
                self.write()

    # --- what pods hold -------------------------------------------------------------------

    @property
    def pod_devices(self) -> PodDevices:
        """What pods hold."""
        return _ids(self.core.pods)

    @property
    def saved(self) -> PodDevices:
        """What the checkpoint says."""
        return _ids(self._saved)

    @property
    def behind(self) -> bool:
        """Whether the checkpoint lacks what a container has got."""
        return any(
            self._saved.get(uid, {}).get(name) != held
            for uid, containers in self.core.pods.items()
            for name, held in containers.items()
        )

    def of(self, uid: str, container: str) -> Mapping[Resource, frozenset[str]]:
        """Return what a container holds."""
        return _of(self.core.pods.get(uid, {}).get(container, {}))

    def held(self, resource: Resource, *, but: Collection[str] = ()) -> set[str]:
        """Return what pods hold, but for some pods."""
        return {
            each
            for uid, containers in self.core.pods.items()
            if uid not in but
            for held in containers.values()
            if resource in held
            for each in held[resource].ids
        }

    def free(self, resource: Resource) -> set[str]:
        """Return what would be offered: healthy, and in no account of what is given."""
        return {*self.core.healthy[resource]} - self.core.allocated.get(resource, set())

    # --- allocating -----------------------------------------------------------------------

    def allocate(self, pod: Pod, container: Container, world: "World") -> None:
        """Give one container all its devices.

        Raises:
            AdmissionFailure: it cannot be.
        """
        steps = self.core.allocate(pod.uid, container.as_asked, world.active)
        simulated.drive(steps, lambda step: self._do(pod, container, step, world))

    def _do(self, pod: Pod, container: Container, step: Step, world: "World") -> Reply:
        if isinstance(step, PreferCall):
            return tuple(world.prefer(pod, container, step))
        if isinstance(step, AllocateCall):
            if step.resource == OTHER_PLUGIN:
                world.ask_other(pod, container)
            else:
                world.give(pod, container, Resource(step.resource), list(step.ids))
            return Answer()
        self.write()
        return None

    def write(self) -> None:
        """Write the checkpoint; a writer that this one overtakes writes after it (K33)."""
        self._saved = _copied(self.core.pods)
        if self._late is not None:
            self._saved, self._late = self._late, None


def _copied(pods: Mapping[str, PodHoldings]) -> dict[str, PodHoldings]:
    return {
        uid: {name: dict(held) for name, held in containers.items()}
        for uid, containers in pods.items()
    }


def _ids(pods: Mapping[str, PodHoldings]) -> PodDevices:
    return {
        uid: {name: dict(_of(held)) for name, held in containers.items()}
        for uid, containers in pods.items()
    }


def _of(held: Mapping[str, Holding]) -> dict[Resource, frozenset[str]]:
    return {each: frozenset(held[each].ids) for each in Resource if each in held}
