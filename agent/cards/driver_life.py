"""Names the life of the GPU's driver: from the load of its kernel module to the next one."""

from pathlib import Path

from agent.cards.pci import SYSFS

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def driver_life(boot_id: Path = _BOOT_ID, sysfs: Path = SYSFS) -> str:
    """Return what changes with each boot and each load of the module; empty if not known.

    The kernel numbers what it shows in sysfs upwards, so a module that is loaded again has a
    folder of another inode. Where there is no such folder (WSL) the boot alone counts.
    """
    try:
        boot = boot_id.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    try:
        module = (sysfs / "module/nvidia").stat().st_ino
    except OSError:
        module = 0
    return f"{boot}-{module}" if boot else ""
