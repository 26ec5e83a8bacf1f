"""How chosen cards are connected, on the shipped cards files."""

from pathlib import Path

import pytest

from agent.cards.cards_file import load_inventory
from placement.cards import Inventory
from simulator.linkchoice import better_set, links_of, numa_of
from tests.agent.builders import device_table

CARDS = Path(__file__).parents[2] / "deploy" / "examples" / "cards"


@pytest.fixture(scope="module")
def pcie() -> Inventory:
    return load_inventory(CARDS / "pcie-two-sockets.yaml")


@pytest.fixture(scope="module")
def hgx() -> Inventory:
    return load_inventory(CARDS / "hgx-h100.yaml")


def test_links_of_one_kind_are_one_word_and_others_are_counted_best_first(
    pcie: Inventory, hgx: Inventory
) -> None:
    assert links_of(hgx, [0, 1, 4]) == "NV18"
    assert links_of(hgx, [3]) == ""
    assert links_of(hgx, []) == ""
    kinds = {link.cards: link.kind for link in pcie.links}
    assert kinds[0, 1] == "PIX"
    assert kinds[0, 4] == kinds[1, 4] == "SYS"
    assert links_of(pcie, [0, 1, 4]) == "1 PIX, 2 SYS"


def test_numa_nodes_are_named_once(hgx: Inventory) -> None:
    assert numa_of(hgx, [0, 1]) == "0"
    assert numa_of(hgx, [5, 1]) == "0, 1"
    assert numa_of(device_table(2).inventory, [0]) == "?"
    assert numa_of(hgx, []) == ""


def test_a_set_with_a_better_worst_link_is_found(pcie: Inventory, hgx: Inventory) -> None:
    assert better_set(pcie, [0, 4], range(8)) == (0, 1)
    assert better_set(pcie, [0, 1], range(8)) == ()
    assert better_set(pcie, [0, 4], [0, 4, 5]) != ()
    assert better_set(pcie, [0, 4], [0, 4]) == ()
    assert better_set(hgx, [0, 7], range(8)) == ()
    assert better_set(hgx, [0], range(8)) == ()
