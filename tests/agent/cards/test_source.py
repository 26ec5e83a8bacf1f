from pathlib import Path

import pytest

from agent.cards.health import CardFault, FaultKind, Probe
from agent.cards.inventory import Discovery
from agent.cards.source import FileSource, discover, none_served
from tests.agent.builders import device_table
from tests.agent.nvml_node import NvmlScript


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
    source = FileSource(path)
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


def test_an_edit_that_counts_only_after_a_restart_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "cards.yaml", ONE, OTHER)
    source = FileSource(path)
    write(path, f"{ONE}, health: too hot", f"{OTHER}, model: A30", "uuid: GPU-2, index: 2")
    check(source, stale=True)
    (line,) = caplog.records
    assert (line.getMessage(), vars(line)["cards"]) == (
        "edited cards count after a restart",
        ["GPU-1"],
    )


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
