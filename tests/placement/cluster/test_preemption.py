"""The cheapest victims: tables, and all sets of victims as the oracle."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain, combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.inventory import Amounts
from placement.cluster.fit import Fit, check, fits_surely
from placement.cluster.holdings import NodeSnapshot
from placement.cluster.nodes import Node
from placement.cluster.preemption import EvictablePod, PreemptionCost, cost_of, find_victims
from placement.held import HeldAmounts
from placement.pods import PodInfo
from tests.examples import share
from tests.placement.cluster.builders import a_node, a_pod
from tests.placement.cluster.test_fit import fits_by_trying

BLOCKS = 8


def pod(uid: str, priority: int, held: tuple[int, int, int], *, group: str = "") -> EvictablePod:
    """A pod with so many cores and blocks of a card."""
    card, *amounts = held
    return EvictablePod(uid, priority, {card: Amounts(*amounts)}, group, "")


def held_by(node: Node, pods: Sequence[EvictablePod]) -> HeldAmounts:
    held = HeldAmounts.none_held(node.sizes)
    for each in pods:
        held = held.add(each.held)
    return held


SHARE, WHOLE = a_pod("a", (60, 2)), a_pod("a", (100, 0))


@pytest.mark.parametrize(
    ("wanted", "rows", "victims"),
    [
        # Two would have to leave the one card, one the other.
        (SHARE, [(0, 0, 50, 2), (0, 0, 50, 2), (0, 1, 90, 2)], "c"),
        # Totals would suffice: 30 are free on each card.
        (SHARE, [(5, 0, 70, 2), (4, 1, 70, 2)], "b"),
        # A low priority twice is better than a high one once.
        (WHOLE, [(9, 0, 100, 8), (1, 1, 50, 4), (2, 1, 50, 4)], "bc"),
        # Few of one priority are better than many, with negative priorities too.
        (WHOLE, [(1, 0, 50, 4), (1, 0, 50, 4), (1, 1, 90, 4)], "c"),
        (WHOLE, [(-9, 0, 50, 4), (-9, 0, 50, 4), (-9, 1, 90, 4)], "c"),
        # Two of one owner are better than one each of two.
        (WHOLE, [(1, 0, 50, 4, "x"), (1, 0, 50, 4, "y"), *[(1, 1, 50, 4, "z")] * 2], "cd"),
        # Then fewer cores.
        (SHARE, [(1, 0, 90, 2), (1, 1, 50, 2)], "b"),
        # Memory is short.
        (a_pod("a", (10, 6)), [(1, 0, 10, 6), (1, 1, 90, 3)], "a"),
    ],
)
def test_the_cheapest_set_is_taken(
    wanted: PodInfo, rows: list[tuple[Any, ...]], victims: str
) -> None:
    """Of pods ``a`` to ``d`` by priority, card, cores and blocks there, and owner."""
    candidates = [
        pod(uid, priority, (card, cores, blocks), group="".join(group))
        for uid, (priority, card, cores, blocks, *group) in zip("abcd", rows, strict=False)
    ]
    node = a_node("n1", 2, blocks=BLOCKS)
    found = find_victims(wanted.pod_class, node, held_by(node, candidates), candidates, allowed={})
    assert found is not None
    assert [each.uid for each in found.victims] == [*victims]


def test_many_pods_of_one_core_are_decided_in_few_checks() -> None:
    """They could be chosen in 10^29 ways; their owners and UIDs differ."""
    node = a_node("n1", 8, blocks=128)
    pods = [
        pod(f"{card}-{number:02}", number % 3, (card, 1, 1), group=f"g{card}-{number}")
        for card in range(8)
        for number in range(100)
    ]
    found = find_victims(
        a_pod("a", (30, 30)).pod_class, node, held_by(node, pods), pods, allowed={}
    )
    assert found is not None
    assert found.cost == PreemptionCost(0, 30 * 2**31, 30, 30, 30)


def test_the_best_of_thousands_of_sets_is_found_within_the_checks() -> None:
    sizes = [
        *((3, 5), (7, 3), (7, 1), (1, 1), (1, 5), (7, 5)),
        *((1, 5), (6, 2), (4, 1), (7, 5), (6, 1), (3, 5)),
    ]
    pods = [pod(f"{at:02}", 0, (0, *size)) for at, size in enumerate(sizes)]
    node = a_node("n1", 1, blocks=64)
    found = find_victims(
        a_pod("a", (60, 47)).pod_class, node, held_by(node, pods), pods, allowed={}
    )
    best = min(
        (len(victims), sum(cores for cores, _ in victims))
        for count in range(len(sizes))
        for victims in combinations(sizes, count)
        if sum(cores for cores, _ in sizes) - sum(cores for cores, _ in victims) <= 40
        and sum(blocks for _, blocks in sizes) - sum(blocks for _, blocks in victims) <= 17
    )
    assert found is not None
    assert (found.cost.victims, found.cost.cores) == best == (5, 14)


# --- the oracle -----------------------------------------------------------------------------

KEPT = 1000
"""The priority of a pod that may not be evicted."""
shares = st.tuples(st.integers(1, 99), st.integers(1, BLOCKS))
WANTED = {
    "a share": st.builds(lambda limit: a_pod("p", limit), shares),
    "two shares": st.builds(lambda a, b: a_pod("p", a, b), shares, shares),
    "an init container": st.builds(lambda a, b: a_pod("p", a, inits=[b]), shares, shares),
    "whole cards": st.integers(1, 3).map(lambda cards: a_pod("p", (100 * cards, 0))),
    "parts of cards": st.integers(2, 3).map(
        lambda cards: a_pod("p", (40 * cards, cards), split={"c0": cards})
    ),
    "halves": st.just(a_pod("p", (100, 4), split={"c0": 2})),
}
wanted_pods = st.one_of(*WANTED.values())


@st.composite
def crowds(draw: st.DrawFn) -> tuple[int, list[EvictablePod], dict[str, int]]:
    """Cards, pods on them (which may hold more than there is, or stay), and budgets."""
    cards = draw(st.integers(1, 3))
    pods = [
        EvictablePod(
            f"u{number}",
            draw(st.sampled_from([-5, 0, 0, 3, KEPT])),
            {
                card: Amounts(
                    draw(st.sampled_from([1, 20, 50, 50, 100])), draw(st.integers(0, BLOCKS))
                )
                for card in draw(st.sets(st.integers(0, cards - 1), min_size=1, max_size=2))
            },
            draw(st.sampled_from(["", "", "g", "h"])),
            draw(st.sampled_from(["", "", "x", "y"])),
        )
        for number in range(draw(st.integers(0, 8)))
    ]
    return cards, pods, {"x": draw(st.integers(0, 3)), "y": draw(st.integers(0, 1))}


@pytest.mark.parametrize("kind", WANTED)
@given(st.data(), crowds())
@settings(max_examples=share(112), deadline=None)
def test_no_set_of_victims_is_cheaper(
    kind: str, data: st.DataObject, crowd: tuple[int, list[EvictablePod], dict[str, int]]
) -> None:
    """All sets are tried, the cheapest first."""
    wanted = data.draw(WANTED[kind])
    cards, pods, allowed = crowd
    node = a_node("n1", cards, blocks=BLOCKS)
    held = held_by(node, pods)
    candidates = [each for each in pods if each.priority < KEPT]
    best: PreemptionCost | None = None
    sets = chain.from_iterable(
        combinations(candidates, each) for each in range(len(candidates) + 1)
    )
    for victims in sorted(sets, key=cost_of):
        taken = Counter(each.budget for each in victims if each.budget)
        if any(count > allowed[budget] for budget, count in taken.items()):
            continue
        free = held_by(node, [each for each in pods if each not in victims]).free
        if fits_by_trying(wanted, node, free):
            best = cost_of(victims)
            break
    found = find_victims(wanted.pod_class, node, held, candidates, allowed=allowed)
    assert (found and found.cost) == best
    if found is not None:
        bound = found.cost._replace(cores=found.cost.cores + 1)
        again = find_victims(wanted.pod_class, node, held, candidates, allowed=allowed, below=bound)
        assert again is not None
        assert again.cost == best
        assert not find_victims(
            wanted.pod_class, node, held, candidates, allowed=allowed, below=found.cost
        )
        assert cost_of(found.victims) == found.cost
        left = held_by(node, [each for each in pods if each not in found.victims])
        assert fits_surely(wanted.pod_class, node, left.free)


@given(wanted_pods, st.lists(st.tuples(st.integers(0, 100), st.integers(0, BLOCKS)), max_size=3))
def test_a_pod_fits_surely_if_it_fits(wanted: PodInfo, free: list[tuple[int, int]]) -> None:
    node = a_node("n1", len(free), blocks=BLOCKS)
    snapshot = NodeSnapshot(node, free)
    fits = isinstance(check(wanted.pod_class, snapshot), Fit)
    assert fits_surely(wanted.pod_class, node, snapshot.free) == fits
