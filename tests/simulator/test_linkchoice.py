"""How chosen cards are connected, on the shipped cards files."""

from pathlib import Path

import pytest

from agent.cards.cards_file import load_inventory
from placement.cards import Inventory
from simulator.linkchoice import better_set

CARDS = Path(__file__).parents[2] / "deploy" / "examples" / "cards"


@pytest.fixture(scope="module")
def pcie() -> Inventory:
    return load_inventory(CARDS / "pcie-two-sockets.yaml")


@pytest.fixture(scope="module")
def hgx() -> Inventory:
    return load_inventory(CARDS / "hgx-h100.yaml")


def test_a_set_with_a_better_worst_link_is_found(pcie: Inventory, hgx: Inventory) -> None:
    assert better_set(pcie, [0, 4], range(8)) == (0, 1)
    assert better_set(pcie, [0, 1], range(8)) == ()
    assert better_set(pcie, [0, 4], [0, 4, 5]) != ()
    assert better_set(pcie, [0, 4], [0, 4]) == ()
    assert better_set(hgx, [0, 7], range(8)) == ()
    assert better_set(hgx, [0], range(8)) == ()
