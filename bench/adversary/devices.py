"""The kubelet's device manager, written from its source (1.36, ``pkg/kubelet/cm/devicemanager``).

Names in comments are those of the Go code. What goes to plugins goes through :class:`Port`.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeAlias

from bench.adversary.pods import Container, Pod
from contract.demand import ContainerKind
from contract.resource import Resource

_OVERTAKEN = 0.3
"""How likely a message of ``ListAndWatch`` is overtaken by the write that comes next."""

PodDevices: TypeAlias = dict[str, dict[str, dict[Resource, frozenset[str]]]]
"""``podDevices``: UID -> container -> resource -> device IDs."""


class CallFailed(Exception):
    """A plugin's call ended with an error."""


class Rejected(Exception):
    """The pod is refused; the message is what its author reads."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a preferred call says.

    Attributes:
        resource: of what.
        available: the device IDs to choose from.
        must: those among them that the container gets anyway (K7).
        size: how many it gets in all.
    """

    resource: Resource
    available: tuple[str, ...]
    must: tuple[str, ...]
    size: int


class Port(Protocol):
    """What the device manager asks of others."""

    def prefer(self, pod: Pod, container: Container, offer: "Offer") -> list[str]:
        """Ask the plugin which devices it prefers."""
        ...

    def give(self, pod: Pod, container: Container, resource: Resource, ids: list[str]) -> None:
        """Report the plugin which devices a container gets."""
        ...

    def ask_other(self, pod: Pod, container: Container) -> None:
        """Ask the other vendor's plugin."""
        ...

    def active(self) -> Collection[str]:
        """Return the UIDs of ``GetActivePods``."""
        ...


class Devices:
    """One kubelet's device manager: who holds which devices."""

    def __init__(self, places: Mapping[Resource, Collection[str]], random: Random) -> None:
        """Start with all places healthy and none given out."""
        self._random = random
        self.places = {each: frozenset(ids) for each, ids in places.items()}
        self.healthy = {each: set(ids) for each, ids in places.items()}
        self.connected = True
        self.sources_ready = False
        self.running_before: frozenset[tuple[str, str]] = frozenset()
        self.pod_devices: PodDevices = {}
        self.saved: PodDevices = {}  # the checkpoint
        self._late: PodDevices | None = None  # gathered by a writer that has been overtaken (K33)
        self.allocated: dict[Resource, set[str]] = {each: set() for each in Resource}
        self.life = 0
        self.pending = ""
        self._reusable_of = ""
        self.reusable: dict[Resource, set[str]] = {each: set() for each in Resource}

    # --- what pods hold -----------------------------------------------------------------

    def restart(self, running: Iterable[tuple[str, str]]) -> None:
        """Begin a new life with what the checkpoint says."""
        self.life += 1
        self.pod_devices, self._late = _copied(self.saved), None
        self.allocated = self._derived()
        self.running_before = frozenset(running)
        self.sources_ready = False
        self.connected = False
        self.pending = self._reusable_of = ""

    def update_allocated(self, active: Collection[str]) -> bool:
        """``UpdateAllocatedDevices``: return whether something was freed."""
        if not self.sources_ready:
            return False
        ended = [uid for uid in self.pod_devices if uid not in active and uid != self.pending]
        for uid in ended:
            del self.pod_devices[uid]
        if ended:
            self.allocated = self._derived()
        return bool(ended)

    def _derived(self) -> dict[Resource, set[str]]:
        return {each: self.held(each) for each in Resource}

    def held(self, resource: Resource, *, but: Collection[str] = ()) -> set[str]:
        """Return what pods hold, but for some pods."""
        return {
            each
            for uid, containers in self.pod_devices.items()
            if uid not in but
            for held in containers.values()
            for each in held.get(resource, ())
        }

    def of(self, uid: str, container: str) -> Mapping[Resource, frozenset[str]]:
        """Return what a container holds."""
        return self.pod_devices.get(uid, {}).get(container, {})

    # --- allocating ---------------------------------------------------------------------

    def allocate(self, pod: Pod, container: Container, port: Port) -> None:
        """``Allocate``: give one container all its devices.

        Raises:
            Rejected: it cannot be.
        """
        self.pending = pod.uid
        if self._reusable_of != pod.uid:
            self._reusable_of = pod.uid
            self.reusable = {each: set() for each in Resource}
        self._allocate_resources(pod, container, port)
        for resource, ids in self.of(pod.uid, container.name).items():
            if container.kind is ContainerKind.INIT:
                self.reusable[resource] |= ids
            else:
                self.reusable[resource] -= ids

    def _allocate_resources(self, pod: Pod, container: Container, port: Port) -> None:
        updated = changed = False
        asked: list[Resource | None] = [each for each in Resource if container.count(each)]
        if container.other:
            asked.append(None)
        self._random.shuffle(asked)
        for resource in asked:
            if not updated:
                self.update_allocated(port.active())
                updated = True
            if resource is None:
                try:
                    port.ask_other(pod, container)
                except CallFailed as error:
                    self.allocated = self._derived()
                    raise Rejected(str(error)) from error
                continue
            ids = self._choose(pod, container, resource, port)
            if not ids:
                continue
            changed = True
            try:
                port.give(pod, container, resource, self._shuffled(ids))
            except CallFailed as error:
                self.allocated = self._derived()
                raise Rejected(str(error)) from error
            held = self.pod_devices.setdefault(pod.uid, {}).setdefault(container.name, {})
            held[resource] = frozenset(ids)
        if changed:
            self.write()

    # --- the checkpoint -----------------------------------------------------------------

    def write(self) -> None:
        """``writeCheckpoint``; a writer that this one overtakes writes after it (K33)."""
        self.saved = _copied(self.pod_devices)
        if self._late is not None:
            self.saved, self._late = self._late, None

    def listed(self) -> None:
        """Take a message of ``ListAndWatch``: it writes (K28, K30), or is overtaken (K33)."""
        if self._late is None and self._random.random() < _OVERTAKEN:
            self._late = _copied(self.pod_devices)
        else:
            self.write()

    @property
    def behind(self) -> bool:
        """Whether the checkpoint lacks what a container has got."""
        return any(
            self.saved.get(uid, {}).get(name) != held
            for uid, containers in self.pod_devices.items()
            for name, held in containers.items()
        )

    def _choose(
        self, pod: Pod, container: Container, resource: Resource, port: Port
    ) -> frozenset[str]:
        """``devicesToAllocate``, without NUMA alignment."""
        needed = container.count(resource)
        held = self.of(pod.uid, container.name).get(resource)
        if held is not None and len(held) != needed:
            raise Rejected("changed request")
        if not self.sources_ready and (pod.uid, container.name) in self.running_before:
            return frozenset()
        if not self.connected:
            raise Rejected("no healthy devices present; cannot allocate unhealthy devices")
        if held is not None:
            if not held <= self.healthy[resource]:
                raise Rejected("previously allocated devices are no longer healthy")
            return frozenset()
        taken: set[str] = set()
        reusable = sorted(self.reusable[resource])
        taken.update(self._random.sample(reusable, min(needed, len(reusable))))
        self.allocated[resource] |= taken
        if len(taken) == needed:
            return frozenset(taken)
        available = self.healthy[resource] - self.allocated[resource]
        missing = needed - len(taken)
        if len(available) < missing:
            raise Rejected(f"requested number of devices unavailable for {resource}")
        try:
            preferred = port.prefer(
                pod,
                container,
                Offer(
                    resource,
                    tuple(self._shuffled(available | taken)),
                    tuple(self._shuffled(taken)),
                    needed,
                ),
            )
        except CallFailed as error:
            raise Rejected(str(error)) from error
        # What was preferred comes first, anything after it (K2).
        wanted = [each for each in dict.fromkeys(preferred) if each in available]
        others = self._shuffled(available - set(wanted))
        taken.update([*wanted, *others][:missing])
        self.allocated[resource] |= taken
        return frozenset(taken)

    def _shuffled(self, ids: Collection[str]) -> list[str]:
        return self._random.sample(sorted(ids), len(ids))


def _copied(pod_devices: PodDevices) -> PodDevices:
    return {
        uid: {name: dict(held) for name, held in containers.items()}
        for uid, containers in pod_devices.items()
    }
