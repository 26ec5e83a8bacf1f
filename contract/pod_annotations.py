"""A pod's cards by its annotations: those the agent allocated, and those a scheduler chose.

Policies let only the agent and schedulers write them, but a manifest may contain those of another
pod, from before the webhook was installed. Values that contradict the pod's requests are dropped,
and their errors are appended to *faults*, for the log.
"""

import re
from collections.abc import Iterable, Mapping

from contract.allocation import Allocation, decode_allocations
from contract.demand import Demand, PodDemand
from contract.errors import ContractError, quote
from contract.names import Names

_INDICES = re.compile(r"[0-9]{1,9}(?:,[0-9]{1,9}){0,63}\Z", re.ASCII)


def read_allocations(
    annotations: Mapping[str, str], names: Names, faults: list[str]
) -> Mapping[str, Allocation]:
    """Read the allocations of a pod, by container name; empty if they do not parse."""
    text = annotations.get(names.gpu_allocation)
    if text is None:
        return {}
    try:
        return decode_allocations(text)
    except ContractError as error:
        faults.append(str(error))
        return {}


def valid_allocations(
    written: Mapping[str, Allocation], demand: PodDemand, names: Names, faults: list[str]
) -> Mapping[str, Allocation]:
    """Keep the allocations that match the requests of their containers."""
    valid = {}
    for name, allocation in written.items():
        container = demand.of(name)
        if container is not None and _matches(allocation, container.demand):
            valid[name] = allocation
        else:
            faults.append(
                f"metadata.annotations[{names.gpu_allocation}]: Invalid value: {quote(name)}: "
                "must match the request of the container with this name"
            )
    return valid


def read_choice(
    annotations: Mapping[str, str],
    demand: PodDemand,
    written: Mapping[str, Allocation],
    names: Names,
    faults: list[str],
) -> Mapping[str, tuple[int, ...]]:
    """Read the cards that a scheduler chose for containers without an allocation.

    An invalid allocation counts as one here: its writer also wrote the chosen cards beside it, so
    these are not to be trusted either.

    Returns:
        Container name -> card indices.
    """
    chosen: dict[str, tuple[int, ...]] = {}
    for container in demand.containers:
        if container.name in written:
            continue
        key = names.predicate_gpu_idx(container.ordinal)
        text = annotations.get(key)
        if text is None:
            continue
        if _INDICES.match(text):
            chosen[container.name] = tuple(dict.fromkeys(map(int, text.split(","))))
        else:
            faults.append(
                f"metadata.annotations[{key}]: Invalid value: {quote(text)}: must be card "
                "indices, comma-separated, such as 0,1"
            )
    return chosen


def write_choice(indices: Iterable[int]) -> str:
    """Write the cards of one container as :func:`read_choice` reads them."""
    return ",".join(map(str, indices))


def _matches(allocation: Allocation, demand: Demand) -> bool:
    """Return whether a container with this demand can have this allocation."""
    if (allocation.cores, allocation.memory_blocks) != (demand.cores, demand.memory):
        return False
    cards = len(set(allocation.cards))
    return cards == len(allocation.cards) and cards == (demand.cards if demand.cores else 1)
