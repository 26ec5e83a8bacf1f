from collections import Counter
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cards.cards_file import dump_discovery, load_inventory
from agent.cards.inventory import Discovery, UnservedCard, parse_inventory
from agent.errors import SettingsError
from contract.inventory import Inventory, Link
from tests.agent.builders import card, patient
from tests.agent.cards_strategy import inventories
from tests.examples import share


def _write(folder: Path, content: str | bytes) -> Path:
    path = folder / "cards.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"cards: \xff\xfe", "cards: cannot read {path}: 'utf-8' codec can't decode"),
        *(
            (text.encode(), "cards: {path} is not YAML: ")
            for text in ("cards: [", "!!python/object:os.system {}", "\0")
        ),
        (b"", "cards: {path}: the cards file must be a mapping with the keys cards and links"),
        (b"cards:\n  - {uuid: GPU-a, index: 0, memory: lots}", "cards: {path}: cards[0].memory: "),
        *(
            (text.encode(), "cards: ")
            for text in (
                "cards: " + "[" * 500,
                "cards: [{uuid: GPU-a, index: " + "9" * 5000 + "}]",
                "cards: [{uuid: 2026-13-45, index: 0}]",
                "cards: [{uuid: !!set {a, b}, index: 0}]",
                "cards: [{uuid: !!bool maybe, index: 0}]",
                "cards: [{? [1, 2] : 3}]",
            )
        ),
    ],
)
def test_a_missing_file_is_refused_on_one_line(tmp_path: Path, content: bytes, error: str) -> None:
    path = _write(tmp_path, content)
    with pytest.raises(SettingsError) as caught:
        load_inventory(path)
    assert str(caught.value).startswith(error.replace("{path}", str(path)))
    assert "\n" not in str(caught.value)


def test_discovered_cards_are_written_for_people(tmp_path: Path) -> None:
    found = Discovery(
        Inventory((card(0), card(1)), (Link((0, 1), "NV4"),)),
        driver="550.54.15",
        faults=(UnservedCard(3, None, "NVML: GPU is lost"),),
        skipped=(UnservedCard(2, "GPU-2", "in MIG mode"),),
    )
    text = dump_discovery(found)
    assert (
        text
        == """\
# The cards of one node: a cards file of gpu-turnstile.
# driver 550.54.15
# left out: card 2 (GPU-2): in MIG mode
# left out: card 3 (no UUID): NVML: GPU is lost
cards:
- uuid: GPU-0
  index: 0
  minor: 0
  model: Test
  memory: 2684354560
- uuid: GPU-1
  index: 1
  minor: 1
  model: Test
  memory: 2684354560
links:
- {cards: [0, 1], kind: NV4}
"""
    )
    assert load_inventory(_write(tmp_path, text)) == found.inventory


_reasons = st.builds(
    UnservedCard, st.integers(0, 9), st.none() | st.text(), st.text() | st.just("a\nb: [")
)


@settings(patient, max_examples=share(20))
@given(inventories(most=2), st.text(), st.lists(_reasons, max_size=2))
def test_a_written_file_reads_back_to_the_equal_inventory_whatever_texts_are_in_it(
    inventory: Inventory, driver: str, faults: list[UnservedCard]
) -> None:
    text = dump_discovery(Discovery(inventory, driver, tuple(faults)))
    assert parse_inventory(yaml.safe_load(text.encode().decode())) == inventory


FOLDER = Path(__file__).parents[3] / "deploy/examples/cards"
EXAMPLES = {
    "dgx-a100": ({"NVIDIA A100-SXM4-80GB": 8}, {"NV12": 28}),
    "hgx-h100": ({"NVIDIA H100 80GB HBM3": 8}, {"NV18": 28}),
    "pcie-two-sockets": ({"NVIDIA L40S": 8}, {"PIX": 2, "PXB": 4, "NODE": 6, "SYS": 16}),
    "mig": ({"NVIDIA A100-SXM4-40GB": 1, "NVIDIA A100-SXM4-40GB MIG 1g.5gb": 7}, {}),
    "workstation": ({"NVIDIA RTX A6000": 4}, {"NV4": 2, "PHB": 4}),
    "mixed": (
        {"NVIDIA A100-PCIE-40GB": 2, "NVIDIA A10": 2, "Tesla T4": 2},
        {"NV12": 1, "PIX": 2, "NODE": 4, "SYS": 8},
    ),
}


def test_these_files_are_shipped() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_recorded_cards_files_match_their_names_and_nvml(name: str) -> None:
    inventory = load_inventory(FOLDER / f"{name}.yaml")
    found = (
        Counter(card.model for card in inventory.cards),
        Counter(link.kind for link in inventory.links),
    )
    assert found == EXAMPLES[name]
    assert inventory.unlinked() == ()
    cards = [card for card in inventory.cards if not card.is_instance]
    first = 1 if name == "mig" else 0  # card 0 is in MIG mode there
    assert [card.index for card in cards] == list(range(first, first + len(cards)))
    buses = [card.bus_id for card in cards]
    assert buses == sorted(set(buses))  # NVML counts cards in the order of their addresses
    assert all(card.numa is not None for card in inventory.cards)
    numa = {card.index: card.numa for card in inventory.cards}
    for link in inventory.links:
        if not link.kind.startswith("NV"):
            apart = numa[link.cards[0]] != numa[link.cards[1]]
            assert apart == (link.kind == "SYS"), link
