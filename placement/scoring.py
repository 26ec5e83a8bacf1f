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
    policy: Policy | None,
    own: AbstractSet[int] = frozenset(),
) -> list[int]:
    """Sort cards for a share, the one that it is placed on first.

    *own* are the cards that other containers of its pod are on: of equal cards, spread prefers
    another.

    What counts is what would be left of a card, of cores and of memory, as parts of what it
    has. Binpack looks at the larger of the two: on a card with no cores left, memory is of no
    use to anybody. It begins a new card only when none that is begun fits, and then the one
    whose loss breaks up least. Where it does not matter, the least that is free comes first.
    """
    if policy is None:
        return sorted(fitting, key=free.__getitem__)  # whole cards last
    left = {
        at: (
            (free[at].cores - need.per_card.cores) / CORES_PER_CARD,
            (free[at].memory - need.per_card.memory) / max(cards.sizes[at].memory, 1),
        )
        for at in fitting
    }
    if policy is Policy.SPREAD:
        return sorted(fitting, key=lambda at: (-min(left[at]), -sum(left[at]), at in own, at))
    whole = whole_cards(cards, free)
    away = {at: cards.links.lost_with(at, whole) for at in fitting if at in whole}
    return sorted(
        fitting, key=lambda at: (at in whole, max(left[at]), sum(left[at]), away.get(at, 0), at)
    )


def best_whole(  # noqa: PLR0913 -- what cards are compared by
    need: CardNeed,
    fitting: Sequence[int],
    cards: CardSet,
    free: Sequence[Amounts],
    *,
    policy: Policy | None,
    must: AbstractSet[int] = frozenset(),
    link: str = "",
) -> tuple[int, ...]:
    """Choose whole cards: the best-connected; among equals those with the least memory.

    Sets that hold together by *link* come before all others.
    """
    if policy is None and not link:
        others = sorted([at for at in fitting if at not in must], key=lambda at: free[at][1])
        return tuple(sorted([*must, *others[: need.demand.cards - len(must)]]))
    return cards.links.best(
        need.demand.cards,
        fitting,
        free=whole_cards(cards, free),
        must=must,
        cost=[size[1] for size in cards.sizes],
        link=link,
    )
