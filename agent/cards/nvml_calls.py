"""Calls of NVML: which errors end a session, and which mean that a card has no such value.

Only the modules ``agent.cards.nvml*`` import ``pynvml``.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pynvml

from agent.errors import DriverUnloaded, Unavailable

# NVML as a whole does not work: the same call for another card would fail, too.
SESSION_ERRORS = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
_HINTS: Mapping[int, str] = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: ": libnvidia-ml.so.1 cannot be loaded",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: " The driver was replaced: restart the agent",
}
_CARD_ERRORS = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})


def in_mig_mode(handle: Any) -> bool:
    """Return whether a card is partitioned by MIG."""
    modes = query(pynvml.nvmlDeviceGetMigMode, handle)
    return modes is not None and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def query(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call NVML for an optional value; return ``None`` if card or driver do not have it.

    For a card that is lost or needs a reset it still raises.
    """
    return or_none(call, *arguments, fatal=SESSION_ERRORS | _CARD_ERRORS)


def supported(call: Callable[[Any], Any], handle: Any) -> Any:
    """Call NVML; return ``None`` if the card does not support the call."""
    try:
        return call(handle)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        return None


def memory_of(handle: Any) -> tuple[int, int]:
    """Return a card's memory, and how much of it driver and firmware keep, in bytes.

    With ECC the total is already without the parity bits. Drivers before R510 do not report what
    they keep.
    """
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        return pynvml.nvmlDeviceGetMemoryInfo(handle).total, 0
    return memory.total, memory.reserved


def or_none(
    call: Callable[..., Any], *arguments: Any, fatal: Collection[int] = SESSION_ERRORS
) -> Any:
    """Call NVML; return ``None`` for any error that is not *fatal*."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in fatal:
            raise
        return None


def bus_id_of(pci: Any) -> str:
    """Format a PCI address as the kernel does; NVML writes the domain with eight digits."""
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


@contextmanager
def translated() -> Iterator[None]:
    """Translate NVML's exceptions."""
    try:
        yield
    except pynvml.NVMLError as error:
        kind = DriverUnloaded if error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED else Unavailable
        raise kind(f"NVML: {error}{_HINTS.get(error.value, '')}") from error
