"""The parts of a pod that the kubelet needs, parsed once when it arrives."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from contract.demand import ContainerKind
from contract.quantity import parse_quantity
from simulator.client import Json
from simulator.kubelet.errors import InvalidPod

MIRROR = "kubernetes.io/config.mirror"
CONFIG_HASH = "kubernetes.io/config.hash"
"""Marks the mirror pod of a static pod in the API."""

REJECT = "simulator/reject"
"""Annotation: reject the pod with this reason before any plugin is called."""
REJECT_AFTER = "simulator/reject-after"
"""Annotation: reject the pod with this reason after the plugins were called (when a real kubelet
checks its predicates, node affinity among them)."""
FAIL_AFTER = "simulator/fail-after"
"""Annotation: another device plugin fails after this many successful Allocates of the pod."""
RUN_SECONDS = "simulator/run-seconds"
"""Annotation: the pod's containers finish after this time."""

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod.

    Attributes:
        kind: init, sidecar (a restartable init container) or main.
        limits: extended resources only, resource -> count.
    """

    name: str
    kind: ContainerKind
    limits: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Pod:
    """The parts of a pod that the kubelet reads.

    Attributes:
        uid: differs between two pods of one name.
        created: ``creationTimestamp``, whole seconds; batches are sorted by it.
        containers: in the order of admission: the init list, then the containers.
        phase: as the API server showed it.
        mirror: whether this is the mirror pod of a static pod.
    """

    uid: str
    namespace: str
    name: str
    created: str
    containers: tuple[Container, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False
    phase: str = "Pending"
    mirror: bool = False
    static: bool = False
    manifest: Json = field(default_factory=dict, compare=False, repr=False)

    @property
    def full_name(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """The pod's path in the API."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    def container(self, name: str) -> Container:
        """Find a container by name.

        Raises:
            KeyError: there is none.
        """
        for each in self.containers:
            if each.name == name:
                return each
        raise KeyError(name)

    def seconds(self, annotation: str) -> float | None:
        """Read an annotation in seconds; return ``None`` if it is absent or not a number."""
        try:
            return float(self.annotations[annotation])
        except (KeyError, ValueError):
            return None


def parse_pod(obj: Json, *, static: bool = False) -> Pod:
    """Read a pod as the API server sends it.

    Raises:
        InvalidPod: naming the field, the rule and the value.
    """
    metadata = _mapping(obj, "metadata", "")
    spec = _mapping(obj, "spec", "")
    annotations = {
        str(key): str(value) for key, value in (metadata.get("annotations") or {}).items()
    }
    return Pod(
        uid=_text(metadata, "uid", "metadata"),
        namespace=str(metadata.get("namespace") or "default"),
        name=_text(metadata, "name", "metadata"),
        created=str(metadata.get("creationTimestamp") or ""),
        containers=tuple(_containers(spec)),
        annotations=annotations,
        node_selector={str(k): str(v) for k, v in (spec.get("nodeSelector") or {}).items()},
        deleting=metadata.get("deletionTimestamp") is not None,
        phase=str((obj.get("status") or {}).get("phase") or "Pending"),
        mirror=MIRROR in annotations and not static,
        static=static,
        manifest=obj,
    )


def is_extended(resource: str) -> bool:
    """Return whether *resource* is extended: not cpu, memory or another name of Kubernetes."""
    domain, slash, _ = resource.partition("/")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


def requests_of(pod: Pod) -> dict[str, int]:
    """Sum up a pod's requests as the scheduler does: the larger of start-up and running.

    Sidecars keep running, so the request of an init container is added to those of the sidecars
    started before it.
    """
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.containers:
        for resource, count in container.limits.items():
            if container.kind is ContainerKind.INIT:
                peak[resource] = max(peak.get(resource, 0), running.get(resource, 0) + count)
            else:
                running[resource] = running.get(resource, 0) + count
    return {
        resource: max(running.get(resource, 0), peak.get(resource, 0))
        for resource in {**running, **peak}
    }


def _containers(spec: Mapping[str, Any]) -> Iterator[Container]:
    for listing in ("initContainers", "containers"):
        listed = spec.get(listing) or []
        if not isinstance(listed, list):
            raise InvalidPod(f"spec.{listing}: must be a list, not {type(listed).__name__}")
        for index, each in enumerate(listed):
            where = f"spec.{listing}[{index}]"
            if not isinstance(each, dict):
                raise InvalidPod(f"{where}: must be an object, not {type(each).__name__}")
            kind = ContainerKind.MAIN
            if listing == "initContainers":
                restartable = each.get("restartPolicy") == "Always"
                kind = ContainerKind.SIDECAR if restartable else ContainerKind.INIT
            limits = (each.get("resources") or {}).get("limits") or {}
            yield Container(_text(each, "name", where), kind, dict(_limits(limits, where)))


def _limits(limits: Mapping[str, Any], where: str) -> Iterator[tuple[str, int]]:
    for resource, value in limits.items():
        if not is_extended(resource):
            continue
        count = parse_quantity(value)
        if count is None:
            raise InvalidPod(
                f"{where}.resources.limits[{resource}]: must be a quantity, not {value!r}"
            )
        yield resource, ceil(count)


def _mapping(obj: object, key: str, where: str) -> Mapping[str, Any]:
    value = obj.get(key) if isinstance(obj, dict) else None
    if not isinstance(value, dict):
        raise InvalidPod(f"{where}{key}: must be an object, not {type(value).__name__}")
    return value


def _text(obj: Mapping[str, Any], key: str, where: str) -> str:
    value = obj.get(key)
    if not isinstance(value, str) or not value:
        raise InvalidPod(f"{where}.{key}: must be text, not {value!r}")
    return value
