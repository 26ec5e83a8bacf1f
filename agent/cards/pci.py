"""PCI devices, read from sysfs."""

from pathlib import Path

SYSFS = Path("/sys")

# PCI: a bridge of another kind; so NVSwitches name themselves.
_SWITCH_CLASS = "0x0680"


class PciDevices:
    """The PCI devices of the node, by address such as ``0000:07:00.0``."""

    def __init__(self, sysfs: Path = SYSFS) -> None:
        self._folder = sysfs / "bus/pci/devices"

    def numa_node(self, address: str) -> int | None:
        """Return the NUMA node whose CPUs are next to a device, ``None`` when not known."""
        node = self._attribute(address, "numa_node")
        return int(node) if node.isdecimal() else None  # the kernel's "not known" is -1

    def is_switch(self, address: str) -> bool:
        """Whether a device at the end of an NVLink is an NVSwitch."""
        return self._attribute(address, "class").startswith(_SWITCH_CLASS)

    def _attribute(self, address: str, name: str) -> str:
        try:
            return (self._folder / address / name).read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            return ""
