import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cards.cards_file import load_inventory
from contract.inventory import Card, Inventory, Link
from placement.topology import Links

FOLDER = Path(__file__).parents[2] / "deploy/examples/cards"
KINDS = ("SYS", "NODE", "PHB", "PXB", "PIX", "NV1", "NV2", "NV4", "NV18")


def node(
    count: int, kinds: Mapping[tuple[int, int], str], *, numa: Sequence[int | None] = ()
) -> Inventory:
    """A node; a kind such as ``PHB NV2`` is two links."""
    return Inventory(
        tuple(
            Card(f"GPU-{i}", i, "Test", 1 << 30, numa[i] if numa else None) for i in range(count)
        ),
        tuple(Link(pair, kind) for pair, ways in sorted(kinds.items()) for kind in ways.split()),
    )


def pick(inventory: Inventory, size: int, *taken: int, must: Sequence[int] = ()) -> list[int]:
    """Choose among the cards that are not taken."""
    free = [at for at in range(len(inventory.cards)) if at not in taken]
    return list(Links(inventory).best(size, free, free={*free}, must={*must}))


# gpu-manager's tests: three pairs on a PCIe switch each, two of them under one host bridge.
SIX = node(
    6,
    dict.fromkeys(combinations(range(4), 2), "PHB")
    | {(0, 1): "PIX", (2, 3): "PIX", (4, 5): "PIX"}
    | {(a, b): "SYS" for a in range(4) for b in (4, 5)},
)


def test_with_a_card_taken_a_pair_is_chosen_that_leaves_three_cards_together() -> None:
    """gpu-manager takes 0 and 1 here, as well connected as 4 and 5 are.

    It leaves 3, 4 and 5, which cross the sockets. Ours leaves 0, 1 and 3: as good a pair,
    and three cards under one host bridge for the next pod that requests them.
    """
    assert (pick(SIX, 3), pick(SIX, 2), pick(SIX, 1, 4)) == ([0, 1, 2], [4, 5], [5])
    assert pick(SIX, 2, 2) == [4, 5]
    links = Links(SIX)
    assert links.quality((4, 5)) == links.quality((0, 1))
    assert links.quality((0, 1, 3)) > links.quality((3, 4, 5))


def test_the_pcie_path_counts_beside_nvlink() -> None:
    """On a DGX-1 with Pascal cards all pairs of a socket have one NVLink."""
    kinds = dict.fromkeys(combinations(range(4), 2), "PHB NV1") | {
        (0, 2): "PIX NV1",
        (1, 3): "PIX NV1",
    }
    assert pick(node(4, kinds), 2) == [0, 2]
    assert pick(node(4, kinds), 2, 0, 2) == [1, 3]
    nvlink_alone = dict.fromkeys(kinds, "NV1")  # as inventories were before 0.3.0
    assert pick(node(4, nvlink_alone), 2) == [0, 1]


@pytest.mark.parametrize("better", range(1, len(KINDS)))
def test_links_are_ranked(better: int) -> None:
    inventory = node(4, {(0, 1): KINDS[better - 1], (2, 3): KINDS[better]})
    assert pick(inventory, 2) == [2, 3]


def test_cards_of_one_numa_node_come_before_others_of_equal_links() -> None:
    kinds = dict.fromkeys(combinations(range(4), 2), "NV18")
    assert pick(node(4, kinds, numa=[0, 1, 1, 0]), 2) == [0, 3]


def test_the_worst_link_of_a_set_decides_before_the_sum() -> None:
    kinds = dict.fromkeys(combinations(range(6), 2), "PHB")
    kinds |= {(0, 1): "NV4", (1, 2): "SYS"}  # a ring over 0, 1 and 2 runs at the speed of SYS
    assert pick(node(6, kinds), 3, 3, 4) == [0, 1, 5]
    assert Links(node(6, kinds)).quality((0, 1, 2))[0] == 20


# Two bridged pairs and a triangle that one card joins to them, by sockets of four cards.
BRIDGED = node(
    8,
    dict.fromkeys(combinations(range(8), 2), "SYS")
    | {(0, 1): "NODE NV4", (2, 3): "NODE NV4", (4, 5): "NODE NV1", (5, 6): "NODE NV1"},
    numa=[0, 0, 0, 0, 1, 1, 1, None],
)


@pytest.mark.parametrize(
    ("link", "cards", "expected"),
    [
        ("", (0, 7), True),
        ("nvlink", (0, 2), False),
        ("nvlink", (0, 1, 2, 3), False),
        ("nvlink", (4, 5, 6), True),  # by way of 5
        ("numa", (3, 4), False),
        ("numa", (6, 7), False),  # the node of 7 is unknown
        ("numa", (7,), True),
    ],
)
def test_cards_are_connected_by_nvlinks_or_by_their_numa_node(
    link: str, cards: tuple[int, ...], expected: bool
) -> None:
    assert Links(BRIDGED).fulfils(cards, link) == expected


@given(st.data())
def test_a_connected_set_is_found_if_and_only_if_there_is_one(data: st.DataObject) -> None:
    ways = st.sampled_from(["SYS", "NODE", "PHB NV1", "PIX NV2"])
    numa = data.draw(st.lists(st.sampled_from([0, 1, None]), min_size=6, max_size=6))
    inventory = node(6, {pair: data.draw(ways) for pair in combinations(range(6), 2)}, numa=numa)
    links, names = Links(inventory), range(6)
    size, link = data.draw(st.integers(2, 6)), data.draw(st.sampled_from(["nvlink", "numa"]))
    best = links.best(size, names, free=set(names), link=link)
    every = combinations(names, size)
    assert links.fulfils(best, link) == any(links.fulfils(each, link) for each in every)


def test_if_there_are_too_many_sets_one_is_grown_card_by_card() -> None:
    kinds = dict.fromkeys(combinations(range(9, 13), 2), "PIX")
    inventory = node(20, kinds)
    assert pick(inventory, 4) == [9, 10, 11, 12]
    assert pick(inventory, 5, must=[19]) == [9, 10, 11, 12, 19]
    alike = dict.fromkeys(combinations(range(16), 2), "NV18")
    assert pick(node(16, alike), 8) == list(range(8))


@pytest.mark.parametrize(
    ("name", "size", "taken", "expected"),
    [
        ("hgx-h100", 4, (1,), [4, 5, 6, 7]),
        ("dgx-a100", 2, (0, 1, 4), [2, 3]),
        ("pcie-two-sockets", 4, (0,), [4, 5, 6, 7]),
    ],
)
def test_real_nodes(name: str, size: int, taken: tuple[int, ...], expected: list[int]) -> None:
    inventory = load_inventory(FOLDER / f"{name}.yaml")
    assert pick(inventory, size, *taken) == expected


_nodes = st.integers(2, 7).flatmap(
    lambda count: st.builds(
        lambda kinds, numa: node(
            count, dict(zip(combinations(range(count), 2), kinds, strict=True)), numa=numa
        ),
        st.tuples(*[st.sampled_from(KINDS)] * math.comb(count, 2)),
        st.lists(st.sampled_from([0, 1, None]), min_size=count, max_size=count),
    )
)


@given(_nodes, st.data())
def test_the_best_set_is_the_one_that_exhaustive_search_finds(
    inventory: Inventory, data: st.DataObject
) -> None:
    links = Links(inventory)
    cards = range(len(inventory.cards))
    size = data.draw(st.integers(1, len(cards)))
    must = data.draw(st.sets(st.sampled_from(cards), max_size=size))
    free = data.draw(st.sets(st.sampled_from(cards)))
    cost = [data.draw(st.integers(0, 2)) for _ in cards]

    def rank(found: Sequence[int]) -> tuple[int, ...]:
        worst, total = links.quality(found)
        lost = sum(links.lost_score(each, free) for each in found)
        return -worst, -total, lost, sum(cost[each] for each in found)

    every = [found for found in combinations(cards, size) if must <= set(found)]
    expected = min(every, key=lambda found: (rank(found), found))
    assert links.best(size, cards, free=free, must=must, cost=cost) == expected
    again = Links(inventory).best(size, cards, free=set(free), must=must, cost=cost)
    assert again == expected
