"""Xids, the driver's error numbers: what they are called and which take a reset. Pure data.

Source: NVIDIA, "Xid Errors", the Xid catalog
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html).
"""

from collections.abc import Mapping

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""What a faulty program causes on a sound card; the next container finds it as good as new."""

RESET_XIDS = frozenset({46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158})
"""What a card does not get over without a reset: the catalog's immediate action is ``RESET_GPU``
or ``RESTART_BM``, or (48, 74) a workflow that ends in one."""

_NAMES: Mapping[int, str] = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    43: "GPU stopped processing",
    45: "preemptive cleanup after earlier errors",
    46: "GPU timeout",
    48: "double-bit ECC error",
    61: "PMU breakpoint",
    62: "PMU halt",
    63: "memory row or page set aside",
    64: "memory row or page could not be set aside",
    68: "NVDEC0 exception",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "many single-bit ECC errors",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "GSP RPC timeout",
    120: "GSP error",
    121: "C2C link error",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "GPU initialization error",
    154: "GPU recovery action changed",
    155: "NVLink software-defined error",
    156: "resource retired",
    157: "resource could not be retired",
    158: "GPU fatal timeout",
}


def describe(xid: int) -> str:
    """Write a number with its name, where it has one: ``Xid 79 (GPU has fallen off the bus)``."""
    name = _NAMES.get(xid)
    return f"Xid {xid}" if name is None else f"Xid {xid} ({name})"
