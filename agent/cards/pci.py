"""PCI devices: how their addresses are written, and what sysfs says of them."""

import re
from pathlib import Path
from typing import NamedTuple

SYSFS = Path("/sys")

# PCI: a bridge of another kind; so NVSwitches name themselves.
_SWITCH_CLASS = "0x0680"


_ADDRESS = re.compile(
    r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])\Z", re.ASCII | re.IGNORECASE
)


class PciAddress(NamedTuple):
    """Where a device is; addresses compare as CUDA's ``PCI_BUS_ID`` and the kernel order them."""

    domain: int
    bus: int
    device: int
    function: int


def parse_address(text: str) -> PciAddress | None:
    """Read an address in any of the usual forms, such as ``0000:3B:00.0``; else ``None``."""
    match = _ADDRESS.match(text)
    return PciAddress(*(int(part or "0", 16) for part in match.groups())) if match else None


def numa_node(address: str, sysfs: Path) -> int | None:
    """Return the NUMA node whose CPUs are next to a device, ``None`` when not known."""
    node = _attribute(address, "numa_node", sysfs)
    return int(node) if node.isdecimal() else None  # the kernel's "not known" is -1


def is_switch(address: str, sysfs: Path) -> bool:
    """Whether a device at the end of an NVLink is an NVSwitch."""
    return _attribute(address, "class", sysfs).startswith(_SWITCH_CLASS)


def _attribute(address: str, name: str, sysfs: Path) -> str:
    """Read of a device, by an address such as ``0000:07:00.0``, what the kernel says of it."""
    try:
        return (sysfs / "bus/pci/devices" / address / name).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
