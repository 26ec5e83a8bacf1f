"""How cards that were chosen together are connected, and whether others were better. Pure.

Judged by the links' kinds alone, apart from the agent's own reckoning of their worth.
"""

from collections.abc import Collection, Sequence
from itertools import combinations

from placement.cards import Inventory

_KINDS = ("?", "SYS", "NODE", "PHB", "PXB", "PIX")


def links_of(inventory: Inventory, cards: Collection[int]) -> str:
    """Describe the links between cards: ``NV18``, or ``3 NV12, 3 SYS``; empty for one card."""
    kinds = _kinds(inventory, cards)
    words = [
        kind if len(set(kinds)) == 1 else f"{kinds.count(kind)} {kind}"
        for kind in sorted(set(kinds), key=_rank, reverse=True)
    ]
    return ", ".join(words)


def numa_of(inventory: Inventory, cards: Collection[int]) -> str:
    """List the NUMA nodes of cards: ``0``, or ``0, 1``."""
    nodes = {card.numa for card in inventory.cards if card.index in cards}
    return ", ".join(sorted("?" if node is None else str(node) for node in nodes))


def better_set(
    inventory: Inventory, chosen: Collection[int], free: Collection[int]
) -> tuple[int, ...]:
    """Find a set of as many free cards whose worst link is better than that of the chosen ones.

    Args:
        inventory: the cards.
        chosen: the indices of those that were taken.
        free: the indices of those that could have been taken.

    Returns:
        The first such set, empty when there is none.
    """
    least = _worst(inventory, tuple(chosen))
    for each in combinations(sorted(free), len(chosen)):
        if _worst(inventory, each) > least:
            return each
    return ()


def _worst(inventory: Inventory, cards: Sequence[int]) -> int:
    return min((_rank(kind) for kind in _kinds(inventory, cards)), default=0)


def _kinds(inventory: Inventory, cards: Collection[int]) -> list[str]:
    known = {link.cards: link.kind for link in inventory.links}
    return [known.get(pair, "?") for pair in combinations(sorted(cards), 2)]


def _rank(kind: str) -> int:
    """Put kinds in order, the worst first; every NVLink more is better."""
    return len(_KINDS) + int(kind[2:]) if kind.startswith("NV") else _KINDS.index(kind)
