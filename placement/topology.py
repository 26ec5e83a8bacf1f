"""How well cards are connected, and the best-connected sets of them: pure.

A set is as good as its worst pair, because a collective operation runs at the speed of the
slowest link that it crosses; between sets of equal worst pairs the sum over all pairs decides.
Among equals that one is taken which takes the least connection away from the cards that stay
free, so that the next container finds a good set as well.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import combinations, islice

from placement.cards import Inventory

# The scale of NVIDIA's own policy (go-gpuallocator, calculateGPUPairScore). A pair has what its way
# over PCIe is worth and what its NVLinks are; on an NVSwitch every pair has all of them.
_WORTH = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50}
_NVLINK = 100  # each of NV<n>

_MOST_SETS = 1000
"""So many sets are all looked at: every one of 10 cards, and of 16 whose links are a node's."""


class Links:
    """The worth of every pair of a node's cards."""

    def __init__(self, inventory: Inventory) -> None:
        """Work out every pair.

        Where the way over PCIe is not told, cards of one NUMA node count as connected within it
        (``NODE``), all others across sockets (``SYS``).
        """
        numa = {card.index: card.numa for card in inventory.cards}
        uuid = {card.index: card.uuid for card in inventory.cards}
        pcie, nvlinks = dict[tuple[int, int], int](), dict[tuple[int, int], int]()
        for link in inventory.links:
            if link.kind.startswith("NV"):
                nvlinks[link.cards] = _NVLINK * int(link.kind[2:])
            else:
                pcie[link.cards] = _WORTH[link.kind]
        self._worth: dict[str, dict[str, int]] = {each: {} for each in uuid.values()}
        self._joined: dict[str, set[tuple[str, str]]] = {"nvlink": set(), "numa": set()}
        for low, high in combinations(sorted(numa), 2):
            near = numa[low] is not None and numa[low] == numa[high]
            way = pcie.get((low, high), _WORTH["NODE" if near else "SYS"])
            worth = 2 * (way + nvlinks.get((low, high), 0)) + near
            self._worth[uuid[low]][uuid[high]] = self._worth[uuid[high]][uuid[low]] = worth
            pairs = {(uuid[low], uuid[high]), (uuid[high], uuid[low])}
            if (low, high) in nvlinks:
                self._joined["nvlink"] |= pairs
            if near:
                self._joined["numa"] |= pairs

    def worth(self, one: str, other: str) -> int:
        """Return the worth of a pair; cards that are not known have none."""
        return self._worth.get(one, {}).get(other, 0)

    def quality(self, cards: Sequence[str]) -> tuple[int, int]:
        """Return the worst pair of a set, and the sum of all its pairs."""
        pairs = [self.worth(one, other) for one, other in combinations(cards, 2)]
        return min(pairs, default=0), sum(pairs)

    def hold_together(self, cards: Sequence[str], link: str) -> bool:
        """Return whether cards have in common what a wish for *link* demands.

        For ``nvlink`` each is connected to each by NVLinks, if only by way of others of the set, as
        in a DGX-1. What is not known of a link or a NUMA node is not there.

        Args:
            cards: their UUIDs.
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

    def taken_away(self, card: str, free: AbstractSet[str]) -> int:
        """Return how much connection the cards in *free* lose together when *card* is taken."""
        known = self._worth.get(card, {})
        return sum(known.get(other, 0) for other in free if other != card)

    def best(  # noqa: PLR0913 -- what sets are compared by
        self,
        size: int,
        cards: Sequence[str],
        *,
        free: AbstractSet[str],
        must: AbstractSet[str] = frozenset(),
        cost: Mapping[str, int] | None = None,
        link: str = "",
    ) -> tuple[str, ...]:
        """Choose the best-connected set.

        Args:
            size: how many cards, at most as many as there are.
            cards: those to choose from, in the order that decides in the end.
            free: the cards that others could have; connections among them are spared.
            must: cards that are in the set in any case, at most *size*.
            cost: what decides between sets that are equal otherwise, the least first.
            link: what :meth:`hold_together` asks; sets that do come before all others.

        Returns:
            The set, in the order of *cards*.
        """
        if size >= len(cards):
            return tuple(cards)
        if size == 1:
            only = must or cards
            return (
                min(
                    (each for each in cards if each in only),
                    key=lambda each: (self.taken_away(each, free), (cost or {}).get(each, 0)),
                ),
            )
        search = _Search(
            size,
            [[self.worth(one, other) for other in cards] for one in cards],
            [(self.taken_away(each, free), (cost or {}).get(each, 0)) for each in cards],
            frozenset(place for place, each in enumerate(cards) if each in must),
            lambda chosen: self.hold_together([cards[place] for place in chosen], link),
        )
        return tuple(cards[place] for place in search.best())


class _Search:
    """One search for the best set, over places in a list instead of UUIDs."""

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
        self._others = [place for place in range(len(worth)) if place not in must]

    def best(self) -> tuple[int, ...]:
        """Return the best set of all where they are few, and the best that grows where not."""
        missing = self._size - len(self._must)
        sets = list(islice(_choices(self._alike(), missing), _MOST_SETS + 1))
        if len(sets) > _MOST_SETS:
            sets = [self._grow(first) for first in self._others]
        else:
            sets = [[*self._must, *more] for more in sets]
        return min((self._rank(each), tuple(sorted(each))) for each in sets)[1]

    def _alike(self) -> list[list[int]]:
        """Group the cards that could be exchanged for one another and nobody would see it.

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


def _choices(groups: Sequence[Sequence[int]], size: int) -> Iterator[list[int]]:
    """Yield all ways to take the first few of each group, *size* in all."""
    if sum(map(len, groups)) < size:
        return
    if not groups:
        yield []
        return
    first, *rest = groups
    for count in range(min(len(first), size), -1, -1):
        for more in _choices(rest, size - count):
            yield [*first[:count], *more]
