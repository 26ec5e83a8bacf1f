"""How well cards are connected, and the best-connected sets of them: pure.

A set is as good as its worst pair, because a collective operation runs at the speed of the
slowest link that it crosses; between sets of equal worst pairs the sum over all pairs decides.
Among equals that one is taken which takes the least connection away from the cards that stay
free, so that the next container finds a good set as well.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import combinations

from placement.cards import Inventory

# In the words of nvidia-smi topo -m. Each is worth twice the next: one good link that is broken
# up costs more than several bad ones.
_WORTH = {"SYS": 1, "NODE": 2, "PHB": 4, "PXB": 8, "PIX": 16}
_NVLINK = 16  # each NVLink of NV<n>, on top of PIX; on an NVSwitch every pair has all of them

_EXACT_UP_TO = 16
"""Cards among which every set is looked at: C(16, 8) is 12,870."""


class Links:
    """The worth of every pair of a node's cards."""

    def __init__(self, inventory: Inventory) -> None:
        """Work out every pair.

        Where a link is not told, cards of one NUMA node count as connected within it
        (``NODE``), all others across sockets (``SYS``).
        """
        numa = {card.index: card.numa for card in inventory.cards}
        uuid = {card.index: card.uuid for card in inventory.cards}
        kinds = {link.cards: link.kind for link in inventory.links}
        self._worth: dict[str, dict[str, int]] = {each: {} for each in uuid.values()}
        for low, high in combinations(sorted(numa), 2):
            near = numa[low] is not None and numa[low] == numa[high]
            kind = kinds.get((low, high), "NODE" if near else "SYS")
            worth = 2 * _worth(kind) + near
            self._worth[uuid[low]][uuid[high]] = self._worth[uuid[high]][uuid[low]] = worth

    def worth(self, one: str, other: str) -> int:
        """Return the worth of a pair; cards that are not known have none."""
        return self._worth.get(one, {}).get(other, 0)

    def quality(self, cards: Sequence[str]) -> tuple[int, int]:
        """Return the worst pair of a set, and the sum of all its pairs."""
        pairs = [self.worth(one, other) for one, other in combinations(cards, 2)]
        return min(pairs, default=0), sum(pairs)

    def taken_away(self, card: str, free: AbstractSet[str]) -> int:
        """Return how much connection the cards in *free* lose together when *card* is taken."""
        known = self._worth.get(card, {})
        return sum(known.get(other, 0) for other in free if other != card)

    def best(
        self,
        size: int,
        cards: Sequence[str],
        *,
        free: AbstractSet[str],
        must: AbstractSet[str] = frozenset(),
        cost: Mapping[str, int] | None = None,
    ) -> tuple[str, ...]:
        """Choose the best-connected set.

        Args:
            size: how many cards, at most as many as there are.
            cards: those to choose from, in the order that decides in the end.
            free: the cards that others could have; connections among them are spared.
            must: cards that are in the set in any case, at most *size*.
            cost: what decides between sets that are equal otherwise, the least first.

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
        )
        found = search.exact() if len(cards) <= _EXACT_UP_TO else search.greedy()
        return tuple(cards[place] for place in found)


def _worth(kind: str) -> int:
    if kind.startswith("NV"):
        return _WORTH["PIX"] + _NVLINK * int(kind[2:])
    return _WORTH[kind]


class _Search:
    """One search for the best set, over places in a list instead of UUIDs."""

    def __init__(
        self,
        size: int,
        worth: Sequence[Sequence[int]],
        prices: Sequence[tuple[int, int]],
        must: frozenset[int],
    ) -> None:
        self._size = size
        self._worth = worth
        self._must = must
        # One number in place of (sum of pairs, what is taken away, cost): each of them is a
        # sum over the set, and each is multiplied beyond all that come after it.
        costs = 1 + sum(cost for _, cost in prices)
        pair = costs * (1 + sum(taken for taken, _ in prices))
        self._pairs = [[pair * each for each in row] for row in worth]
        self._own = [-(taken * costs + cost) for taken, cost in prices]
        self._best: tuple[int, tuple[int, ...]] | None = None

    def exact(self) -> tuple[int, ...]:
        """Look at every set that can be the best."""
        places = range(len(self._worth))
        floors = sorted({self._worth[a][b] for a, b in combinations(places, 2)})
        low, high = 0, len(floors) - 1  # every set reaches the lowest
        while low < high:  # the best worst pair, by halves
            middle = (low + high + 1) // 2
            if self._reaches(self._neighbours(floors[middle])):
                low = middle
            else:
                high = middle - 1
        self._allowed = self._neighbours(floors[low])
        self._twins = self._lower_twins()
        # The most that a card can add with those that are chosen after it.
        self._most = [
            [sum(top) for top in _tops([row[b] for b in places if b != a], self._size)]
            for a, row in enumerate(self._pairs)
        ]
        start, gains = 0, list(self._own)
        within = (1 << len(places)) - 1
        chosen: tuple[int, ...] = ()
        for each in sorted(self._must):
            chosen, start = (*chosen, each), start + gains[each]
            gains = [gain + pair for gain, pair in zip(gains, self._pairs[each], strict=True)]
            within &= self._allowed[each]
        self._extend(chosen, start, gains, within)
        if self._best is None:
            raise AssertionError("a floor that was reached is not reached")
        return self._best[1]

    def greedy(self) -> tuple[int, ...]:
        """Grow a set from every card, each time by the card that is best then; keep the best."""
        found: list[tuple[tuple[int, int], tuple[int, ...]]] = []
        places = range(len(self._worth))
        for first in places:
            chosen = sorted({*self._must, first} if len(self._must) < self._size else self._must)
            while len(chosen) < self._size:
                left = (each for each in places if each not in chosen)
                chosen.append(min(left, key=lambda each: self._rank([*chosen, each])))
            found.append((self._rank(chosen), tuple(sorted(chosen))))
        return min(found)[1]

    def _rank(self, chosen: Sequence[int]) -> tuple[int, int]:
        """Make what is least for the best set."""
        worst = min((self._worth[a][b] for a, b in combinations(chosen, 2)), default=0)
        total = sum(self._pairs[a][b] for a, b in combinations(chosen, 2))
        return -worst, -total - sum(self._own[each] for each in chosen)

    def _neighbours(self, floor: int) -> list[int]:
        """Return for each card the bits of those it is connected to at least as well as *floor*."""
        return [
            sum(1 << b for b, worth in enumerate(row) if b != a and worth >= floor)
            for a, row in enumerate(self._worth)
        ]

    def _reaches(self, allowed: Sequence[int]) -> bool:
        """Return whether a set of the size has only pairs that are allowed."""
        within = (1 << len(allowed)) - 1
        for each in self._must:
            if any(not allowed[each] >> other & 1 for other in self._must if other != each):
                return False
            within &= allowed[each]

        def grow(within: int, missing: int) -> bool:
            while within.bit_count() >= missing:
                if missing <= 0:
                    return True
                lowest = within & -within
                within ^= lowest
                if grow(within & allowed[lowest.bit_length() - 1], missing - 1):
                    return True
            return False

        return grow(within, self._size - len(self._must))

    def _lower_twins(self) -> list[int]:
        """Return for each card the bits of those before it that it could be exchanged for.

        Of cards that no sum can tell apart the first ones are taken: on a node whose cards
        are all alike there is one set to look at instead of thousands.
        """
        places = range(len(self._worth))
        twins = [0] * len(self._worth)
        for a, b in combinations(places, 2):
            alike = self._own[a] == self._own[b] and not self._must & {a, b}
            if alike and all(
                self._worth[a][other] == self._worth[b][other]
                for other in places
                if other not in (a, b)
            ):
                twins[b] |= 1 << a
        return twins

    def _extend(
        self, chosen: tuple[int, ...], total: int, gains: Sequence[int], within: int
    ) -> None:
        """Try all ways to complete *chosen* with cards of *within*, in order.

        Args:
            chosen: the cards of the set so far.
            total: what they add up to.
            gains: what each card would add to that.
            within: the bits of those that may still be added.
        """
        missing = self._size - len(chosen)
        if not missing:
            found = (-total, tuple(sorted(chosen)))
            if self._best is None or found < self._best:
                self._best = found
            return
        if within.bit_count() < missing:
            return
        left = [place for place in range(len(gains)) if within >> place & 1]
        if self._best is not None:
            # A pair among those to come counts for both of its ends, so half for each.
            most = sorted(
                (2 * gains[each] + self._most[each][missing - 1] for each in left), reverse=True
            )
            # In this order the first of several equal sets is found first.
            if 2 * total + sum(most[:missing]) <= -2 * self._best[0]:
                return
        taken = sum(1 << each for each in chosen)
        for each in left:
            within ^= 1 << each
            if self._twins[each] & ~taken:
                continue
            row = self._pairs[each]
            self._extend(
                (*chosen, each),
                total + gains[each],
                [gain + pair for gain, pair in zip(gains, row, strict=True)],
                within & self._allowed[each],
            )
            if within.bit_count() < missing:
                return


def _tops(values: Sequence[int], upto: int) -> list[Sequence[int]]:
    """Return the none, one, two ... *upto* largest of *values*."""
    ordered = sorted(values, reverse=True)
    return [ordered[:count] for count in range(upto + 1)]
