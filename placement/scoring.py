"""Ranks the cards that fit: binpack or spread for shares, links for several cards.

A share of one card gets the fullest card that fits (binpack, so that other cards stay whole) or
the emptiest (spread), by both cores and memory. A share of several cards gets the best-connected
ones, and among equals those that shares of one card would. Whole cards are the best-connected set;
a single whole card is the one whose loss matters least for the connections of the others.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum

from contract.demand import CORES_PER_CARD
from contract.inventory import Amounts
from placement.capacity import CardNeed, CardSet


class Policy(StrEnum):
    """How a share's card is chosen."""

    BINPACK = "binpack"
    SPREAD = "spread"


def whole_cards(cards: CardSet, free: Sequence[Amounts]) -> frozenset[int]:
    """Return the available cards of which no core is held, without MIG instances for shares."""
    return frozenset(
        [
            position
            for position in cards.available
            if free[position][0] >= CORES_PER_CARD and position not in cards.for_shares
        ]
    )


def rank_for_share(  # noqa: PLR0913 -- all criteria of the comparison
    need: CardNeed,
    fitting: Sequence[int],
    cards: CardSet,
    free: Sequence[Amounts],
    *,
    policy: Policy | None,
    own: AbstractSet[int] = frozenset(),
) -> list[int]:
    """Sort cards that fit for a share, the best first.

    Cards are compared by the cores and the memory that would remain free, as fractions of the
    card's size. Binpack compares the larger fraction first: without free cores, free memory is
    useless. It takes a whole card only if no card that is already shared fits, and then the one
    whose loss matters least for the connections of the others. Among equal cards, spread prefers
    others than the pod's *own*. Without a policy any order will do: the least free first.
    """
    if policy is None:
        return sorted(fitting, key=free.__getitem__)  # whole cards last
    remaining = {
        position: (
            (free[position].cores - need.per_card.cores) / CORES_PER_CARD,
            (free[position].memory - need.per_card.memory) / max(cards.sizes[position].memory, 1),
        )
        for position in fitting
    }
    if policy is Policy.SPREAD:
        return sorted(
            fitting,
            key=lambda position: (
                -min(remaining[position]),
                -sum(remaining[position]),
                position in own,
                position,
            ),
        )
    whole = whole_cards(cards, free)
    lost = {
        position: cards.links.lost_score(position, whole)
        for position in fitting
        if position in whole
    }
    return sorted(
        fitting,
        key=lambda position: (
            position in whole,
            max(remaining[position]),
            sum(remaining[position]),
            lost.get(position, 0),
            position,
        ),
    )


def best_set(  # noqa: PLR0913 -- all criteria of the comparison
    need: CardNeed,
    fitting: Sequence[int],
    cards: CardSet,
    free: Sequence[Amounts],
    *,
    policy: Policy | None,
    must: AbstractSet[int] = frozenset(),
    own: AbstractSet[int] = frozenset(),
    link: str = "",
) -> tuple[int, ...]:
    """Choose several cards: the best-connected set.

    Among equal sets it is the one with the least memory for whole cards, and for shares the one
    whose cards a share of one card would prefer.

    Args:
        need: what the container needs.
        fitting: positions of the cards that fit.
        cards: the node's cards.
        free: their free amounts.
        policy: ``None`` if any set will do: the one with the least free memory.
        must: positions of cards that must be in the set.
        own: as of :func:`rank_for_share`.
        link: sets that fulfil this wish come before all others.
    """
    is_share = need.demand.is_share
    if policy is None and not link:
        others = sorted(
            [position for position in fitting if position not in must],
            key=free.__getitem__ if is_share else lambda position: free[position][1],
        )
        return tuple(sorted([*must, *others[: need.demand.cards - len(must)]]))
    cost = [size[1] for size in cards.sizes]
    if is_share:
        ranked = rank_for_share(need, fitting, cards, free, policy=policy, own=own)
        whole = whole_cards(cards, free) if policy is Policy.BINPACK else frozenset()
        for rank, position in enumerate(ranked):
            # A whole card costs more than all cards that are shared already.
            cost[position] = rank + len(fitting) ** 2 * (position in whole)
    return cards.links.best(
        need.demand.cards,
        fitting,
        free=frozenset() if is_share else whole_cards(cards, free),
        must=must,
        cost=cost,
        link=link,
    )
