"""Cards files: read, written, followed while an agent runs, and those that are shipped."""

from collections import Counter
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cards.cards_file import dump_discovery, load_inventory
from agent.cards.health import CardFault, FaultKind, Probe
from agent.cards.inventory import Discovery, UnservedCard, parse_inventory
from agent.cards.source import FileSource, discover, none_served
from agent.errors import SettingsError
from contract.inventory import Inventory, Link
from tests.agent.builders import card, device_table, patient
from tests.agent.cards_strategy import inventories
from tests.agent.nvml_node import NvmlScript
from tests.examples import share


def _write(folder: Path, content: str | bytes) -> Path:
    path = folder / "cards.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"cards: \xff\xfe", "cannot read {path}: 'utf-8' codec can't decode"),
        (b"cards: [", "{path} is not YAML: "),
        (b"!!python/object:os.system {}", "{path} is not YAML: "),
        (b"\0", "{path} is not YAML: "),
        (b"", "{path}: the cards file must be a mapping with the keys cards and links"),
        (b"cards:\n  - {uuid: GPU-a, index: 0, memory: lots}", "{path}: cards[0].memory: "),
        (b"cards: " + b"[" * 500, ""),
        (b"cards: [{uuid: GPU-a, index: " + b"9" * 5000 + b"}]", ""),
        (b"cards: [{uuid: 2026-13-45, index: 0}]", ""),
        (b"cards: [{uuid: !!set {a, b}, index: 0}]", ""),
        (b"cards: [{uuid: !!bool maybe, index: 0}]", ""),
        (b"cards: [{? [1, 2] : 3}]", ""),
    ],
)
def test_an_invalid_file_is_refused_on_one_line(tmp_path: Path, content: bytes, error: str) -> None:
    path = _write(tmp_path, content)
    with pytest.raises(SettingsError) as caught:
        load_inventory(path)
    assert str(caught.value).startswith("cards: " + error.replace("{path}", str(path)))
    assert "\n" not in str(caught.value)


def test_discovered_cards_are_written_for_people(tmp_path: Path) -> None:
    found = Discovery(
        Inventory((card(0), card(1)), (Link((0, 1), "NV4"),)),
        driver="550.54.15",
        faults=(UnservedCard(3, None, "NVML: GPU is lost"),),
        skipped=(UnservedCard(2, "GPU-2", "in MIG mode"),),
    )
    text = """\
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
    assert dump_discovery(found) == text
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


def write(path: Path, *cards: str) -> Path:
    path.write_text("cards:\n" + "".join(f"- {{memory: 8Gi, {each}}}\n" for each in cards))
    return path


ONE, OTHER = "uuid: GPU-0, index: 0", "uuid: GPU-1, index: 1"


def test_the_cards_of_a_file_have_the_health_in_it(tmp_path: Path) -> None:
    path = write(tmp_path / "cards.yaml", f"{ONE}, health: Healthy", f"{OTHER}, health: Xid 79")
    with FileSource(path).open() as session:
        assert session.watch(["GPU-0"]) == {}
        assert not session.watching
        assert session.wait(0) is None
        assert session.probe("GPU-0") == Probe()
        assert session.probe("GPU-1") == CardFault(FaultKind.ERROR, "Xid 79")


def test_a_cards_file_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "cards.yaml", ONE, OTHER)
    source, reasons = FileSource(path), list[str]()
    source.on_problem = reasons.append
    check(source, stale=False)
    write(path, f"{ONE}, health: too hot")
    check(source, stale=True)
    assert source.probe("GPU-0") == CardFault(FaultKind.ERROR, "too hot")
    assert source.probe("GPU-1") == CardFault(FaultKind.LOST, "no longer in the cards file")
    found = source.discover().inventory
    assert [card.uuid for card in found.cards] == ["GPU-0"]
    check(source, stale=False)
    path.write_text("cards: [")
    check(source, stale=False)
    path.unlink()
    check(source, stale=False)
    assert source.discover().inventory == found
    assert caplog.messages == ["cards file not used, the last one applies"] * 2
    assert reasons[0].startswith(f"cards: {path} is not YAML: ")
    assert reasons[1].startswith(f"cards: cannot read {path}: ")


def test_an_edit_that_counts_only_after_a_restart_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "cards.yaml", ONE, OTHER)
    source = FileSource(path)
    write(
        path,
        f"{ONE}, health: too hot",
        f"{OTHER}, model: A30, busId: 0:3b:0.0",
        "uuid: GPU-2, index: 2",
    )
    check(source, stale=True)
    (line,) = caplog.records
    assert (line.getMessage(), vars(line)["cards"]) == (
        "edited cards count after a restart",
        {"GPU-1": "model, busId"},
    )
    path.write_text("cards: [")
    check(source, stale=True)
    assert source.edited == {"GPU-1": "model, busId"}  # the file before applies


def check(source: FileSource, *, stale: bool) -> None:
    assert source.stale is stale


def test_a_node_without_a_card_to_serve_shows_the_reason(node: NvmlScript) -> None:
    node.card(1, mig=1)
    node.fail("nvmlDeviceGetUUID", 15, card=0)
    found = discover(None)
    assert found.inventory.cards == ()
    assert none_served(found) == (
        "no card can be served: card 0: NVML: GPU is lost; card 1: in MIG mode, which is not served"
    )
    assert none_served(Discovery(device_table(0).inventory)) == (
        "no card can be served: the node has none"
    )


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


@pytest.mark.parametrize("name", sorted({*EXAMPLES, *(each.stem for each in FOLDER.iterdir())}))
def test_the_recorded_cards_files_match_their_names_and_nvml(name: str) -> None:
    inventory = load_inventory(FOLDER / f"{name}.yaml")
    found = (
        Counter(card.model for card in inventory.cards),
        Counter(link.kind for link in inventory.links),
    )
    assert found == EXAMPLES[name]
    assert inventory.unlinked() == ()
    buses = [card.bus_id for card in inventory.cards if not card.is_instance]
    assert buses == sorted(set(buses))  # NVML counts cards in the order of their addresses
    numa = {card.index: card.numa for card in inventory.cards}
    for link in inventory.links:
        if not link.kind.startswith("NV"):
            apart = numa[link.cards[0]] != numa[link.cards[1]]
            assert apart == (link.kind == "SYS"), link
