"""The two files that vcuda-controller reads, ``vcuda.config`` and ``pids.config``, as plain data.

Both are C structures in the byte order of the host. The library's sources define the fields
(tkestack/vcuda-controller, ``include/hijack.h`` and ``src/hijack_call.c``):

``enable``
    0 switches off all limits, that of memory included. It is 0 for whole cards.
``gpu_memory``
    The memory that the library reports to programs for each card, and the limit of their usage.
``utilization``
    Percent of a card. More than 100 overflows the library's arithmetic (from 300 on, with the
    132 multiprocessors of an H100) and may stop the program. So it is 100 for several whole cards,
    too.

    A share of several cards has the same part of each, so ``gpu_memory`` and ``utilization`` are
    its part of one. But the library measures only the container's first card (NVML's index 0), for
    both limits. So a program can use more of the other cards: their memory without limit, except
    that no single allocation may exceed the part, less what is used of the first card; and their
    cores while the first card is idle.
``hard_limit``, ``limit``
    1 and 0 limit a share to ``utilization``. 0 and a percentage allow it more while the rest of the
    card is idle; that is for shares, since whole cards have no limit.
``bus_id``
    PCI bus ID of the first card. The library replaces it by its own, and registers with that.
``driver_version``
    Written for tools; the library reads the version from the kernel.
"""

import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agent.cards.pci import parse_address
from agent.errors import EnforcementError
from agent.holdings.holding import Holding
from contract.demand import CORES_PER_CARD
from contract.errors import quote

CONFIG_NAME = "vcuda.config"
"""File name of the limits."""

PIDS_NAME = "pids.config"
"""File name of the list of host PIDs whose use of the card is the container's."""

MOUNT_PATH = "/etc/vcuda"
"""The folder in which the library looks for both."""

MOST_PIDS = 1024
"""The library reads so many; it does not count the use of further processes."""

# char pod_uid[48]; int limit; char occupied[4044]; char container_name[FILENAME_MAX];
# char bus_id[16]; uint64_t gpu_memory; int utilization, hard_limit, major, minor, enable;
# aligned to 8 by the last four bytes.
_LAYOUT = struct.Struct("=48si4044s4096s16sQiiiii4x")
CONFIG_SIZE = _LAYOUT.size
"""Bytes of ``vcuda.config``: 8240."""

_PID = struct.Struct("=i")
_TEXTS = {"pod_uid": 48, "container_name": 4096, "bus_id": 16}
_DRIVER = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})(?:\.[0-9]+)*\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Hardware:
    """The node's data in the limits file; values that are not known are empty."""

    bus_ids: Callable[[str], str]
    """The PCI bus ID of a card, by its UUID."""
    driver: Callable[[], str]
    block: int
    """Bytes of a memory block."""


class InvalidConfig(ValueError):
    """Bytes that are not a ``vcuda.config`` or ``pids.config``."""


@dataclass(frozen=True, slots=True)
class VcudaConfig:
    """The limits of one container; *memory* is in bytes.

    *bus_id* may be empty. *driver* has major and minor version, or zeros if it is not known.
    """

    pod_uid: str
    container_name: str
    bus_id: str
    memory: int
    utilization: int
    hard_limit: bool = True
    limit: int = 0
    driver: tuple[int, int] = (0, 0)
    enable: bool = True

    def encode(self) -> bytes:
        """Return the bytes of ``vcuda.config``.

        Raises:
            EnforcementError: a text is too long for its field; texts are not truncated.
        """
        return _LAYOUT.pack(
            _text("pod_uid", self.pod_uid),
            self.limit,
            b"",
            _text("container_name", self.container_name),
            _text("bus_id", self.bus_id),
            self.memory,
            self.utilization,
            self.hard_limit,
            *self.driver,
            self.enable,
        )


def decode(data: bytes) -> VcudaConfig:
    """Parse ``vcuda.config``.

    Raises:
        InvalidConfig: it is invalid; the message has the field, the rule and the value.
    """
    if len(data) != CONFIG_SIZE:
        raise InvalidConfig(f"{CONFIG_NAME}: must be {CONFIG_SIZE} bytes, not {len(data)}")
    uid, limit, _, name, bus, memory, cores, hard, major, minor, enable = _LAYOUT.unpack(data)
    return VcudaConfig(
        pod_uid=_read_text("pod_uid", uid),
        container_name=_read_text("container_name", name),
        bus_id=_read_text("bus_id", bus),
        memory=memory,
        utilization=cores,
        hard_limit=bool(hard),
        limit=limit,
        driver=(major, minor),
        enable=bool(enable),
    )


def encode_pids(pids: Iterable[int]) -> bytes:
    """Return the bytes of ``pids.config``: ascending, for the library's binary search."""
    return b"".join(map(_PID.pack, sorted(set(pids))))


def decode_pids(data: bytes) -> tuple[int, ...]:
    """Parse ``pids.config``.

    Raises:
        InvalidConfig: it is truncated.
    """
    if len(data) % _PID.size:
        raise InvalidConfig(
            f"{PIDS_NAME}: must be a multiple of {_PID.size} bytes, not {len(data)}"
        )
    return tuple(pid for (pid,) in _PID.iter_unpack(data))


def config_of(holding: Holding, *, bus_id: str, driver_version: str, block: int) -> VcudaConfig:
    """Return the limits of a container; the module's docstring has the reasons.

    *bus_id* is that of its first card, in any of the usual forms; *driver_version* is in the form
    ``535.104.05``. Both are empty if they are not known. *block* is in bytes.

    Raises:
        EnforcementError: the bus id or the driver version cannot be read.
    """
    soft = None if holding.is_whole else holding.core_limit
    return VcudaConfig(
        pod_uid=holding.uid,
        container_name=holding.ref.container,
        bus_id=legacy_bus_id(bus_id),
        memory=max(holding.memory_limits.values(), default=0) * block,
        utilization=holding.cores_per_card,
        hard_limit=soft is None,
        limit=0 if soft is None else min(CORES_PER_CARD, soft),
        driver=_driver(driver_version),
        enable=not holding.is_whole,
    )


def legacy_bus_id(bus_id: str) -> str:
    """Format a PCI bus id as in NVML's old structure: ``0000:3B:00.0``.

    The field has 15 characters; NVML's new form has 16, since its domain has eight digits, of which
    four are nearly always enough. Equal devices get equal texts.

    Raises:
        EnforcementError: it is not a bus id, or its domain needs eight digits.
    """
    if not bus_id:
        return ""
    address = parse_address(bus_id)
    if address is None:
        raise _unfit("bus_id", f"must be a PCI bus id such as 0000:3B:00.0: {quote(bus_id)}")
    domain, bus, device, function = address
    written = f"{domain:04X}:{bus:02X}:{device:02X}.{function:X}"
    if len(written) >= _TEXTS["bus_id"]:
        most = _TEXTS["bus_id"] - 1
        raise _unfit("bus_id", f"must be at most {most} characters: {quote(written)}")
    return written


def _unfit(field: str, finding: str) -> EnforcementError:
    return EnforcementError(f"{CONFIG_NAME}: {field}: {finding}")


def _driver(version: str) -> tuple[int, int]:
    if not version:
        return 0, 0
    match = _DRIVER.match(version)
    if match is None:
        rule = "must be numbers with dots such as 535.104.05"
        raise _unfit("driver_version", f"{rule}: {quote(version)}")
    return int(match[1]), int(match[2])


def _text(field: str, value: str) -> bytes:
    data = value.encode()
    if len(data) >= _TEXTS[field]:
        most = _TEXTS[field] - 1
        raise _unfit(field, f"must be at most {most} bytes, not {len(data)}: {quote(value)}")
    return data


def _read_text(field: str, data: bytes) -> str:
    try:
        return data.partition(b"\0")[0].decode()
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"{CONFIG_NAME}: {field}: must be UTF-8: {error}") from error
