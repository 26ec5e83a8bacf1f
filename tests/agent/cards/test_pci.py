from pathlib import Path

import pytest

from agent.cards.pci import PciDevices

ADDRESS = "0000:07:00.0"


def devices(tmp_path: Path, name: str, content: bytes) -> PciDevices:
    """One device with one attribute."""
    folder = tmp_path / "bus/pci/devices" / ADDRESS
    folder.mkdir(parents=True)
    (folder / name).write_bytes(content)
    return PciDevices(tmp_path)


@pytest.mark.parametrize(
    ("content", "node"),
    [(b"0\n", 0), (b"7\n", 7), (b"-1\n", None), (b"", None), (b"x\n", None), (b"\xff", None)],
)
def test_the_kernel_knows_a_numa_node_or_not(
    tmp_path: Path, content: bytes, node: int | None
) -> None:
    assert devices(tmp_path, "numa_node", content).numa_node(ADDRESS) == node


@pytest.mark.parametrize(
    ("content", "switch"), [(b"0x068000\n", True), (b"0x030200\n", False), (b"", False)]
)
def test_an_nvswitch_is_known_by_its_class(tmp_path: Path, content: bytes, switch: bool) -> None:
    assert devices(tmp_path, "class", content).is_switch(ADDRESS) is switch


def test_a_device_that_is_not_there_is_not_known(tmp_path: Path) -> None:
    assert PciDevices(tmp_path).numa_node(ADDRESS) is None
    assert not PciDevices(tmp_path).is_switch(ADDRESS)
