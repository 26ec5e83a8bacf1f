"""Names that pods for other systems have: resources, and annotations with requests or wishes.

The only list of them. The webhook translates them or says what to write instead, as the view does;
``docs/migrate.md`` explains what differs. Tests compare it with the readers of
``webhook/admission/dialects`` and with the conditions in ``deploy/``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from contract.quantity import parse_quantity
from contract.resource import Resource

NVIDIA: Final = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
"""Resources of NVIDIA's device plugin; the second one if it shares cards by time-slicing. Many
clusters have this plugin on some nodes and ours on others."""

MIG_PREFIX: Final = "nvidia.com/mig-"
"""Beginning of the resources of NVIDIA's device plugin for parts of cards in MIG mode."""

NVIDIA_DRIVER: Final = "gpu.nvidia.com"
"""NVIDIA's driver of Dynamic Resource Allocation that offers cards, and MIG instances."""


class Dialect(StrEnum):
    """A system whose pods the webhook may accept, by its name on the command line."""

    HAMI = "hami"
    VOLCANO = "volcano"
    VGPU_MANAGER = "vgpu-manager"
    GPUSHARE = "gpushare"
    GPUSHARE_MIB = "gpushare-mib"
    ELASTIC_GPU = "elastic-gpu"
    KAI = "kai"
    NVIDIA = "nvidia"

    __hash__ = str.__hash__  # like equality


@dataclass(frozen=True, slots=True)
class SystemNames:
    """Names of one system, as its own documents write them.

    Attributes:
        title: the system's name in documents.
        resources: in limits, each with the one of ours that replaces it.
        prefix: beginning of more resources; empty if there are none.
        requests: pod annotations that request a share, each with our resource; the pod has no
            resource.
        claims: beginning of more annotations that request cards; empty if there are none.
        wishes: pod annotations, each with the last part of the wish that replaces it.
    """

    title: str
    resources: Mapping[str, Resource] = field(default_factory=dict)
    prefix: str = ""
    requests: Mapping[str, Resource] = field(default_factory=dict)
    claims: str = ""
    wishes: Mapping[str, str] = field(default_factory=dict)


_GPUSHARE = SystemNames(
    "gpushare",  # and Alibaba Cloud's later names
    resources={
        "aliyun.com/gpu-count": Resource.CORE,
        "aliyun.com/gpu-core.percentage": Resource.CORE,
        "aliyun.com/gpu-mem": Resource.MEMORY,
    },
)
_HAMI_TYPES = {
    "nvidia.com/use-gputype": "use-gpu-type",
    "nvidia.com/nouse-gputype": "nouse-gpu-type",
}

SYSTEMS: Final[Mapping[Dialect, SystemNames]] = {
    Dialect.HAMI: SystemNames(
        "HAMi",
        resources={
            NVIDIA[0]: Resource.CORE,
            "nvidia.com/gpucores": Resource.CORE,
            "nvidia.com/gpumem": Resource.MEMORY,
            "nvidia.com/gpumem-percentage": Resource.MEMORY,
        },
        wishes={
            **_HAMI_TYPES,
            "nvidia.com/use-gpuuuid": "use-gpu-uuid",
            "nvidia.com/nouse-gpuuuid": "nouse-gpu-uuid",
            "hami.io/gpu-scheduler-policy": "gpu-policy",
            "hami.io/node-scheduler-policy": "gpu-node-policy",
        },
    ),
    Dialect.VOLCANO: SystemNames(
        "Volcano",
        resources={
            "volcano.sh/gpu-number": Resource.CORE,
            "volcano.sh/gpu-memory": Resource.MEMORY,
            "volcano.sh/vgpu-number": Resource.CORE,
            "volcano.sh/vgpu-cores": Resource.CORE,
            "volcano.sh/vgpu-memory": Resource.MEMORY,
            "volcano.sh/vgpu-memory-percentage": Resource.MEMORY,
        },
        wishes={
            **_HAMI_TYPES,
            "volcano.sh/vgpu-use-gpuuuid": "use-gpu-uuid",
            "volcano.sh/vgpu-nouse-gpuuuid": "nouse-gpu-uuid",
        },
    ),
    Dialect.VGPU_MANAGER: SystemNames(
        "vgpu-manager",
        resources={
            "nvidia.com/vgpu-number": Resource.CORE,
            "nvidia.com/vgpu-cores": Resource.CORE,
            "nvidia.com/vgpu-memory": Resource.MEMORY,
        },
        wishes={
            "nvidia.com/include-gpu-type": "use-gpu-type",
            "nvidia.com/exclude-gpu-type": "nouse-gpu-type",
            "nvidia.com/include-gpu-uuid": "use-gpu-uuid",
            "nvidia.com/exclude-gpu-uuid": "nouse-gpu-uuid",
            "nvidia.com/device-scheduler-policy": "gpu-policy",
            "nvidia.com/node-scheduler-policy": "gpu-node-policy",
            "nvidia.com/device-topology-mode": "gpu-link",
        },
    ),
    Dialect.GPUSHARE: _GPUSHARE,
    Dialect.GPUSHARE_MIB: _GPUSHARE,
    Dialect.ELASTIC_GPU: SystemNames(
        "elastic-gpu",
        resources={  # its README has the first domain, its code the second
            "elasticgpu.io/gpu-core": Resource.CORE,
            "elasticgpu.io/gpu-memory": Resource.MEMORY,
            "elasticgpu.com/gpu-core": Resource.CORE,
            "elasticgpu.com/gpu-memory": Resource.MEMORY,
        },
        claims="egpuc.elasticgpu.io/",
    ),
    Dialect.KAI: SystemNames(
        "KAI", requests={"gpu-fraction": Resource.CORE, "gpu-memory": Resource.MEMORY}
    ),
    Dialect.NVIDIA: SystemNames(
        "NVIDIA", resources=dict.fromkeys(NVIDIA, Resource.CORE), prefix=MIG_PREFIX
    ),
}
"""The systems whose pods can be translated."""

_OTHERS: Final = (
    SystemNames(
        "Koordinator",
        resources={
            "koordinator.sh/gpu-core": Resource.CORE,
            "koordinator.sh/gpu-memory": Resource.MEMORY,
            "koordinator.sh/gpu-memory-ratio": Resource.MEMORY,
        },
    ),
    SystemNames(
        "Tencent Cloud's qGPU",
        resources={
            "tke.cloud.tencent.com/qgpu-core": Resource.CORE,
            "tke.cloud.tencent.com/qgpu-memory": Resource.MEMORY,
        },
    ),
)
"""Systems whose names are known, and not translated."""

_ALL: Final = (*SYSTEMS.values(), *_OTHERS)

RESOURCES: Final[Mapping[str, Resource]] = {
    name: resource for each in _ALL for name, resource in each.resources.items()
}
"""Resources of other systems, each with the one of ours that replaces it."""

PREFIXES: Final = tuple(each.prefix for each in _ALL if each.prefix)
"""Beginnings of more resources of other systems."""

REQUESTS: Final[Mapping[str, Resource]] = {
    name: resource for each in _ALL for name, resource in each.requests.items()
}
"""Pod annotations by which users of other systems request a share; the pod has no resource."""

WISHES: Final[Mapping[str, str]] = {
    name: wish for each in _ALL for name, wish in each.wishes.items()
}
"""Pod annotations of other systems, each with the last part of the wish that replaces it."""


class DriverDevices(NamedTuple):
    """How many devices NVIDIA's driver of Dynamic Resource Allocation offers on a node.

    Attributes:
        cards: whole cards, and devices of another type than MIG instances.
        instances: MIG instances.
    """

    cards: int = 0
    instances: int = 0

    def offered(self, *, mig: bool) -> dict[str, int]:
        """Return their number by the driver's name; with *mig* that of MIG instances, too."""
        count = self.cards + self.instances * mig
        return {NVIDIA_DRIVER: count} if count else {}


def count_offered(allocatable: Mapping[str, Any], *, mig: bool) -> dict[str, int]:
    """Return how many devices NVIDIA's device plugin offers on a node, by resource.

    *allocatable* is of the node's status. With *mig* MIG instances count, too.
    """
    names = [name for name in allocatable if mig and name.startswith(MIG_PREFIX)]
    counts = {
        name: int(parse_quantity(allocatable.get(name, "0")) or 0) for name in (*NVIDIA, *names)
    }
    return {name: count for name, count in counts.items() if count > 0}


def count_devices(slices: Iterable[Mapping[str, Any]]) -> Mapping[str, DriverDevices]:
    """Count the devices in ResourceSlices of NVIDIA's driver, by node."""
    found = dict[str, DriverDevices]()
    for spec in (each["spec"] for each in slices):
        if spec.get("driver") != NVIDIA_DRIVER:
            continue
        node, devices = spec.get("nodeName") or "", spec.get("devices") or ()
        instances = sum(map(_is_instance, devices))
        before = found.get(node, DriverDevices())
        found[node] = DriverDevices(
            before.cards + len(devices) - instances, before.instances + instances
        )
    return found


def _is_instance(device: Mapping[str, Any]) -> bool:
    """Return whether a device of NVIDIA's driver is a MIG instance."""
    basic = device.get("basic") or {}  # in resource.k8s.io/v1beta1
    attributes = device.get("attributes") or basic.get("attributes") or {}
    return (attributes.get("type") or {}).get("string") == "mig"
