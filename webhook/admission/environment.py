"""Variables that a container sets itself and the node sets, too: the container's own win.

The kubelet puts the variables of the pod's author after those of a device plugin. So an author
who sets one of these, often by copying an example, undoes what the node says.
"""

from collections.abc import Iterator, Mapping
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
_NODE_SETS_BEGINNING = "CUDA_DEVICE_MEMORY_LIMIT"  # one for each card


def about_environment(spec: object, demand: PodDemand) -> Iterator[str]:
    """Warn of variables that undo what the node sets.

    Args:
        spec: of a pod or of a template, possibly hostile.
        demand: what its containers ask for.
    """
    if not isinstance(spec, Mapping):
        return
    asking = {each.name for each in demand.containers}
    for field in ("initContainers", "containers"):
        for container in _mappings(spec.get(field)):
            name = container.get("name")
            if not isinstance(name, str) or name not in asking:
                continue
            for entry in _mappings(container.get("env")):
                variable = entry.get("name")
                if isinstance(variable, str) and _is_set_by_node(variable):
                    yield (
                        f"container {cut(name, _LONGEST_NAME)}: env {cut(variable, _LONGEST_NAME)} "
                        "undoes what the node sets"
                    )


def _is_set_by_node(variable: str) -> bool:
    return variable in _NODE_SETS or variable.startswith(_NODE_SETS_BEGINNING)


def _mappings(listed: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(listed, list):
        yield from (each for each in listed if isinstance(each, Mapping))
