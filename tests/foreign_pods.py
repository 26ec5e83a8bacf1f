"""Requests written for other systems, and their translations: mostly small shares."""

from dataclasses import dataclass, field
from typing import Any

from contract.demand import Demand

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Foreign:
    """The request of one container.

    Attributes:
        system: the system of its resource names.
        resources: in limits.
        demand: its translation, with blocks of 256 MiB.
        annotations: of the pod.
    """

    system: str
    resources: Json
    demand: Demand
    annotations: Json = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A name for pods and tests."""
        kind = f"{self.demand.cards}-cards" if self.demand.is_share else "whole"
        return f"{self.system}-{kind}"


FOREIGN = (
    Foreign(
        "hami",
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1024", "nvidia.com/gpucores": "10"},
        Demand(10, 4),
    ),
    Foreign(
        "volcano",
        {
            "volcano.sh/vgpu-number": "1",
            "volcano.sh/vgpu-memory": "1000",
            "volcano.sh/vgpu-cores": "5",
        },
        Demand(5, 4),
    ),
    Foreign(
        "vgpu-manager",
        {
            "nvidia.com/vgpu-number": "1",
            "nvidia.com/vgpu-memory": "1024",
            "nvidia.com/vgpu-cores": "5",
        },
        Demand(5, 4),
    ),
    Foreign(
        "vgpu-manager",
        {
            "nvidia.com/vgpu-number": "2",
            "nvidia.com/vgpu-memory": "1024",
            "nvidia.com/vgpu-cores": "5",
        },
        Demand(10, 8, 2),
    ),
    Foreign("gpushare", {"aliyun.com/gpu-mem": "1"}, Demand(1, 4)),
    Foreign(
        "elastic-gpu",
        {"elasticgpu.io/gpu-core": "5", "elasticgpu.io/gpu-memory": "1024"},
        Demand(5, 4),
    ),
    Foreign("kai", {}, Demand(1, 4), {"gpu-memory": "1024"}),
    Foreign("kai", {}, Demand(2, 8, 2), {"gpu-memory": "1024", "gpu-fraction-num-devices": "2"}),
    # HAMi has the name of NVIDIA's plugin, too, and is read first if both are accepted.
    Foreign("hami", {"nvidia.com/gpu": "1"}, Demand(100, 0)),
)
