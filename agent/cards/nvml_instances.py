"""The MIG instances of a card, and the device nodes that give access to them.

An instance here is a GPU instance with one compute instance. Several compute instances of one GPU
instance share its memory, so they cannot be served as cards.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

from agent.cards.nvml_calls import memory_of, or_none
from agent.errors import SettingsError

PROC = Path("/proc")

NO_INSTANCE = 0xFFFFFFFF
"""NVML's value for the ID of a GPU instance if there is no ID.

An event with it is about the whole card. A process with it may be in any instance: the driver does
not report in which.
"""

_INDICES_PER_CARD = 1000
_MINORS = "driver/nvidia-caps/mig-minors"
_MINOR = re.compile(r"(?P<capability>gpu[0-9]+/gi[0-9]+/(?:ci[0-9]+/)?access) (?P<minor>[0-9]+)\Z")


class MigInstance(NamedTuple):
    """One MIG instance of a card.

    Attributes:
        handle: NVML's handle of it.
        gpu: ID of its GPU instance, unique on the card; ``None`` if it cannot be read.
        compute: ID of its compute instance, unique in the GPU instance; ``None`` if it cannot be
            read.
    """

    handle: Any
    gpu: int | None
    compute: int | None

    def index_on(self, card: int) -> int:
        """Return the index of the instance of a card, which stays the same as long as it exists.

        NVML's own index of an instance may change when another one is destroyed.
        """
        return _INDICES_PER_CARD * (card + 1) + (self.gpu or 0)


def list_instances(card: Any) -> list[MigInstance]:
    """List the instances of a card in MIG mode, as far as NVML shows them to this process."""
    found = []
    for index in range(or_none(pynvml.nvmlDeviceGetMaxMigDeviceCount, card) or 0):
        handle = or_none(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, card, index)
        if handle is not None:
            gpu = or_none(pynvml.nvmlDeviceGetGpuInstanceId, handle)
            compute = or_none(pynvml.nvmlDeviceGetComputeInstanceId, handle)
            found.append(MigInstance(handle, gpu, compute))
    return found


def memory_of_instance(handle: Any) -> tuple[int, int]:
    """Return an instance's memory, and how much of it the driver keeps, in bytes."""
    try:
        return memory_of(handle)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        return pynvml.nvmlDeviceGetMemoryInfo(handle).total, 0


def read_capabilities(proc: Path) -> dict[str, int]:
    """Read the minor numbers of the driver's capabilities, by name: ``gpu0/gi7/access``.

    The format is that of NVIDIA's MIG user guide, "Device Nodes and Capabilities".
    """
    try:
        lines = (proc / _MINORS).read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    found = filter(None, map(_MINOR.match, lines))
    return {each["capability"]: int(each["minor"]) for each in found}


def capability_nodes(capabilities: dict[str, int], minor: int, instance: MigInstance) -> list[str]:
    """Return the device nodes of a GPU instance and its compute instance.

    *minor* is the minor number of the card.

    Raises:
        SettingsError: the driver does not list them.
    """
    prefix = f"gpu{minor}/gi{instance.gpu}"
    names = f"{prefix}/access", f"{prefix}/ci{instance.compute}/access"
    missing = [name for name in names if name not in capabilities]
    if missing:
        raise SettingsError(f"{PROC / _MINORS} does not list {' and '.join(missing)}")
    return [f"/dev/nvidia-caps/nvidia-cap{capabilities[name]}" for name in names]
