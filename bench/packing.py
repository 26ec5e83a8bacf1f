"""Other ways to place a pod on the cards of a node: gpu-manager's rules, first-fit, all. Pure."""

from collections.abc import Sequence
from itertools import combinations

from contract.demand import CORES_PER_CARD, Demand
from contract.resource import Resource

Free = list[list[int]]
"""Of every card, by index: free cores, free memory blocks."""


def admit_gpu_manager(pod: Sequence[Demand], free: Free) -> bool:
    """Place container by container, by the rules of ``tkestack/gpu-manager``.

    Source: ``pkg/algorithm/nvidia/share.go``, ``fragment.go``, ``link.go``. A share takes the
    card with the fewest free cores that fits, then the least memory; whole cards come from
    the smallest group of the tree of links that has enough, the one with the fewest free.
    """
    for demand in pod:
        if demand.is_share:
            fitting = [
                (*card, index)
                for index, card in enumerate(free)
                if card[0] >= demand.cores and card[1] >= demand.memory
            ]
            chosen = [min(fitting)[2]] if fitting else []
        else:
            chosen = _from_smallest_group(free, demand.cards)
        if not chosen:
            return False
        _take(demand, chosen, free)
    return True


def _from_smallest_group(free: Free, size: int) -> list[int]:
    whole = [index for index, card in enumerate(free) if card[0] == CORES_PER_CARD]
    for width in (1, 2, 4, 8):
        groups = [
            [index for index in whole if index // width == group]
            for group in range(len(free) // width)
        ]
        enough = [group for group in groups if len(group) >= size]
        if enough:
            return min(enough, key=lambda group: (len(group), group))[:size]
    return []


def admit_first_fit(pod: Sequence[Demand], free: Free) -> bool:
    """Place container by container, on the first cards that fit."""
    for demand in pod:
        cores = min(demand.cores, CORES_PER_CARD)
        memory = max(demand.per_card(Resource.MEMORY))
        fitting = [
            index for index, card in enumerate(free) if card[0] >= cores and card[1] >= memory
        ]
        if len(fitting) < demand.cards:
            return False
        _take(demand, fitting[: demand.cards], free)
    return True


def can_be_placed(pod: Sequence[Demand], free: Free) -> bool:
    """Return whether there are cards for all containers, by trying all."""
    if not pod:
        return True
    first, *rest = pod
    cores, memory = min(first.cores, CORES_PER_CARD), max(first.per_card(Resource.MEMORY))
    fitting = [index for index, card in enumerate(free) if card[0] >= cores and card[1] >= memory]
    for chosen in combinations(fitting, first.cards):
        after = [list(card) for card in free]
        _take(first, chosen, after)
        if can_be_placed(rest, after):
            return True
    return False


def _take(demand: Demand, chosen: Sequence[int], free: Free) -> None:
    for index, memory in zip(chosen, demand.per_card(Resource.MEMORY), strict=True):
        free[index][0] -= min(demand.cores, CORES_PER_CARD)
        free[index][1] -= memory
