"""Pods with their true state, and their manifests from the API server."""

import itertools
from collections import Counter
from collections.abc import Iterable
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

    *other*: it also requests a device of another vendor's plugin; *split* is the number of cards
    over which its share is divided.
    """

    name: str
    kind: ContainerKind
    cores: int = 0
    memory: int = 0
    other: bool = False
    split: int = 1

    def count(self, resource: Resource) -> int:
        return self.cores if resource is Resource.CORE else self.memory

    @property
    def as_asked(self) -> simulated.Container:
        counts = {Resource.CORE: self.cores, Resource.MEMORY: self.memory, OTHER_PLUGIN: self.other}
        limits = {name: int(count) for name, count in counts.items() if count}
        return simulated.Container(self.name, self.kind, limits)

    @property
    def demand(self) -> Demand:
        return Demand(self.cores, self.memory, self.split)

    def is_divided(self, resource: Resource, device_ids: Iterable[str]) -> bool:
        """Return whether device IDs are the requested part of each of the requested cards."""
        demand = self.demand
        if resource is Resource.MEMORY and not demand.is_share:
            return True
        part = self.count(resource) // max(demand.cards, 1)
        parts = Counter(map(card_of, device_ids)).values()
        return [*parts] == [part] * demand.cards

    @property
    def hands_on(self) -> bool:
        """Whether later containers of its pod can reuse its devices (K7)."""
        return self.kind is ContainerKind.INIT

    @property
    def requests_gpus(self) -> bool:
        return bool(self.cores or self.memory)


@dataclass(slots=True, eq=False)
class Pod:
    """One pod.

    Attributes:
        containers: in the kubelet's order, with those without GPUs.
        number: a running number; newer pods have higher ones.
        annotations, phase: those in the API server now.
        static: whether it is a static pod, which the kubelet reads from a file.
        mirror_uid: UID of the static pod's mirror in the API; empty if there is none.
        refused_before, refused_after: whether the kubelet rejects it, around its calls to plugins.
        other_fails: whether the other vendor's plugin fails.
        deleting: whether it has a ``deletionTimestamp``.
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
        return self.namespace, self.name

    @property
    def id(self) -> PodId:
        return PodId(*self.key, self.mirror_uid if self.static else self.uid)

    @property
    def as_known(self) -> simulated.Pod:
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
        """Creation time in whole Unix seconds; four pods share each second."""
        return _BEGAN + self.number // 4

    @property
    def uids(self) -> set[str]:
        """Its UID and its mirror's UID; both name this pod correctly."""
        return {self.uid, self.mirror_uid} - {""}

    @property
    def requests_gpus(self) -> bool:
        return any(each.requests_gpus for each in self.containers)

    @property
    def invalid(self) -> bool:
        """Whether the webhook would deny it."""
        if self._invalid is None:
            self._invalid = bool(read_pod_demand(self.manifest(), NAMES)[1])
        return self._invalid

    def container(self, name: str) -> Container:
        return next(each for each in self.containers if each.name == name)

    def wished(self, card: str) -> bool:
        """Return whether its annotations permit *card*."""
        use = self.annotations.get(NAMES.use_gpu_uuid)
        nouse = self.annotations.get(NAMES.nouse_gpu_uuid)
        if self.static and not self.mirror_uid:
            return True  # the agent cannot know its annotations
        return not (use and card not in use.split(",")) and not (nouse and card in nouse.split(","))

    @property
    def wishes(self) -> dict[str, str]:
        keys = (NAMES.use_gpu_uuid, NAMES.nouse_gpu_uuid, NAMES.gpu_policy)
        return {key: self.annotations[key] for key in keys if key in self.annotations}

    def manifest(self) -> Json:
        metadata: Json = {
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.mirror_uid if self.static else self.uid,
            "creationTimestamp": _rfc3339(self.created),
            "annotations": {
                **{
                    NAMES.gpu_cards_of(c.name): str(c.split) for c in self.containers if c.split > 1
                },
                **self.annotations,
            },
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
    """A pod that is read from a manifest."""

    def __init__(self, manifest: Json) -> None:
        """Read *manifest*; the pod shares its dictionary of annotations."""
        view = read_pod(manifest, NAMES)
        containers = []
        for listed, _, each in walk_containers(manifest["spec"]):
            found = view.demand.of(each["name"])
            restarts = each.get("restartPolicy") == "Always"
            kind = ContainerKind.SIDECAR if restarts else ContainerKind.INIT
            kind = ContainerKind.MAIN if listed == "containers" else kind
            demand = found.demand if found is not None else Demand(0, 0)
            containers.append(
                Container(each["name"], kind, demand.cores, demand.memory, split=demand.split)
            )
        super().__init__(*view.id, tuple(containers), number=next(_numbers))
        self.annotations = manifest["metadata"].get("annotations") or {}
        self.phase = (manifest.get("status") or {}).get("phase", "Pending")
        self._manifest = manifest

    def manifest(self) -> Json:
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
    """Return the stamps of webhook and scheduler; a bit out of order, as with several replicas."""
    at = (_BEGAN * 1000 + number * 250 + random.randrange(2000)) * 1_000_000
    return {
        NAMES.gpu_assigned: "false",
        NAMES.predicate_time: str(at),
        NAMES.admission_order: OrderStamp(at - 1000, "adversary", 0).encode(),
        NAMES.bind_order: OrderStamp(at, "adversary", 0).encode(),
        NAMES.predicate_node: NODE,
    }


def card_of(device_id: str) -> str:
    """Return the card in a device ID, without a check that the card exists."""
    return device_id.rpartition("::")[0]


# --- short ways to write pods ---------------------------------------------------------------


def gpu(
    cores: int,
    memory: int,
    name: str = "main",
    kind: ContainerKind = ContainerKind.MAIN,
    *,
    other: bool = False,
    split: int = 1,
) -> Container:
    return Container(name, kind, cores, memory, other, split)


def init(cores: int, memory: int, name: str = "init", *, split: int = 1) -> Container:
    return gpu(cores, memory, name, ContainerKind.INIT, split=split)


def sidecar(cores: int, memory: int, name: str = "side", *, split: int = 1) -> Container:
    return gpu(cores, memory, name, ContainerKind.SIDECAR, split=split)


def make_pod(name: str, *containers: Container, at: int = 0, **annotations: str) -> Pod:
    """Return a pending pod; *at* is its predicate time, *annotations* have names of ``Names``."""
    number = next(_numbers)
    by_key = {getattr(NAMES, key): value for key, value in annotations.items()}
    by_key.setdefault(NAMES.predicate_time, str((at or _BEGAN + number) * 10**9))
    return Pod("default", name, f"uid-{number:06}", containers, number, by_key)


def failing(pod: Pod) -> Pod:
    """Let the other vendor's plugin fail for a pod."""
    pod.other_fails = True
    return pod


def static_pod(name: str, *containers: Container) -> Pod:
    """Return a static pod without a mirror, which only the kubelet knows."""
    pod = make_pod(name, *containers)
    pod.static, pod.annotations = True, {}
    return pod
