"""Warnings about requests that are allowed but hardly meant."""

from collections.abc import Iterator, Mapping
from typing import Any

from contract.demand import CORES_PER_CARD, ContainerDemand, PodDemand
from contract.names import Names
from contract.requests import walk_containers
from contract.wishes import read_wishes
from webhook.admission.decision import short

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


def advise(
    demand: PodDemand,
    annotations: Mapping[str, Any],
    *,
    names: Names,
    largest_card: int,
    path: str = "",
) -> Iterator[str]:
    """Warn of requests in a pod, or a pod template, that are hardly meant.

    Args:
        demand: the requests of its containers.
        annotations: its annotations.
        names: resources and annotations.
        largest_card: memory blocks of the largest card; 0 when unknown.
        path: prefix of ``metadata`` in paths.
    """
    for container in demand.containers:
        for line in _about_memory(container, largest_card):
            yield f"container {short(container.name)}: {line}"
    yield from _about_core_limit(demand, annotations, names)
    for key in _gpu_manager_annotations(names):
        if key in annotations:
            yield f"{path}metadata.annotations[{key}]: deprecated, not read: ask in limits"


def _about_memory(container: ContainerDemand, largest_card: int) -> Iterator[str]:
    blocks = container.demand.memory
    if container.demand.is_share and 0 < largest_card < blocks:
        yield f"{blocks} memory blocks, the largest card known has {largest_card}"


def _about_core_limit(
    demand: PodDemand, annotations: Mapping[str, Any], names: Names
) -> Iterator[str]:
    wishes, _ = read_wishes(annotations, names)
    if wishes.core_limit is None:
        return
    for container in demand.containers:
        cores = container.demand.cores
        if wishes.core_limit < cores < CORES_PER_CARD:
            name = short(container.name)
            yield f"container {name}: {cores} cores, vcuda-core-limit leaves it {wishes.core_limit}"


def _gpu_manager_annotations(names: Names) -> tuple[str, ...]:
    # gpu-manager read requests from annotations; here they are in the limits of containers.
    return (names.core, f"{names.domain}/vcuda-device", names.memory)


def about_environment(spec: object, demand: PodDemand) -> Iterator[str]:
    """Warn of variables that override those of the node.

    The kubelet puts the variables of the pod's author after those of a device plugin. An author
    who sets one of these, often by copying an example, overrides the node's value.

    Args:
        spec: of a pod or of a template, possibly hostile.
        demand: the requests of its containers.
    """
    ours = {each.name for each in demand.containers}
    for _, _, container in walk_containers(spec):
        name = container.get("name")
        if isinstance(name, str) and name in ours:
            for variable in _variables(container.get("env")):
                yield f"container {short(name)}: env {short(variable)} undoes what the node sets"


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
