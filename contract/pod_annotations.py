"""What annotations say of a pod's cards: what the agent gave, and what a scheduler chose.

The API server lets only few write them; a manifest may bring them from a running pod all the
same, or from before the webhook. What contradicts the pod's own requests is dropped and told.
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
    """Read the allocations of a pod, by container name; nothing where they do not parse.

    Args:
        annotations: of the pod.
        names: the annotations' names.
        faults: takes what is wrong, for the log.
    """
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
    """Keep the allocations of containers that ask for just that.

    Args:
        written: as :func:`read_allocations` returns them.
        demand: the pod's.
        names: the annotations' names.
        faults: takes what is wrong, for the log.
    """
    valid = {}
    for name, allocation in written.items():
        container = demand.of(name)
        if container is not None and _is_of(allocation, container.demand):
            valid[name] = allocation
        else:
            faults.append(
                f"metadata.annotations[{names.gpu_allocation}]: Invalid value: {quote(name)}: "
                "must record what the container of this name asks for"
            )
    return valid


def read_choice(
    annotations: Mapping[str, str],
    demand: PodDemand,
    written: Mapping[str, Allocation],
    names: Names,
    faults: list[str],
) -> Mapping[str, tuple[int, ...]]:
    """Read the cards that a scheduler chose for the containers that have no allocation yet.

    One that is not valid counts here: who wrote it has written the cards beside it too.

    Args:
        annotations: of the pod.
        demand: the pod's.
        written: as :func:`read_allocations` returns them.
        names: the annotations' names.
        faults: takes what is wrong, for the log.

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


def _is_of(allocation: Allocation, demand: Demand) -> bool:
    """Return whether an allocation can be of a container that asks for this."""
    if (allocation.cores, allocation.memory_blocks) != (demand.cores, demand.memory):
        return False
    cards = len(set(allocation.cards))
    return cards == len(allocation.cards) and cards == (demand.cards if demand.cores else 1)
