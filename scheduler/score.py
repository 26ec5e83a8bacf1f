"""How good a node is for a pod that fits there: 0 to 10. Pure.

Three things count. How full the node would be: fuller is better with ``binpack``, emptier with
``spread``; full is whichever of cores and memory there is less of. Whether cards that are whole
stay whole, with ``binpack``: a share had better go where a begun card has room. And how well the
cards of a set would be connected.
"""

from collections.abc import Sequence
from functools import lru_cache

from contract.demand import CORES_PER_CARD, ContainerKind
from placement.scoring import Policy
from placement.topology import Links
from scheduler.fit import Fit, usable_cards
from scheduler.holdings import Free
from scheduler.nodes import Node
from scheduler.pods import Need, Shape

HIGHEST = 10
"""``MaxExtenderPriority`` of kube-scheduler; the lowest is 0."""

# By the worst pair of a set, half of what placement.topology says it is worth.
_LINKS = ((32, 1.0), (16, 0.8), (8, 0.6), (4, 0.4), (2, 0.2))


def score(shape: Shape, node: Node, free: Free, fit: Fit, policy: Policy) -> int:
    """Return the score of a node.

    Args:
        shape: of the pod.
        node: where it fits.
        free: what is free there.
        fit: as :func:`scheduler.fit.check` returned it.
        policy: over nodes.
    """
    packing = _fullness(shape, node, free)
    if policy is Policy.SPREAD:
        packing = 1 - packing
    parts = [packing]
    largest = max(shape.needs, key=lambda need: need.cards)
    if largest.cards > 1:
        parts.append(_connection(largest, shape, node, free))
    elif policy is Policy.BINPACK and (shares := sum(need.demand.is_share for need in shape.needs)):
        parts.append(1 - min(fit.begun / shares, 1))
    return min(max(int(HIGHEST * sum(parts) / len(parts) + 0.5), 0), HIGHEST)


def _fullness(shape: Shape, node: Node, free: Free) -> float:
    """Return how much of the healthy cards would be taken: of cores or memory, the larger part."""
    cores, blocks = _asked(shape)
    all_cores = all_blocks = 0
    for card, (free_cores, free_blocks) in zip(node.cards, free, strict=True):
        if card.healthy:
            all_cores += CORES_PER_CARD
            all_blocks += card.blocks
            cores += CORES_PER_CARD - free_cores
            blocks += card.blocks - free_blocks
    return min(max(cores / max(all_cores, 1), blocks / max(all_blocks, 1)), 1.0)


@lru_cache(maxsize=4096)
def _asked(shape: Shape) -> tuple[int, int]:
    """Return the cores and blocks that a pod takes; init containers run before the others."""
    kept = [need.demand for need in shape.needs if need.kind is not ContainerKind.INIT]
    inits = [need.demand for need in shape.needs if need.kind is ContainerKind.INIT]
    return (
        max(sum(each.cores for each in kept), *(each.cores for each in inits), 0),
        max(sum(each.memory for each in kept), *(each.memory for each in inits), 0),
    )


def _connection(need: Need, shape: Shape, node: Node, free: Free) -> float:
    """Return how well the best set would be connected, 0 to 1."""
    if node.links is None:
        return 0.0
    fitting = tuple(
        str(node.cards[place].index)
        for place in usable_cards(node, shape.wishes)
        if free[place][0] >= need.cores and free[place][1] >= need.blocks
    )
    return _quality(node.links, need.cards, fitting)


@lru_cache(maxsize=16384)
def _quality(links: Links, size: int, cards: Sequence[str]) -> float:
    worst, _ = links.quality(links.best(size, cards, free=frozenset(cards)))
    return next((part for least, part in _LINKS if worst // 2 >= least), 0.0)
