"""Warnings of environment variables that override those of the node.

The kubelet puts the variables of the pod's author after those of a device plugin. An author
who sets one of these, often by copying an example, overrides the node's value.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from contract.demand import PodDemand
from webhook.admission.verdicts import cut

_LONGEST_NAME = 40

_NODE_SETS = frozenset(
    {
        "NVIDIA_VISIBLE_DEVICES",
        "CUDA_DEVICE_SM_LIMIT",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE",
        "GPU_CORE_UTILIZATION_POLICY",
    }
)
_NODE_SETS_PREFIX = "CUDA_DEVICE_MEMORY_LIMIT"  # one for each card


def about_environment(spec: object, demand: PodDemand) -> Iterator[str]:
    """Warn of variables that override those of the node.

    Args:
        spec: of a pod or of a template, possibly hostile.
        demand: the requests of its containers.
    """
    if not isinstance(spec, dict):
        return
    asking = {each.name for each in demand.containers}
    for field in ("initContainers", "containers"):
        for container in _mappings(spec.get(field)):
            name = container.get("name")
            if not isinstance(name, str) or name not in asking:
                continue
            for entry in _mappings(container.get("env")):
                variable = entry.get("name")
                if isinstance(variable, str) and (
                    variable in _NODE_SETS or variable.startswith(_NODE_SETS_PREFIX)
                ):
                    yield (
                        f"container {cut(name, _LONGEST_NAME)}: env {cut(variable, _LONGEST_NAME)} "
                        "undoes what the node sets"
                    )


def _mappings(listed: object) -> Sequence[dict[str, Any]]:
    if not isinstance(listed, list):
        return ()
    return [each for each in listed if isinstance(each, dict)]
