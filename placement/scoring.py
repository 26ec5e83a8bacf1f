"""The best of the cards that fit: binpack or spread for shares, links for whole cards.

A share goes to the fullest card that fits (binpack, so that whole cards stay whole) or to
the emptiest (spread), by cores and memory both. Whole cards are the best-connected set; a
single one is taken where it breaks up least.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum

from contract.demand import CORES_PER_CARD
from contract.inventory import Amounts
from placement.capacity import CardNeed, CardSet


class Policy(StrEnum):
    """The card that a share prefers."""

    BINPACK = "binpack"
    SPREAD = "spread"


def whole_cards(cards: CardSet, free: Sequence[Amounts]) -> frozenset[int]:
    """Return the healthy cards of which no core is held."""
    return frozenset([at for at in cards.healthy if free[at][0] >= CORES_PER_CARD])


def rank_for_share(  # noqa: PLR0913 -- what cards are compared by
    need: CardNeed,
    fitting: Sequence[int],
    cards: CardSet,
    free: Sequence[Amounts],
    *,
    policy: Policy,
    own: AbstractSet[int] = frozenset(),
) -> list[int]:
    """Sort cards for a share, the one that it is placed on first.

    *own* are the cards that other containers of its pod are on: of equal cards, spread prefers
    another.

    What counts is what would be left of a card, of cores and of memory, as parts of what it
    has. Binpack looks at the larger of the two: on a card with no cores left, memory is of no
    use to anybody. It begins a new card only when none that is begun fits, and then the one
    whose loss breaks up least.
    """
    sizes, (cores, memory) = cards.sizes, need.per_card
    begun: list[tuple[float, ...]] = []
    whole: list[tuple[float, ...]] = []
    for at in fitting:
        free_cores, free_memory = free[at]
        left = (free_cores - cores) / CORES_PER_CARD
        blocks_left = (free_memory - memory) / (sizes[at][1] or 1)
        more, less = (left, blocks_left) if left > blocks_left else (blocks_left, left)
        if policy is Policy.SPREAD:
            begun.append((-less, -(left + blocks_left), at in own, at))
        elif free_cores < CORES_PER_CARD:
            begun.append((more, left + blocks_left, at))
        else:
            whole.append((more, left + blocks_left, at))
    if whole:
        others, taken_away = whole_cards(cards, free), cards.links.taken_away
        whole = [(most, total, taken_away(int(at), others), at) for most, total, at in whole]
    return [int(each[-1]) for each in (*sorted(begun), *sorted(whole))]


def best_whole(  # noqa: PLR0913 -- what cards are compared by
    need: CardNeed,
    fitting: Sequence[int],
    cards: CardSet,
    free: Sequence[Amounts],
    *,
    must: AbstractSet[int] = frozenset(),
    link: str = "",
) -> tuple[int, ...]:
    """Choose whole cards: the best-connected; among equals those with the least memory.

    Sets that hold together by *link* come before all others.
    """
    return cards.links.best(
        need.demand.cards,
        fitting,
        free=whole_cards(cards, free),
        must=must,
        cost=[size[1] for size in cards.sizes],
        link=link,
    )
