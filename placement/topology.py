"""How well cards are connected, and the best-connected sets of them: pure.

A set is as good as its worst pair, because a collective operation runs at the speed of the
slowest link that it crosses; between sets of equal worst pairs the sum over all pairs decides.
Among equals that one is taken which takes the least connection away from the cards that stay
free, so that the next container finds a good set as well.
"""

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import combinations, islice

from contract.inventory import Inventory

# The scale of NVIDIA's own policy (go-gpuallocator, calculateGPUPairScore). A pair has what its way
# over PCIe is worth and what its NVLinks are; on an NVSwitch every pair has all of them.
_WORTH = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50}
_NVLINK = 100  # each of NV<n>

_MOST_SETS = 1000
"""So many sets are all looked at: every one of 10 cards, and of 16 whose links are a node's."""


class Links:
    """The worth of every pair of a node's cards, which are named by their positions."""

    def __init__(self, inventory: Inventory) -> None:
        """Work out every pair.

        Where the way over PCIe is not told, cards of one NUMA node count as connected within it
        (``NODE``), all others across sockets (``SYS``).
        """
        cards = inventory.cards
        pcie, nvlinks = dict[tuple[int, int], int](), dict[tuple[int, int], int]()
        for link in inventory.links:
            if link.kind.startswith("NV"):
                nvlinks[link.cards] = _NVLINK * int(link.kind[2:])
            else:
                pcie[link.cards] = _WORTH[link.kind]
        self._worth = [[0] * len(cards) for _ in cards]
        self._joined: dict[str, set[tuple[int, int]]] = {"nvlink": set(), "numa": set()}
        for one, other in combinations(range(len(cards)), 2):
            pair = cards[one].index, cards[other].index
            near = cards[one].numa is not None and cards[one].numa == cards[other].numa
            way = pcie.get(pair, _WORTH["NODE" if near else "SYS"])
            worth = 2 * (way + nvlinks.get(pair, 0)) + near
            self._worth[one][other] = self._worth[other][one] = worth
            for kind, is_there in (("nvlink", pair in nvlinks), ("numa", near)):
                if is_there:
                    self._joined[kind] |= {(one, other), (other, one)}

    def worth(self, one: int, other: int) -> int:
        """Return the worth of a pair."""
        return self._worth[one][other]

    def quality(self, cards: Sequence[int]) -> tuple[int, int]:
        """Return the worst pair of a set, and the sum of all its pairs."""
        pairs = [self._worth[one][other] for one, other in combinations(cards, 2)]
        return min(pairs, default=0), sum(pairs)

    def hold_together(self, cards: Sequence[int], link: str) -> bool:
        """Return whether cards have in common what a wish for *link* demands.

        For ``nvlink`` each is connected to each by NVLinks, if only by way of others of the set, as
        in a DGX-1. What is not known of a link or a NUMA node is not there.

        Args:
            cards: their positions.
            link: one of :data:`contract.wishes.LINKS`; empty demands nothing.
        """
        if not link or len(cards) < 2:
            return True
        joined, left = self._joined[link], set(cards[1:])
        reached = [cards[0]]
        while reached and left:
            one = reached.pop()
            near = {each for each in left if (one, each) in joined}
            left -= near
            reached += near
        return not left

    def lost_with(self, card: int, free: AbstractSet[int]) -> int:
        """Return how much connection the cards in *free* lose together when *card* is taken."""
        worth = self._worth[card]
        return sum([worth[other] for other in free if other != card])

    def best(  # noqa: PLR0913 -- what sets are compared by
        self,
        size: int,
        cards: Sequence[int],
        *,
        free: AbstractSet[int],
        must: AbstractSet[int] = frozenset(),
        cost: Sequence[int] = (),
        link: str = "",
    ) -> tuple[int, ...]:
        """Choose the best-connected set.

        Args:
            size: how many cards, at most as many as there are.
            cards: those to choose from, in the order that decides in the end.
            free: the cards that others could have; connections among them are spared.
            must: cards that are in the set in any case, at most *size*.
            cost: of every card of the node, decides between sets that are equal otherwise, the
                least first.
            link: what :meth:`hold_together` asks; sets that do come before all others.

        Returns:
            The set, in the order of *cards*.
        """
        if size >= len(cards):
            return tuple(cards)
        return _best(self, size, tuple(cards), frozenset(free), frozenset(must), tuple(cost), link)


@lru_cache(maxsize=16384)  # of many nodes the same cards are free
def _best(  # noqa: PLR0913, PLR0917 -- as Links.best
    links: Links,
    size: int,
    cards: tuple[int, ...],
    free: frozenset[int],
    must: frozenset[int],
    cost: tuple[int, ...],
    link: str,
) -> tuple[int, ...]:
    prices = [(links.lost_with(each, free), cost[each] if cost else 0) for each in cards]
    if size == 1:
        only = [at for at, each in enumerate(cards) if not must or each in must]
        return (cards[min(only, key=lambda at: prices[at])],)
    search = _CardSearch(
        size,
        [[links.worth(one, other) for other in cards] for one in cards],
        prices,
        frozenset(at for at, each in enumerate(cards) if each in must),
        lambda chosen: links.hold_together([cards[at] for at in chosen], link),
    )
    return tuple(cards[at] for at in search.best())


class _CardSearch:
    """One search for the best set, over positions in a list of the cards to choose from."""

    def __init__(
        self,
        size: int,
        worth: Sequence[Sequence[int]],
        prices: Sequence[tuple[int, int]],
        must: frozenset[int],
        hold_together: Callable[[Sequence[int]], bool],
    ) -> None:
        self._size = size
        self._worth = worth
        self._prices = prices
        self._must = sorted(must)
        self._hold_together = hold_together
        self._others = [at for at in range(len(worth)) if at not in must]

    def best(self) -> tuple[int, ...]:
        """Return the best set of all where they are few, and the best that grows where not."""
        missing = self._size - len(self._must)
        sets = list(islice(choices(self._alike(), missing), _MOST_SETS + 1))
        if len(sets) > _MOST_SETS:
            sets = [self._grow(first) for first in self._others]
        else:
            sets = [[*self._must, *more] for more in sets]
        return min((self._rank(each), tuple(sorted(each))) for each in sets)[1]

    def _alike(self) -> list[list[int]]:
        """Group interchangeable cards: equal cost, and equal links to every other card.

        Of those the first ones are taken: on a node whose cards are all alike there is one set
        to look at instead of thousands, and on four switches with four cards each at most 85.
        """
        groups: list[list[int]] = []
        for each in self._others:
            for group in groups:
                if self._exchangeable(group[0], each):
                    group.append(each)
                    break
            else:
                groups.append([each])
        return groups

    def _exchangeable(self, one: int, other: int) -> bool:
        return self._prices[one] == self._prices[other] and all(
            self._worth[one][each] == self._worth[other][each]
            for each in range(len(self._worth))
            if each not in (one, other)
        )

    def _grow(self, first: int) -> list[int]:
        """Add to a card, each time the one that is best then."""
        chosen = [*self._must, first]
        while len(chosen) < self._size:
            left = (each for each in self._others if each not in chosen)
            chosen.append(min(left, key=lambda each: self._rank([*chosen, each])))
        return chosen

    def _rank(self, chosen: Sequence[int]) -> tuple[int, int, int, int, int]:
        """Make what is least for the best set."""
        pairs = [self._worth[one][other] for one, other in combinations(chosen, 2)]
        prices = [self._prices[each] for each in chosen]
        return (
            not self._hold_together(chosen),
            -min(pairs, default=0),
            -sum(pairs),
            sum(taken for taken, _ in prices),
            sum(cost for _, cost in prices),
        )


def choices(groups: Sequence[Sequence[int]], size: int) -> Iterator[list[int]]:
    """Yield all ways to take the first few of each group, *size* in all."""
    if sum(map(len, groups)) < size:
        return
    if not groups:
        yield []
        return
    first, *rest = groups
    for count in range(min(len(first), size), -1, -1):
        for more in choices(rest, size - count):
            yield [*first[:count], *more]
