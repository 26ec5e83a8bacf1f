"""The best of the cards that fit: binpack or spread for shares, links for whole cards.

A share goes to the fullest card that fits (binpack, so that whole cards stay whole) or to
the emptiest (spread), by cores and memory both. Whole cards are the best-connected set; a
single one is taken where it breaks up least.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum

from contract.resource import RESOURCES, Resource
from placement.capacity import CardState, Need, whole_cards
from placement.topology import Links


class Policy(StrEnum):
    """The card that a share prefers."""

    BINPACK = "binpack"
    SPREAD = "spread"


def rank_for_share(  # noqa: PLR0913 -- what cards are compared by
    need: Need,
    fitting: Sequence[CardState],
    states: Iterable[CardState],
    *,
    links: Links,
    policy: Policy,
    own: AbstractSet[str] = frozenset(),
) -> list[CardState]:
    """Sort cards for a share, the one that it is placed on first.

    *own* are the cards that other containers of its pod are on: of equal cards, spread prefers
    another.

    What counts is what would be left of a card, of cores and of memory, as parts of what it
    has. Binpack looks at the larger of the two: on a card with no cores left, memory is of no
    use to anybody. It begins a new card only when none that is begun fits, and then the one
    whose loss breaks up least.
    """
    free = whole_cards(states)

    def key(state: CardState) -> tuple[float, ...]:
        left = [
            (state.free[each] - need.per_card[each]) / max(state.places[each], 1)
            for each in RESOURCES
        ]
        if policy is Policy.SPREAD:
            return (-min(left), -sum(left), state.uuid in own, state.index)
        away = links.taken_away(state.uuid, free) if state.whole else 0
        return (state.whole, max(left), sum(left), away, state.index)

    return sorted(fitting, key=key)


def best_whole(  # noqa: PLR0913 -- what cards are compared by
    need: Need,
    fitting: Sequence[CardState],
    states: Iterable[CardState],
    *,
    links: Links,
    must: Iterable[str] = (),
    link: str = "",
) -> tuple[str, ...]:
    """Choose whole cards: the best-connected; among equals those with the least memory.

    Sets that hold together by *link* come before all others.
    """
    return links.best(
        need.demand.cards,
        [state.uuid for state in fitting],
        free=whole_cards(states),
        must=frozenset(must),
        cost={state.uuid: state.places[Resource.MEMORY] for state in fitting},
        link=link,
    )
