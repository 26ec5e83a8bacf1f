"""PCI devices: parsing of their addresses, and their attributes in sysfs."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

SYSFS = Path("/sys")

# PCI class "other bridge", the class of NVSwitches.
_SWITCH_CLASS = "0x0680"


_ADDRESS = re.compile(
    r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])\Z", re.ASCII | re.IGNORECASE
)


class PciAddress(NamedTuple):
    """A PCI address; addresses sort as in CUDA's ``PCI_BUS_ID`` order and in the kernel."""

    domain: int
    bus: int
    device: int
    function: int


def parse_address(text: str) -> PciAddress | None:
    """Parse an address in any of the usual forms, such as ``0000:3B:00.0``; else ``None``."""
    match = _ADDRESS.match(text)
    return PciAddress(*(int(part or "0", 16) for part in match.groups())) if match else None


def sort_by_address(cards: Iterable[str], bus_ids: Mapping[str, str]) -> tuple[str, ...]:
    """Sort cards as CUDA does with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.

    They keep their order if an address is missing: in a cards file they are optional.
    """
    cards = tuple(cards)
    known = [(address, each) for each in cards if (address := parse_address(bus_ids.get(each, "")))]
    if len(known) < len(cards):
        return cards
    return tuple(card for _, card in sorted(known, key=lambda each: each[0]))


def numa_node(address: str, sysfs: Path) -> int | None:
    """Return the NUMA node whose CPUs are next to a device; ``None`` if it is not known."""
    node = _attribute(address, "numa_node", sysfs)
    return int(node) if node.isdecimal() else None  # the kernel writes -1 for "not known"


def pcie_root(bus_id: str, sysfs: Path = SYSFS) -> str:
    """Return the PCIe root of a device, such as ``pci0000:00``; empty if it is not known."""
    address = parse_address(bus_id)
    if address is None:
        return ""
    name = "{:04x}:{:02x}:{:02x}.{}".format(*address)
    parts = (sysfs / "bus/pci/devices" / name).resolve().relative_to(sysfs.resolve()).parts
    return next((each for each in parts if each.startswith("pci") and ":" in each), "")


def is_switch(address: str, sysfs: Path) -> bool:
    """Return whether a device at the end of an NVLink is an NVSwitch."""
    return _attribute(address, "class", sysfs).startswith(_SWITCH_CLASS)


def _attribute(address: str, name: str, sysfs: Path) -> str:
    """Read an attribute of a device in sysfs; *address* is in the form ``0000:07:00.0``."""
    try:
        return (sysfs / "bus/pci/devices" / address / name).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
