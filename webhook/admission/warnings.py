"""Warnings about requests that are allowed but probably not intended."""

from collections.abc import Iterator, Mapping
from typing import Any

from contract.demand import CORES_PER_CARD, ContainerDemand, PodDemand
from contract.names import Names
from contract.requests import walk_containers
from contract.wishes import read_wishes
from webhook.admission.decision import short

_SET_BY_NODE = frozenset(
    {
        "NVIDIA_VISIBLE_DEVICES",
        "CUDA_DEVICE_SM_LIMIT",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE",
        "GPU_CORE_UTILIZATION_POLICY",
    }
)
_SET_BY_NODE_PREFIX = "CUDA_DEVICE_MEMORY_LIMIT"  # one variable for each card
_PREFIXES = ("NVIDIA_VISIBLE_", "CUDA_DEVICE_", "GPU_CORE_")  # a fast first check of all these


def advise(
    demand: PodDemand,
    annotations: Mapping[str, Any],
    *,
    names: Names,
    largest_card: int,
    path: str = "",
) -> Iterator[str]:
    """Warn of requests in a pod, or a pod template, that are probably not intended.

    Args:
        demand: the requests of its containers.
        annotations: its annotations.
        names: resources and annotations.
        largest_card: memory blocks of the largest card; 0 if unknown.
        path: prefix of ``metadata`` in paths.
    """
    for container in demand.containers:
        for line in _about_memory(container, largest_card):
            yield f"container {short(container.name)}: {line}"
    yield from _about_core_limit(demand, annotations, names)
    for key in _gpu_manager_annotations(names):
        if key in annotations:
            yield f"{path}metadata.annotations[{key}]: deprecated and ignored: use limits"


def _about_memory(container: ContainerDemand, largest_card: int) -> Iterator[str]:
    blocks = container.demand.memory
    if container.demand.is_share and 0 < largest_card < blocks:  # so they are several
        yield f"{blocks} memory blocks, but the largest known card has {largest_card}"


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
            limit = wishes.core_limit  # so there are several cores
            yield f"container {name}: {cores} cores, but vcuda-core-limit allows only {limit}"


def _gpu_manager_annotations(names: Names) -> tuple[str, ...]:
    # gpu-manager read requests from these annotations, we read them from limits.
    return (names.core, f"{names.domain}/vcuda-device", names.memory)


def about_environment(spec: object, demand: PodDemand) -> Iterator[str]:
    """Warn of environment variables that override those set by the node.

    The kubelet puts the variables of the pod spec after those of a device plugin. A pod that sets
    one of these, often copied from an example, overrides the node's value.

    Args:
        spec: of a pod or of a template, possibly hostile.
        demand: the requests of its containers.
    """
    with_gpus = {each.name for each in demand.containers}
    for _, _, container in walk_containers(spec):
        name = container.get("name")
        if isinstance(name, str) and name in with_gpus:
            for variable in _variables(container.get("env")):
                yield f"container {short(name)}: env {short(variable)} overrides the node's value"


def _variables(env: object) -> list[str]:
    """Return the names in *env* that the node sets too."""
    listed = env if isinstance(env, list) else []
    names = [each.get("name") for each in listed if isinstance(each, dict)]
    return [
        each
        for each in names
        if isinstance(each, str)
        and each.startswith(_PREFIXES)
        and (each in _SET_BY_NODE or each.startswith(_SET_BY_NODE_PREFIX))
    ]
