"""Pods as they truly are, and as the API server shows them."""

import itertools
from dataclasses import dataclass, field
from random import Random
from typing import Any

from contract.demand import ContainerKind, Demand
from contract.names import Names
from contract.requests import read_pod_demand, walk_containers
from contract.resource import Resource
from contract.stamps import OrderStamp
from placement.pods import PodId, read_pod
from simulator.kubelet import pods as simulated
from simulator.node.api import NODE

Json = dict[str, Any]

NAMES = Names()
OTHER_PLUGIN = "example.com/other"
"""A resource of another vendor's device plugin."""

_BEGAN = 1_736_928_000
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod.

    Attributes:
        kind: how the kubelet counts its devices.
        other: it asks another vendor's plugin for something, too.
    """

    name: str
    kind: ContainerKind
    cores: int = 0
    memory: int = 0
    other: bool = False

    def count(self, resource: Resource) -> int:
        """Return how many places of *resource* it asks for."""
        return self.cores if resource is Resource.CORE else self.memory

    @property
    def as_asked(self) -> simulated.Container:
        """The container as the kubelet sees it."""
        counts = {Resource.CORE: self.cores, Resource.MEMORY: self.memory, OTHER_PLUGIN: self.other}
        limits = {name: int(count) for name, count in counts.items() if count}
        return simulated.Container(self.name, self.kind, limits)

    @property
    def demand(self) -> Demand:
        """What it asks for."""
        return Demand(self.cores, self.memory)

    @property
    def hands_on(self) -> bool:
        """Whether later containers of its pod get what it has (K7)."""
        return self.kind is ContainerKind.INIT

    @property
    def asks(self) -> bool:
        """Whether it asks for GPUs."""
        return bool(self.cores or self.memory)


@dataclass(slots=True, eq=False)
class Pod:
    """One pod.

    Attributes:
        namespace, name, uid: its identity.
        containers: in the kubelet's order, those without GPUs included.
        number: counts pods; a later one is newer.
        annotations: as the API server has them now.
        static: only the kubelet knows it, from a file.
        mirror_uid: UID of the static pod's mirror in the API; empty while there is none.
        refused_before: another admission plugin refuses it before any device plugin is asked.
        refused_after: one that is asked after the device plugins refuses it.
        other_fails: the other vendor's plugin fails.
        phase: as the API server has it.
        deleting: its deletion was asked for.
    """

    namespace: str
    name: str
    uid: str
    containers: tuple[Container, ...]
    number: int
    annotations: dict[str, str] = field(default_factory=dict)
    static: bool = False
    mirror_uid: str = ""
    refused_before: bool = False
    refused_after: bool = False
    other_fails: bool = False
    phase: str = "Pending"
    deleting: bool = False
    _invalid: bool | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def id(self) -> PodId:
        """As the API server identifies it."""
        return PodId(*self.key, self.mirror_uid if self.static else self.uid)

    @property
    def as_known(self) -> simulated.Pod:
        """The pod as the kubelet sees it."""
        annotations = {}
        if self.refused_before:
            annotations[simulated.REJECT] = "NodeAffinity"
        if self.refused_after:
            annotations[simulated.REJECT_AFTER] = "NodeAffinity"
        return simulated.Pod(
            self.uid,
            *self.key,
            created=_rfc3339(self.created),
            containers=tuple(each.as_asked for each in self.containers),
            annotations=annotations,
            deleting=self.deleting,
            phase=self.phase,
            static=self.static,
        )

    @property
    def created(self) -> int:
        """Unix time, whole seconds: four pods are made in one."""
        return _BEGAN + self.number // 4

    @property
    def uids(self) -> set[str]:
        """The UIDs by which it may rightly be named."""
        return {self.uid, self.mirror_uid} - {""}

    @property
    def asks(self) -> bool:
        """Whether any container asks for GPUs."""
        return any(each.asks for each in self.containers)

    @property
    def invalid(self) -> bool:
        """Whether no webhook would have let it pass."""
        if self._invalid is None:
            self._invalid = bool(read_pod_demand(self.manifest()["spec"], NAMES)[1])
        return self._invalid

    def container(self, name: str) -> Container:
        """Find a container by name."""
        return next(each for each in self.containers if each.name == name)

    def wished(self, card: str) -> bool:
        """Return whether its author lets it use *card*."""
        use = self.annotations.get(NAMES.use_gpu_uuid)
        nouse = self.annotations.get(NAMES.nouse_gpu_uuid)
        if self.static and not self.mirror_uid:
            return True  # nobody else can know
        return not (use and card not in use.split(",")) and not (nouse and card in nouse.split(","))

    @property
    def wishes(self) -> dict[str, str]:
        """What its author wishes, as annotations."""
        keys = (NAMES.use_gpu_uuid, NAMES.nouse_gpu_uuid, NAMES.gpu_policy)
        return {key: self.annotations[key] for key in keys if key in self.annotations}

    def manifest(self) -> Json:
        """Return the pod as the API server shows it."""
        metadata: Json = {
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.mirror_uid if self.static else self.uid,
            "creationTimestamp": _rfc3339(self.created),
            "annotations": dict(self.annotations),
        }
        if self.static:
            metadata["annotations"] |= {
                "kubernetes.io/config.mirror": self.uid,
                "kubernetes.io/config.hash": self.uid,
            }
        if self.deleting:
            metadata["deletionTimestamp"] = _rfc3339(self.created + 1000)
        init = [_container(each) for each in self.containers if each.kind is not ContainerKind.MAIN]
        main = [_container(each) for each in self.containers if each.kind is ContainerKind.MAIN]
        spec: Json = {"nodeName": NODE, "containers": main}
        if init:
            spec["initContainers"] = init
        return {"metadata": metadata, "spec": spec, "status": {"phase": self.phase}}


class ReadPod(Pod):
    """A pod that is whatever its manifest says."""

    def __init__(self, manifest: Json) -> None:
        """Read it; its annotations are the pod's own from now on."""
        view = read_pod(manifest, NAMES)
        containers = []
        for listed, _, each in walk_containers(manifest["spec"]):
            asked = view.demand.of(each["name"])
            restarts = each.get("restartPolicy") == "Always"
            kind = ContainerKind.SIDECAR if restarts else ContainerKind.INIT
            kind = ContainerKind.MAIN if listed == "containers" else kind
            demand = asked.demand if asked is not None else Demand(0, 0)
            containers.append(Container(each["name"], kind, demand.cores, demand.memory))
        super().__init__(*view.id, tuple(containers), number=next(_numbers))
        self.annotations = manifest["metadata"].get("annotations") or {}
        self.phase = (manifest.get("status") or {}).get("phase", "Pending")
        self._manifest = manifest

    def manifest(self) -> Json:
        """Return the pod as the API server shows it."""
        metadata = {**self._manifest["metadata"], "annotations": dict(self.annotations)}
        spec = {**self._manifest["spec"], "nodeName": NODE}
        return {
            **self._manifest,
            "metadata": metadata,
            "spec": spec,
            "status": {"phase": self.phase},
        }


def _container(each: Container) -> Json:
    limits = {NAMES.core: each.cores, NAMES.memory: each.memory, OTHER_PLUGIN: int(each.other)}
    made: Json = {
        "name": each.name,
        "resources": {"limits": {name: str(count) for name, count in limits.items() if count}},
    }
    if each.kind is ContainerKind.SIDECAR:
        made["restartPolicy"] = "Always"
    return made


def _rfc3339(second: int) -> str:
    minutes, seconds = divmod(second - _BEGAN, 60)
    hours, minutes = divmod(minutes, 60)
    return f"2025-01-15T{8 + hours:02}:{minutes:02}:{seconds:02}Z"


def stamps(number: int, random: Random) -> dict[str, str]:
    """Make what webhook and scheduler write; a few places out of order, as replicas do."""
    at = (_BEGAN * 1000 + number * 250 + random.randrange(2000)) * 1_000_000
    return {
        NAMES.gpu_assigned: "false",
        NAMES.predicate_time: str(at),
        NAMES.admission_order: OrderStamp(at - 1000, "adversary", 0).encode(),
        NAMES.bind_order: OrderStamp(at, "adversary", 0).encode(),
        NAMES.predicate_node: NODE,
    }


def card_of(device_id: str) -> str:
    """Return the card that a device ID names, without looking whether there is one."""
    return device_id.rpartition("::")[0]


# --- short ways to write pods ---------------------------------------------------------------


def asks(
    cores: int,
    memory: int,
    name: str = "main",
    kind: ContainerKind = ContainerKind.MAIN,
    *,
    other: bool = False,
) -> Container:
    """A container that asks for so much."""
    return Container(name, kind, cores, memory, other)


def init(cores: int, memory: int, name: str = "init") -> Container:
    """An ordinary init container."""
    return asks(cores, memory, name, ContainerKind.INIT)


def sidecar(cores: int, memory: int, name: str = "side") -> Container:
    """A restartable init container."""
    return asks(cores, memory, name, ContainerKind.SIDECAR)


def make_pod(name: str, *containers: Container, at: int = 0, **annotations: str) -> Pod:
    """A pod that waits; *at* is its time in the queue, by default after all others.

    *annotations* are by their names in :class:`contract.names.Names`.
    """
    number = next(_numbers)
    told = {getattr(NAMES, key): value for key, value in annotations.items()}
    told.setdefault(NAMES.predicate_time, str((at or _BEGAN + number) * 10**9))
    return Pod("default", name, f"uid-{number:06}", containers, number, told)


def failing(pod: Pod) -> Pod:
    """Have the other vendor's plugin fail for a pod."""
    pod.other_fails = True
    return pod


def static_pod(name: str, *containers: Container) -> Pod:
    """A pod that only the kubelet knows, from a file, for as long as it has no mirror."""
    pod = make_pod(name, *containers)
    pod.static, pod.annotations = True, {}
    return pod
