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


def node(name: str) -> Inventory:
    return load_inventory(FOLDER / f"{name}.yaml")


OTHER = tuple(Link((0, at), kind) for at, kind in enumerate(("NODE", "PIX", "SYS"), 1))


@pytest.mark.parametrize(
    ("inventory", "groups"),
    [
        (linked(), []),
        (Inventory((), OTHER), []),
        (linked((5, 6), (1, 2)), [{1, 2}, {5, 6}]),
        (linked(*QUADS), [{0, 1, 2, 3}, {4, 5, 6, 7}]),
        (linked(*pairwise(range(3))), [{0, 1}]),  # a chain: a claim for two gets 0 and 1
        (linked(*pairwise(range(4))), [{0, 1}, {2, 3}]),
        (linked((0, 1), (0, 2), (0, 3)), [{0, 1}]),
        (linked((0, 1), (1, 2), (1, 3), (2, 3)), [{1, 2, 3}]),  # the largest first
        # A DGX-1: two sets of four, and each card has a partner in the other one.
        (linked(*QUADS, *((at, at + 4) for at in range(4))), [{0, 1, 2, 3}, {4, 5, 6, 7}]),
        # One of all links cannot be read.
        (linked(*QUADS - {(0, 1)}), [{4, 5, 6, 7}, {0, 2, 3}]),
        (node("dgx-a100"), [{*range(8)}]),
        (node("hgx-h100"), [{*range(8)}]),
        (node("workstation"), [{0, 1}, {2, 3}]),
        (node("pcie-two-sockets"), []),
    ],
)
def test_groups_are_cards_of_which_each_is_linked_with_each(
    inventory: Inventory, groups: list[set[int]]
) -> None:
    expected = {card: min(group) for group in groups for card in group}
    assert nvlink_groups(inventory) == expected


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
