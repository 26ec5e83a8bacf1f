"""The device manager's state, and the order of its calls to plugins.

Pure: no I/O, no lock. The caller holds one lock while a method runs or a generator advances, and
releases it during a call to a plugin, as the real manager does. K15 happens in that gap:
``allocated`` duplicates what ``pods`` has, and :meth:`Devices.update_allocated` derives it anew
when a pod has ended, without the devices of a call that is still in flight.

One module although it is long: it is one state, and the order in which its parts are read and
written is what makes the kubelet hard to understand.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TypeAlias

from contract.demand import ContainerKind
from simulator.kubelet.errors import AdmissionFailure, PluginCallFailed, StartFailure
from simulator.kubelet.numa import (
    Device,
    DeviceAllocation,
    NumaHint,
    by_node,
    no_hint,
    split_by_affinity,
)
from simulator.kubelet.pods import Container
from simulator.kubelet.responses import MergedResponse, PluginResponse, merge_responses
from simulator.kubelet.seeding import seeded_random


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """The optional calls that a plugin wants: its ``DevicePluginOptions``."""

    pre_start: bool = False
    preferred: bool = False


@dataclass(frozen=True, slots=True)
class PluginEndpoint:
    """A plugin, connected or disconnected.

    Attributes:
        options: ``None`` if the plugin is known from the checkpoint only.
        stopped_at: when its stream broke, monotonic seconds; ``None`` while it is connected.
    """

    options: PluginOptions | None
    stopped_at: float | None = None


@dataclass(frozen=True, slots=True)
class PreferStep:
    """``GetPreferredAllocation``; the reply is device IDs."""

    container: Container
    resource: str
    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class AllocateStep:
    """``Allocate`` of these devices; the reply is a :class:`PluginResponse`."""

    container: Container
    resource: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    """Write the checkpoint now: a container has all the devices that it requests (K28)."""

    container: Container


@dataclass(frozen=True, slots=True)
class PreStartStep:
    """``PreStartContainer`` for a container with these devices; the reply is ``None``."""

    container: Container
    resource: str
    ids: tuple[str, ...]


Step: TypeAlias = PreferStep | AllocateStep | SaveCheckpoint | PreStartStep
Reply: TypeAlias = tuple[str, ...] | PluginResponse | None
Steps: TypeAlias = Generator[Step, Reply, None]
"""Yields each step and is sent its reply; a failed call is thrown in as ``PluginCallFailed``."""

ActivePods: TypeAlias = Callable[[], Collection[str]]
"""Returns the UIDs of the pods that are active now."""

PodHoldings: TypeAlias = dict[str, dict[str, DeviceAllocation]]
"""Container name -> resource -> devices held."""


class RunningSteps:
    """A running generator of steps.

    Attributes:
        step: the step to do next; ``None`` at the end.
    """

    def __init__(self, steps: Steps) -> None:
        """Advance to the first step.

        Raises:
            AdmissionFailure: from the steps; so do all methods here.
            StartFailure: likewise.
        """
        self._steps = steps
        self.step: Step | None = None
        self._go(partial(next, steps))

    def done(self, reply: Reply) -> None:
        """Advance with the reply to the current step."""
        self._go(partial(self._steps.send, reply))

    def failed(self, error: PluginCallFailed) -> None:
        """Advance after the current step's call has failed."""
        self._go(partial(self._steps.throw, error))

    def _go(self, advance: Callable[[], Step]) -> None:
        try:
            self.step = advance()
        except StopIteration:
            self.step = None
        except BaseException:
            self.step = None
            raise


def drive(
    steps: Steps,
    do: Callable[[Step], Reply],
    advancing: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Do all steps with *do*; *advancing* is entered around the generator, not around *do*.

    Raises:
        AdmissionFailure: from the steps.
        StartFailure: likewise.
    """
    with advancing():
        run = RunningSteps(steps)
    while run.step is not None:
        try:
            reply = do(run.step)
        except PluginCallFailed as error:
            with advancing():
                run.failed(error)
        else:
            with advancing():
                run.done(reply)


class Devices:
    """All devices, and the containers that hold them.

    Args:
        random: makes every choice that is the order of a Go map in the real kubelet.
        numa_hint: stands for the topology manager (K23).
        preferred_when_exact: whether the plugin is asked for its preference if exactly as many
            devices are free as are needed and no NUMA alignment applies. Kubernetes 1.36 asks.
        order: sorts the resources of a container in place; shuffles them by default (K1).
    """

    def __init__(
        self,
        *,
        random: Random,
        numa_hint: NumaHint = no_hint,
        preferred_when_exact: bool = True,
        order: Callable[[list[str]], None] | None = None,
    ) -> None:
        self._random = random
        self._order = order or random.shuffle
        # Starts run beside admissions. They have a generator of their own, so that the order of
        # admission depends on the seed alone.
        self.start_random = seeded_random(random.getrandbits(64))
        self._numa_hint = numa_hint
        self._preferred_when_exact = preferred_when_exact
        self.endpoints: dict[str, PluginEndpoint] = {}
        self.all: dict[str, dict[str, Device]] = {}
        self.healthy: dict[str, dict[str, None]] = {}
        self.unhealthy: dict[str, dict[str, None]] = {}
        self.allocated: dict[str, set[str]] = {}
        self.pods: dict[str, PodHoldings] = {}
        self.sources_ready = False
        self.running_before: frozenset[tuple[str, str]] = frozenset()
        self.reusable: dict[str, dict[str, None]] = {}
        self._reusable_of = ""

    # Messages from plugins

    def connected(self, resource: str, options: PluginOptions) -> None:
        """Add a plugin that has registered; it replaces an earlier one."""
        self.endpoints[resource] = PluginEndpoint(options)

    def advertised(self, resource: str, devices: Iterable[Device]) -> None:
        """Replace a plugin's list of devices."""
        listed = {device.id: device for device in devices}
        self.all[resource] = listed
        self.healthy[resource] = {id_: None for id_, device in listed.items() if device.healthy}
        self.unhealthy[resource] = {
            id_: None for id_, device in listed.items() if not device.healthy
        }

    def disconnected(self, resource: str, now: float) -> None:
        """Record a broken stream: all devices become unhealthy, the capacity stays."""
        endpoint = self.endpoints.get(resource)
        if endpoint is None:
            return
        lost = self.healthy.get(resource, {})
        if resource in self.healthy:
            self.healthy[resource] = {}
        self.unhealthy[resource] = {**self.unhealthy.get(resource, {}), **lost}
        self.endpoints[resource] = PluginEndpoint(endpoint.options, now)

    def forget_gone(self, now: float, grace: float) -> bool:
        """Forget plugins disconnected for longer than *grace* seconds; return whether any were."""
        gone = []
        for resource in {*self.healthy, *self.unhealthy}:
            endpoint = self.endpoints.get(resource)
            stopped = None if endpoint is None else endpoint.stopped_at
            if endpoint is None or (stopped is not None and now - stopped > grace):
                gone.append(resource)
        for resource in gone:
            for each in (self.endpoints, self.healthy, self.unhealthy):
                each.pop(resource, None)
        return bool(gone)

    def counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return (capacity, allocatable) of each known resource."""
        resources = sorted({*self.healthy, *self.unhealthy})
        allocatable = {each: len(self.healthy.get(each, {})) for each in resources}
        capacity = {
            each: allocatable[each] + len(self.unhealthy.get(each, {})) for each in resources
        }
        return capacity, allocatable

    def manages(self, resource: str) -> bool:
        """Return whether *resource* belongs to a plugin; the kubelet ignores unknown ones."""
        return resource in self.healthy or resource in self.allocated

    # The checkpoint

    def restore(
        self, pods: Mapping[str, PodHoldings], registered: Iterable[str], now: float
    ) -> None:
        """Load the checkpoint of an earlier kubelet (K11); its plugins are known but stopped."""
        self.pods = {uid: dict(holdings) for uid, holdings in pods.items()}
        self.allocated = self._derived()
        for resource in registered:
            self.healthy[resource] = {}
            self.unhealthy[resource] = {}
            self.endpoints[resource] = PluginEndpoint(None, now)

    # Pods that ended

    def update_allocated(self, active: Collection[str]) -> None:
        """Free the devices of pods that are not among *active* (K15).

        ``allocated`` is derived anew only if there is such a pod. No pod holds the devices of a
        call in flight yet, so they look free from then on.
        """
        if not self.sources_ready:
            return
        ended = [uid for uid in self.pods if uid not in active]
        if not ended:
            return
        for uid in ended:
            del self.pods[uid]
        self.allocated = self._derived()

    def _derived(self) -> dict[str, set[str]]:
        derived: dict[str, set[str]] = {}
        for holdings in self.pods.values():
            for resources in holdings.values():
                for resource, holding in resources.items():
                    derived.setdefault(resource, set()).update(holding.ids)
        return derived

    def forget_in_flight(self) -> None:
        """Derive ``allocated`` anew, as the manager does if an admission fails midway."""
        self.allocated = self._derived()

    # Allocation

    def allocate(self, uid: str, container: Container, active: ActivePods) -> Steps:
        """Allocate the devices of a container of the pod *uid* (K1, K2, K7).

        Raises:
            AdmissionFailure: it fails; the text is for the user.
        """
        if self._reusable_of != uid:
            self._reusable_of, self.reusable = uid, {}
        affinity = self._numa_hint(uid, container.name)
        yield from self._allocate_resources(uid, container, active, affinity)
        held = self.pods.get(uid, {}).get(container.name, {})
        for resource, holding in held.items():
            reusable = self.reusable.setdefault(resource, {})
            for id_ in holding.ids:
                if container.kind is ContainerKind.INIT:
                    reusable[id_] = None
                else:
                    reusable.pop(id_, None)

    def _allocate_resources(
        self,
        uid: str,
        container: Container,
        active: ActivePods,
        affinity: Collection[int] | None,
    ) -> Steps:
        swept = changed = False
        resources = list(container.limits)
        self._order(resources)
        for resource in resources:
            if not self.manages(resource):
                continue
            if not swept:
                self.update_allocated(active())
                swept = True
            ids = yield from self._choose(uid, container, resource, affinity)
            if not ids:
                continue
            changed = True
            if resource not in self.endpoints:
                self.forget_in_flight()
                raise AdmissionFailure(f"unknown Device Plugin {resource}")
            try:
                response = yield AllocateStep(container, resource, self._shuffled(ids))
            except PluginCallFailed as error:
                self.forget_in_flight()
                raise AdmissionFailure(str(error)) from error
            if not isinstance(response, PluginResponse):
                raise AdmissionFailure("no containers return in allocation response")
            devices = self.all[resource]
            if any(id_ not in devices for id_ in ids):
                # The plugin removed a device during its allocation. The real manager crashes here
                # (nil dereference); the simulation rejects the pod instead.
                raise AdmissionFailure(f"device withdrawn during allocation of {resource}")
            self.pods.setdefault(uid, {}).setdefault(container.name, {})[resource] = (
                DeviceAllocation(ids, response, by_node(ids, devices))
            )
        if changed:
            yield SaveCheckpoint(container)

    def _choose(
        self,
        pod_uid: str,
        container: Container,
        resource: str,
        affinity: Collection[int] | None,
    ) -> Generator[Step, Reply, tuple[str, ...]]:
        """Choose devices for one resource; return none if the container needs none."""
        size = container.limits[resource]
        holding = self.pods.get(pod_uid, {}).get(container.name, {}).get(resource)
        if holding is not None and len(holding.ids) != size:
            raise AdmissionFailure(
                f'pod "{pod_uid}" container "{container.name}" changed request for resource '
                f'"{resource}" from {len(holding.ids)} to {size}'
            )
        if not self.sources_ready and (pod_uid, container.name) in self.running_before:
            return ()  # it kept running during the kubelet's restart, so it has its devices
        self._check_health(resource, holding)
        if holding is not None or size <= 0:
            return ()
        taken: dict[str, None] = {}
        if self._take(resource, self.reusable.get(resource, {}), taken, size):
            return tuple(taken)
        in_use = self.allocated.get(resource, set())
        available = [id_ for id_ in self.healthy[resource] if id_ not in in_use]
        needed = size - len(taken)
        if len(available) < needed:
            raise AdmissionFailure(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {needed}, Available: {len(available)}"
            )
        groups = split_by_affinity(available, self.all[resource], affinity)
        if needed < len(groups.aligned):
            yield from self._ask(container, resource, groups.aligned, taken, size)
            rest: tuple[Collection[str], ...] = (groups.aligned,)
        else:
            if self._take(resource, groups.aligned, taken, size):
                return tuple(taken)
            if self._preferred_when_exact or needed < len(available):
                yield from self._ask(container, resource, available, taken, size)
            rest = (groups.unaligned, groups.elsewhere)
        for group in rest:
            if len(taken) == size or self._take(resource, group, taken, size):
                return tuple(taken)
        raise AdmissionFailure(
            "unexpectedly allocated less resources than required. "
            f"Requested: {size}, Got: {len(taken)}"
        )

    def _check_health(self, resource: str, holding: DeviceAllocation | None) -> None:
        """Raise if no device can be given, after a node reboot or without the plugin."""
        healthy = self.healthy.get(resource)
        if healthy is None:
            raise AdmissionFailure(f"cannot allocate unregistered device {resource}")
        if not healthy:
            raise AdmissionFailure(
                f"no healthy devices present; cannot allocate unhealthy devices {resource}"
            )
        if holding is not None and any(id_ not in healthy for id_ in holding.ids):
            raise AdmissionFailure(
                "previously allocated devices are no longer healthy; cannot allocate "
                f"unhealthy devices {resource}"
            )

    def _ask(
        self,
        container: Container,
        resource: str,
        offered: Collection[str],
        taken: dict[str, None],
        size: int,
    ) -> Generator[Step, Reply, None]:
        """Ask the plugin for its preference and take the preferred devices that were offered."""
        endpoint = self.endpoints.get(resource)
        if endpoint is None:
            raise AdmissionFailure(
                f"endpoint not found in cache for a registered resource: {resource}"
            )
        if endpoint.options is None or not endpoint.options.preferred:
            return
        call = PreferStep(
            container,
            resource,
            self._shuffled({**dict.fromkeys(offered), **taken}),
            self._shuffled(taken),
            size,
        )
        try:
            reply = yield call
        except PluginCallFailed as error:
            raise AdmissionFailure(
                f"device plugin GetPreferredAllocation rpc failed with err: {error}"
            ) from error
        preferred = reply if isinstance(reply, tuple) else ()
        within = set(offered)
        self._take(
            resource, [id_ for id_ in dict.fromkeys(preferred) if id_ in within], taken, size
        )

    def _take(
        self, resource: str, group: Collection[str], taken: dict[str, None], size: int
    ) -> bool:
        """Take devices from *group* at random until there are *size*; return whether there are.

        They count as allocated at once, before a plugin is called.
        """
        candidates = [id_ for id_ in group if id_ not in taken]
        chosen = self._random.sample(candidates, min(size - len(taken), len(candidates)))
        self.allocated.setdefault(resource, set()).update(chosen)
        taken |= dict.fromkeys(chosen)
        return len(taken) == size

    def _shuffled(self, ids: Collection[str]) -> tuple[str, ...]:
        return tuple(self._random.sample(list(ids), len(ids)))

    # Starting a container

    def start(self, pod_uid: str, container: Container) -> Steps:
        """Call ``PreStartContainer`` of each plugin that wants it (K10).

        Raises:
            StartFailure: a plugin refuses or is missing, or the container has no devices of it.
        """
        resources = [each for each in container.limits if container.limits[each]]
        self.start_random.shuffle(resources)
        for resource in resources:
            if not self.manages(resource):
                continue
            ids = self._devices_to_prestart(pod_uid, container.name, resource)
            if ids is None:
                continue
            try:
                yield PreStartStep(container, resource, ids)
            except PluginCallFailed as error:
                raise StartFailure(
                    f"device plugin PreStartContainer rpc failed with err: {error}"
                ) from error

    def _devices_to_prestart(
        self, pod_uid: str, container: str, resource: str
    ) -> tuple[str, ...] | None:
        endpoint = self.endpoints.get(resource)
        if endpoint is None:
            raise StartFailure(f"endpoint not found in cache for a registered resource: {resource}")
        if endpoint.options is None or not endpoint.options.pre_start:
            return None
        holding = self.pods.get(pod_uid, {}).get(container, {}).get(resource)
        if holding is None:
            raise StartFailure(
                f"no devices found allocated in local cache for pod {pod_uid}, "
                f"container {container}, resource {resource}"
            )
        return tuple(self.start_random.sample(holding.ids, len(holding.ids)))

    def received(self, pod_uid: str, container: str) -> MergedResponse:
        """Merge the ``Allocate`` responses for a container (K12)."""
        held = self.pods.get(pod_uid, {}).get(container, {})
        resources = self.start_random.sample(sorted(held), len(held))
        return merge_responses(held[resource].response for resource in resources)
