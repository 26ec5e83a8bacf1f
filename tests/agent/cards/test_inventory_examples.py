"""The cards files that are shipped: data of tests, the demo and the reader."""

from collections import Counter
from pathlib import Path

import pytest

from agent.cards.cards_file import load_inventory

FOLDER = Path(__file__).parents[3] / "deploy/examples/cards"
EXAMPLES = {
    "dgx-a100": ({"NVIDIA A100-SXM4-80GB": 8}, {"NV12": 28}),
    "hgx-h100": ({"NVIDIA H100 80GB HBM3": 8}, {"NV18": 28}),
    "pcie-two-sockets": ({"NVIDIA L40S": 8}, {"PIX": 2, "PXB": 4, "NODE": 6, "SYS": 16}),
    "workstation": ({"NVIDIA RTX A6000": 4}, {"NV4": 2, "PHB": 4}),
    "mixed": (
        {"NVIDIA A100-PCIE-40GB": 2, "NVIDIA A10": 2, "Tesla T4": 2},
        {"NV12": 1, "PIX": 2, "NODE": 4, "SYS": 8},
    ),
}


def test_these_files_are_shipped() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_file_holds_what_its_name_says_as_nvml_would_tell_it(name: str) -> None:
    inventory = load_inventory(FOLDER / f"{name}.yaml")
    found = (
        Counter(card.model for card in inventory.cards),
        Counter(link.kind for link in inventory.links),
    )
    assert found == EXAMPLES[name]
    assert inventory.unlinked() == ()
    assert [card.index for card in inventory.cards] == list(range(len(inventory.cards)))
    buses = [card.bus_id for card in inventory.cards]
    assert buses == sorted(set(buses))  # NVML counts cards in the order of their addresses
    assert all(card.numa is not None for card in inventory.cards)
    numa = {card.index: card.numa for card in inventory.cards}
    for link in inventory.links:
        if not link.kind.startswith("NV"):
            apart = numa[link.cards[0]] != numa[link.cards[1]]
            assert apart == (link.kind == "SYS"), link
