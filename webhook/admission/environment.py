"""Warnings of environment variables that override those of the node.

The kubelet puts the variables of the pod's author after those of a device plugin. An author
who sets one of these, often by copying an example, overrides the node's value.
"""

from collections.abc import Iterator
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
_BEGINNINGS = ("NVIDIA_VISIBLE_", "CUDA_DEVICE_", "GPU_CORE_")  # of all these: nearly none has one


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
            for variable in _variables(container.get("env")):
                yield (
                    f"container {cut(name, _LONGEST_NAME)}: env {cut(variable, _LONGEST_NAME)} "
                    "undoes what the node sets"
                )


def _variables(env: object) -> list[str]:
    """Return the names in *env* that the node sets, too."""
    listed = env if isinstance(env, list) else []
    names = [each.get("name") for each in listed if isinstance(each, dict)]
    return [
        each
        for each in names
        if isinstance(each, str)
        and each.startswith(_BEGINNINGS)
        and (each in _NODE_SETS or each.startswith(_NODE_SETS_PREFIX))
    ]


def _mappings(listed: object) -> Iterator[dict[str, Any]]:
    if isinstance(listed, list):
        for each in listed:
            if isinstance(each, dict):
                yield each
