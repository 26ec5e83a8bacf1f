"""Scores of the links between cards, and the best-connected sets of cards. Pure.

A set is as good as its worst pair, because a collective operation runs at the speed of the
slowest link that it crosses. If the worst pairs are equal, the sum over all pairs decides. Among
sets that are still equal, the one is chosen that costs the free cards the least links, so that the
next container also finds a good set.
"""

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations, islice

from contract.devices import nvlink_groups
from contract.inventory import Inventory

# The scores of NVIDIA's own policy (go-gpuallocator, calculateGPUPairScore). The score of a pair is
# that of its PCIe path plus those of its NVLinks; on an NVSwitch every pair has all NVLinks.
_PCIE_SCORES = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50}
_NVLINK = 100  # each of NV<n>

_MOST_SETS = 1000
"""Most sets that are all compared: all sets of 10 cards, or of 16 cards with a usual topology."""


class Links:
    """The scores of all pairs of a node's cards; cards are positions."""

    def __init__(self, inventory: Inventory, *, by_claim: bool = False) -> None:
        """Compute the score of every pair.

        If the PCIe path of a pair is unknown, cards of one NUMA node count as connected within it
        (``NODE``), all others across sockets (``SYS``).

        Args:
            inventory: the node's cards and links.
            by_claim: whether pods get these cards by claims. Then kube-scheduler chooses them, and
                NVLinks count within a group only (:func:`contract.devices.nvlink_groups`).
        """
        cards = inventory.cards
        self.ungrouped = Links(inventory) if by_claim else self
        """The same without groups: as the device plugin chooses cards."""
        groups = nvlink_groups(inventory) if by_claim else {}
        pcie, nvlinks = dict[tuple[int, int], int](), dict[tuple[int, int], int]()
        for link in inventory.links:
            if link.kind.startswith("NV"):
                nvlinks[link.cards] = _NVLINK * int(link.kind[2:])
            else:
                pcie[link.cards] = _PCIE_SCORES[link.kind]
        self._scores = [[0] * len(cards) for _ in cards]
        self._linked_pairs: dict[str, set[tuple[int, int]]] = {"nvlink": set(), "numa": set()}
        for one, other in combinations(range(len(cards)), 2):
            pair = cards[one].index, cards[other].index
            same_numa = cards[one].numa is not None and cards[one].numa == cards[other].numa
            path = pcie.get(pair, _PCIE_SCORES["NODE" if same_numa else "SYS"])
            score = 2 * (path + nvlinks.get(pair, 0)) + same_numa
            self._scores[one][other] = self._scores[other][one] = score
            nvlinked = pair in nvlinks
            if by_claim:
                nvlinked = pair[0] in groups and groups[pair[0]] == groups.get(pair[1])
            for kind, is_linked in (("nvlink", nvlinked), ("numa", same_numa)):
                if is_linked:
                    self._linked_pairs[kind] |= {(one, other), (other, one)}

    def quality(self, cards: Sequence[int]) -> tuple[int, int]:
        """Return the lowest score of a pair in a set, and the sum of all scores."""
        pairs = [self._scores[one][other] for one, other in combinations(cards, 2)]
        return min(pairs, default=0), sum(pairs)

    def fulfils(self, cards: Sequence[int], link: str) -> bool:
        """Return whether cards are connected as the wish *link* demands.

        For ``nvlink`` all cards must be connected by NVLinks, directly or over other cards of the
        set, as in a DGX-1; by claims, all must be of one group. An unknown link or NUMA node
        counts as missing.

        Args:
            cards: their positions.
            link: one of :data:`contract.wishes.LINKS`; empty demands nothing.
        """
        return not link or len(cards) < 2 or len(self.connected(cards, link)) == 1

    def connected(self, cards: Sequence[int], link: str) -> list[list[int]]:
        """Divide cards into the largest sets that fulfil the wish *link*, each in their order."""
        if not link:
            return [[*cards]]
        linked, left, found = self._linked_pairs[link], [*cards], list[list[int]]()
        while left:
            reached = {left[0]}
            to_visit = [left[0]]
            while to_visit:
                card = to_visit.pop()
                neighbours = [
                    each for each in left if (card, each) in linked and each not in reached
                ]
                reached.update(neighbours)
                to_visit += neighbours
            found.append([card for card in left if card in reached])
            left = [card for card in left if card not in reached]
        return found

    @lru_cache(maxsize=1024)  # noqa: B019 -- few nodes differ in their links
    def alike(self, link: str) -> Sequence[int]:
        """Return a class of each card: cards of one class are connected to the same others.

        If they are exchanged for each other, sets of cards still fulfil the wish *link* as before.
        """
        classes, every = list[int](), range(len(self._scores))
        for card in every:
            for other in {*classes}:
                if all(
                    self.is_linked(card, each, link) == self.is_linked(other, each, link)
                    for each in every
                    if each not in {card, other}
                ):
                    classes.append(other)
                    break
            else:
                classes.append(card)
        return classes

    def is_linked(self, one: int, other: int, link: str) -> bool:
        """Return whether two cards are connected directly as the wish *link* demands."""
        return (one, other) in self._linked_pairs[link]

    def lost_score(self, card: int, free: AbstractSet[int]) -> int:
        """Return the sum of the scores that the cards in *free* lose if *card* is taken."""
        scores = self._scores[card]
        return sum([scores[other] for other in free if other != card])

    def best(  # noqa: PLR0913 -- all criteria of the comparison
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
            size: number of cards in the set.
            cards: the cards to choose from; their order decides last.
            free: the whole cards; the set should cost these the least links.
            must: cards that must be in the set, at most *size*.
            cost: cost of every card of the node: decides between otherwise equal sets, the least
                first.
            link: sets that fulfil this wish (:meth:`fulfils`) come before all others.

        Returns:
            The set, in the order of *cards*; all *cards* if they are not more than *size*.
        """
        if size >= len(cards):
            return tuple(cards)
        return self._best(size, tuple(cards), frozenset(free), frozenset(must), tuple(cost), link)

    @lru_cache(maxsize=16384)  # noqa: B019 -- many nodes have the same cards free
    def _best(  # noqa: PLR0913, PLR0917 -- as best
        self,
        size: int,
        cards: tuple[int, ...],
        free: frozenset[int],
        must: frozenset[int],
        cost: tuple[int, ...],
        link: str,
    ) -> tuple[int, ...]:
        prices = [(self.lost_score(each, free), cost[each] if cost else 0) for each in cards]
        if size == 1:
            candidates = [index for index, each in enumerate(cards) if not must or each in must]
            return (cards[min(candidates, key=lambda index: prices[index])],)
        found = self.connected(cards, link)
        connected = [part for part in found if len(part) >= size and must <= {*part}]
        index_of = {each: index for index, each in enumerate(cards)}
        search = _CardSearch(
            size,
            [[self._scores[one][other] for other in cards] for one in cards],
            prices,
            sorted(index_of[each] for each in must),
            # Any other set fulfils the wish as little as these.
            (lambda chosen: self.fulfils([cards[index] for index in chosen], link))
            if connected
            else (lambda _: False),
        )
        parts = [[index_of[each] for each in part] for part in connected or [[*cards]]]
        return tuple(cards[index] for index in search.best(parts))


@dataclass(frozen=True, eq=False)
class _CardSearch:
    """One search for the best set; cards are indices in the list of cards to choose from."""

    _size: int
    _scores: Sequence[Sequence[int]]
    _prices: Sequence[tuple[int, int]]
    _must: Sequence[int]
    _fulfils: Callable[[Sequence[int]], bool]

    def best(self, parts: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return the best set whose cards are all of one part."""
        sets = chain.from_iterable(map(self._sets, parts))
        return min((self._rank(each), tuple(sorted(each))) for each in sets)[1]

    def _sets(self, part: Sequence[int]) -> list[list[int]]:
        """Return all sets of a part or, if they are too many, greedily grown ones."""
        others = [index for index in part if index not in self._must]
        groups = self._interchangeable_groups(others)
        sets = list(islice(choices(groups, self._size - len(self._must)), _MOST_SETS + 1))
        if len(sets) > _MOST_SETS:
            return [self._grow(first, others) for first in others]
        return [[*self._must, *more] for more in sets]

    def _interchangeable_groups(self, cards: Sequence[int]) -> list[list[int]]:
        """Group cards with equal links to every other card, the cheapest of each group first.

        Only sets with the first cards of each group are compared: one set instead of thousands if
        all cards of a node are alike, and at most 85 with four switches of four cards each.
        """
        groups: list[list[int]] = []
        compared = [*self._must, *cards]
        for each in sorted(cards, key=lambda each: (self._prices[each], each)):
            for group in groups:
                if self._interchangeable(group[0], each, compared):
                    group.append(each)
                    break
            else:
                groups.append([each])
        return groups

    def _interchangeable(self, one: int, other: int, compared: Sequence[int]) -> bool:
        return all(
            self._scores[one][each] == self._scores[other][each]
            for each in compared
            if each not in (one, other)
        )

    def _grow(self, first: int, cards: Sequence[int]) -> list[int]:
        """Grow a set from one card, by the best next card each time."""
        chosen = [*self._must, first]
        while len(chosen) < self._size:
            others = (each for each in cards if each not in chosen)
            chosen.append(min(others, key=lambda each: self._rank([*chosen, each])))
        return chosen

    def _rank(self, chosen: Sequence[int]) -> tuple[int, int, int, int, int]:
        """Return a sort key: the best set has the least."""
        pairs = [self._scores[one][other] for one, other in combinations(chosen, 2)]
        prices = [self._prices[each] for each in chosen]
        return (
            not self._fulfils(chosen),
            -min(pairs, default=0),
            -sum(pairs),
            sum(lost for lost, _ in prices),
            sum(cost for _, cost in prices),
        )


def choices(groups: Sequence[Sequence[int]], size: int) -> Iterator[list[int]]:
    """Yield all combinations of *size* elements that take the first few of each group."""
    if sum(map(len, groups)) < size:
        return
    if not groups:
        yield []
        return
    first, *rest = groups
    for count in range(min(len(first), size), -1, -1):
        for more in choices(rest, size - count):
            yield [*first[:count], *more]
