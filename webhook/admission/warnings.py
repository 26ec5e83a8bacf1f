"""Warnings about requests that are allowed but hardly meant."""

from collections.abc import Iterator, Mapping
from typing import Any

from contract.demand import CORES_PER_CARD, ContainerDemand, PodDemand
from contract.names import Names
from contract.wishes import read_wishes
from webhook.admission.verdicts import cut

_LONGEST_NAME = 40


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
            yield f"container {cut(container.name, _LONGEST_NAME)}: {line}"
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
            name = cut(container.name, _LONGEST_NAME)
            yield f"container {name}: {cores} cores, vcuda-core-limit leaves it {wishes.core_limit}"


def _gpu_manager_annotations(names: Names) -> tuple[str, ...]:
    # gpu-manager read requests from annotations; here they are in the limits of containers.
    return (names.core, f"{names.domain}/vcuda-device", names.memory)
