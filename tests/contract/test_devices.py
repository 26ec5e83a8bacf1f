"""The groups of cards that NVLinks connect, each with each other one."""

from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cards.cards_file import load_inventory
from contract.devices import nvlink_groups
from contract.inventory import Inventory, Link

FOLDER = Path(__file__).parents[2] / "deploy/examples/cards"
QUADS = {*combinations(range(4), 2), *combinations(range(4, 8), 2)}


def linked(*pairs: tuple[int, int]) -> Inventory:
    return Inventory((), tuple(Link(pair, "NV4") for pair in pairs))


@pytest.mark.parametrize(
    ("pairs", "groups"),
    [
        ([], []),
        ([(5, 6), (1, 2)], [{1, 2}, {5, 6}]),
        (QUADS, [{0, 1, 2, 3}, {4, 5, 6, 7}]),
        ([*pairwise(range(3))], [{0, 1}]),  # a chain: a claim for two gets 0 and 1
        ([*pairwise(range(4))], [{0, 1}, {2, 3}]),
        ([(0, 1), (0, 2), (0, 3)], [{0, 1}]),
        ([(0, 1), (1, 2), (1, 3), (2, 3)], [{1, 2, 3}]),  # the largest first
        # A DGX-1: two sets of four, and each card has a partner in the other one.
        ([*QUADS, *((at, at + 4) for at in range(4))], [{0, 1, 2, 3}, {4, 5, 6, 7}]),
        # One of all links cannot be read.
        (QUADS - {(0, 1)}, [{4, 5, 6, 7}, {0, 2, 3}]),
    ],
)
def test_groups(pairs: list[tuple[int, int]], groups: list[set[int]]) -> None:
    expected = {card: min(group) for group in groups for card in group}
    assert nvlink_groups(linked(*pairs)) == expected


def test_other_links_make_no_group() -> None:
    links = tuple(Link((0, at), kind) for at, kind in enumerate(("NODE", "PIX", "SYS"), 1))
    assert nvlink_groups(Inventory((), links)) == {}


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("dgx-a100", [range(8)]),
        ("hgx-h100", [range(8)]),
        ("workstation", [(0, 1), (2, 3)]),
        ("pcie-two-sockets", []),
    ],
)
def test_real_nodes(name: str, groups: list[range]) -> None:
    expected = {card: min(group) for group in groups for card in group}
    assert nvlink_groups(load_inventory(FOLDER / f"{name}.yaml")) == expected


@given(st.sets(st.sampled_from([*combinations(range(8), 2)])))
def test_each_pair_of_a_group_is_connected_and_no_card_is_left_that_would_belong_to_it(
    pairs: set[tuple[int, int]],
) -> None:
    found = nvlink_groups(linked(*pairs))
    groups = [{card for card in found if found[card] == first} for first in {*found.values()}]
    for group in groups:
        assert len(group) > 1
        assert min(group) == found[min(group)]
        assert {*combinations(sorted(group), 2)} <= pairs
        for card in {*range(8)} - found.keys():
            assert not all((min(card, each), max(card, each)) in pairs for each in group)
    assert nvlink_groups(linked(*sorted(pairs, reverse=True))) == found
