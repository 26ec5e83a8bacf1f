"""The GPU driver, through NVML: cards, links, probes, events.

Only this module and :mod:`agent.cards.nvml_use` import ``pynvml``.
"""

import ctypes
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

from agent.cards.health import CardFault, FaultKind, Probe, xid_fault
from agent.cards.inventory import (
    Discovery,
    UnservedCard,
    check_distinct,
    parse_card,
    without_memory,
)
from agent.cards.pci import SYSFS, is_switch, numa_node
from agent.errors import DriverUnloaded, SettingsError, Unavailable
from contract.inventory import Card, Inventory, Link

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
_CARD_FAULTS: Mapping[int, FaultKind] = {
    pynvml.NVML_ERROR_GPU_IS_LOST: FaultKind.LOST,
    pynvml.NVML_ERROR_NOT_FOUND: FaultKind.LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: FaultKind.RESET,
}
_LEVELS: Mapping[int, str] = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "PIX",  # two chips on one board, behind its bridge
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}
# nvmlDeviceGpuRecoveryAction_t, the value of the field of that name (driver R565 and newer).
_RECOVERY_ACTION = 230
_ACTIONS: Mapping[int, str] = {
    0: "",
    1: "a reset of the card",
    2: "a reboot of the node",
    3: "an end of peer-to-peer traffic",
    4: "an end of all work and a reset of the card",
    5: "a recovery of the IMEX domain",
    6: "a reset of the bus",
    7: "a reboot of the system",
}
_EVENTS = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
_NUMA_WORDS = 16  # of 64 nodes each


class NvmlSource:
    """Opens sessions with the driver."""

    def __init__(self, sysfs: Path = SYSFS) -> None:
        self._sysfs = sysfs

    @contextmanager
    def open(self) -> Iterator["NvmlSession"]:
        """Start a session, and end it; it is no error if the driver was unloaded meanwhile.

        Raises:
            Unavailable: the library or the driver is missing or does not work.
        """
        with translated():
            pynvml.nvmlInit()
        session = NvmlSession(self._sysfs)
        try:
            yield session
        finally:
            session.close()


class NvmlSession:
    """A session between ``nvmlInit`` and ``nvmlShutdown``; for one thread.

    Every method except ``close`` raises ``Unavailable`` if NVML itself does not work.
    """

    stale = False

    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs
        self._events: Any = None
        self._watched: dict[int, str] = {}

    def close(self) -> None:
        """End the session."""
        with suppress(pynvml.NVMLError):
            if self._events is not None:
                pynvml.nvmlEventSetFree(self._events)
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    # --- discovery ------------------------------------------------------------------------

    def discover(self) -> Discovery:
        """Read every card; one that cannot be read is listed as a fault."""
        cards: list[Card] = []
        handles: dict[int, Any] = {}
        faults: list[UnservedCard] = []
        skipped: list[UnservedCard] = []
        with translated():
            driver = _or_none(pynvml.nvmlSystemGetDriverVersion) or ""
            for index in range(pynvml.nvmlDeviceGetCount()):
                uuid = None
                try:
                    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                    uuid = _supported(pynvml.nvmlDeviceGetUUID, handle)
                    if in_mig_mode(handle):
                        skipped.append(
                            UnservedCard(index, uuid, "in MIG mode, which is not served")
                        )
                        continue
                    card = self._card(index, uuid, handle)
                    check_distinct([*cards, card])
                except pynvml.NVMLError as error:
                    if error.value in SESSION_ERRORS:
                        raise
                    faults.append(UnservedCard(index, uuid, f"NVML: {error}"))
                except (SettingsError, UnicodeDecodeError) as error:
                    faults.append(UnservedCard(index, uuid, str(error)))
                else:
                    cards.append(card)
                    handles[index] = handle
            links = self._links(cards, handles)
        return Discovery(Inventory(tuple(cards), links), driver, tuple(faults), tuple(skipped))

    def _card(self, index: int, uuid: str | None, handle: Any) -> Card:
        """Read one card; its values must follow the rules of a cards file.

        Raises:
            SettingsError: a value breaks a rule, or the card does not support a call that is
                needed, such as one with unified memory, or in WSL.
        """
        pci = _supported(pynvml.nvmlDeviceGetPciInfo, handle)
        bus_id = "" if pci is None else _bus_id(pci)
        minor = _supported(pynvml.nvmlDeviceGetMinorNumber, handle)
        memory = _supported(_memory, handle)
        needed = {("UUID", "uuid"): uuid, ("minor number", "device"): minor}
        needed["memory", "memory"] = memory
        missing = [names for names, value in needed.items() if value is None]
        if missing:
            names, fields = map(" and ".join, zip(*missing, strict=True))
            raise SettingsError(
                f"NVML does not report its {names}: list it in a cards file, with {fields} "
                "(docs/reference.md#cards-files)"
            )
        total, reserved = memory
        model = _supported(pynvml.nvmlDeviceGetName, handle)
        card = parse_card(
            {
                "uuid": uuid,
                "index": index,
                "minor": minor,
                "memory": total,
                "numa": self._numa(bus_id, handle),
                "busId": bus_id,
            }
            | ({} if model is None else {"model": model}),
            f"card {index}",
        )
        return without_memory(card, reserved)

    def _numa(self, bus_id: str, handle: Any) -> int | None:
        """Find the NUMA node whose CPUs are next to the card.

        ``nvmlDeviceGetNumaNodeId`` is not used: on Grace Hopper it returns the node of the card's
        own memory, which has no CPU that the kubelet could choose.
        """
        node = numa_node(bus_id, self._sysfs)
        if node is not None:
            return node
        words = _or_none(
            pynvml.nvmlDeviceGetMemoryAffinity,
            handle,
            _NUMA_WORDS,
            pynvml.NVML_AFFINITY_SCOPE_NODE,
        )
        mask = sum(word << (64 * index) for index, word in enumerate(words or ()))
        return mask.bit_length() - 1 if mask.bit_count() == 1 else None

    def _links(self, cards: list[Card], handles: Mapping[int, Any]) -> tuple[Link, ...]:
        """Find the PCIe path and the NVLinks of each pair of cards, as far as NVML reports them."""
        ends = {card.index: self._nvlinks(handles[card.index]) for card in cards}
        links = []
        for one, other in combinations(cards, 2):
            ends_of_one, ends_of_other = ends[one.index], ends[other.index]
            # Links to NVSwitches reach every other card that has such links.
            lanes = max(ends_of_one.direct[other.bus_id], ends_of_other.direct[one.bus_id])
            lanes += min(ends_of_one.switched, ends_of_other.switched)
            level = _or_none(
                pynvml.nvmlDeviceGetTopologyCommonAncestor,
                handles[one.index],
                handles[other.index],
            )
            pair, pcie = (one.index, other.index), _LEVELS.get(-1 if level is None else level)
            if pcie is not None:
                links.append(Link(pair, pcie))
            if lanes:
                links.append(Link(pair, f"NV{lanes}"))
        return tuple(links)

    def _nvlinks(self, handle: Any) -> "_NvlinkEnds":
        """Count the active NVLinks of a card: to each other card, and to switches."""
        direct: Counter[str] = Counter()
        switched = 0
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            if not _or_none(pynvml.nvmlDeviceGetNvLinkState, handle, link):
                continue
            kind = _or_none(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
            if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                switched += 1
                continue
            remote = _or_none(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            if remote is None:
                continue
            bus_id = _bus_id(remote)
            # Drivers before R460 do not report the type of the remote device.
            if kind is None and is_switch(bus_id, self._sysfs):
                switched += 1
            else:
                direct[bus_id] += 1
        return _NvlinkEnds(direct, switched)

    # --- health ---------------------------------------------------------------------------

    @property
    def watching(self) -> bool:
        """Whether :meth:`wait` can return an event."""
        return self._events is not None

    def watch(self, uuids: Collection[str]) -> dict[str, str]:
        """Subscribe to Xids and double-bit ECC errors; return the reasons of failures, by UUID."""
        failures: dict[str, str] = {}
        with translated():
            try:
                events = pynvml.nvmlEventSetCreate()
            except pynvml.NVMLError as error:
                if error.value in SESSION_ERRORS:
                    raise
                return dict.fromkeys(uuids, f"NVML: {error}")
            self._events = events
            for uuid in uuids:
                try:
                    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                    types = _EVENTS & pynvml.nvmlDeviceGetSupportedEventTypes(handle)
                    if types:
                        pynvml.nvmlDeviceRegisterEvents(handle, types, events)
                        self._watched[_address(handle)] = uuid
                    else:
                        failures[uuid] = "it has neither Xid nor ECC events"
                except pynvml.NVMLError as error:
                    if error.value in SESSION_ERRORS:
                        raise
                    failures[uuid] = f"NVML: {error}"
            if not self._watched:  # NVML cannot wait for an empty event set
                self._events = None
                pynvml.nvmlEventSetFree(events)
        return failures

    def wait(self, seconds: float) -> tuple[str, CardFault] | None:
        """Wait for an event; return the card's UUID and the fault, or ``None``.

        Raises:
            Unavailable: waiting failed, or the event belongs to no known card; the session should
                be started again and every card probed.
        """
        with translated():
            try:
                data = pynvml.nvmlEventSetWait(self._events, int(seconds * 1000))
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_TIMEOUT:
                    return None
                raise
        uuid = self._watched.get(_address(data.device))
        if uuid is None:
            raise Unavailable("NVML: an event of an unknown card")
        if data.eventType == pynvml.nvmlEventTypeXidCriticalError:
            return uuid, xid_fault(int(data.eventData))
        return uuid, CardFault(FaultKind.ECC, "double-bit ECC error")

    def probe(self, uuid: str) -> Probe | CardFault:
        """Probe a card; return the result, or the fault because of which there is none."""
        with translated():
            try:
                handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                pynvml.nvmlDeviceGetMemoryInfo(handle)
                if in_mig_mode(handle):
                    return CardFault(FaultKind.MIG, "in MIG mode, which is not served")
                return _probe(handle)
            except pynvml.NVMLError as error:
                if error.value in SESSION_ERRORS:
                    raise
                if error.value == pynvml.NVML_ERROR_NOT_SUPPORTED:
                    return Probe()  # the card has responded, and can report nothing more
                return CardFault(_CARD_FAULTS.get(error.value, FaultKind.ERROR), f"NVML: {error}")


class _NvlinkEnds(NamedTuple):
    """The other ends of a card's NVLinks.

    Attributes:
        direct: number of links to each card, by bus ID.
        switched: number of links to NVSwitches.
    """

    direct: Counter[str]
    switched: int


def _probe(handle: Any) -> Probe:
    rows = _query(pynvml.nvmlDeviceGetRemappedRows, handle)  # Ampere and newer
    if rows is None:
        pending, failed = bool(_query(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)), 0
    else:
        _, _, pending, failed = rows
    return Probe(
        uncorrectable=_query(
            pynvml.nvmlDeviceGetTotalEccErrors,
            handle,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        ),
        action=_action(handle),
        pending=bool(pending),
        defect="memory rows could not be remapped" if failed else "",
    )


def _action(handle: Any) -> str | None:
    values = _query(pynvml.nvmlDeviceGetFieldValues, handle, [_RECOVERY_ACTION])
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    action = values[0].value.uiVal
    return _ACTIONS.get(action, f"recovery action {action}")


def in_mig_mode(handle: Any) -> bool:
    """Return whether a card is partitioned by MIG."""
    modes = _query(pynvml.nvmlDeviceGetMigMode, handle)
    return modes is not None and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def _query(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call NVML for an optional value; return ``None`` if card or driver do not have it.

    For a card that is lost or needs a reset it still raises.
    """
    return _or_none(call, *arguments, fatal=SESSION_ERRORS | _CARD_ERRORS)


def _supported(call: Callable[[Any], Any], handle: Any) -> Any:
    """Call NVML; return ``None`` if the card does not support the call."""
    try:
        return call(handle)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        return None


def _memory(handle: Any) -> tuple[int, int]:
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


def _or_none(
    call: Callable[..., Any], *arguments: Any, fatal: Collection[int] = SESSION_ERRORS
) -> Any:
    """Call NVML; return ``None`` for any error that is not *fatal*."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in fatal:
            raise
        return None


def _bus_id(pci: Any) -> str:
    """Format a PCI address as the kernel does; NVML writes the domain with eight digits."""
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def _address(handle: Any) -> int:
    """Return the identity of a handle: a pointer that stays the same during a session."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


@contextmanager
def translated() -> Iterator[None]:
    """Translate NVML's exceptions."""
    try:
        yield
    except pynvml.NVMLError as error:
        kind = DriverUnloaded if error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED else Unavailable
        raise kind(f"NVML: {error}{_HINTS.get(error.value, '')}") from error
