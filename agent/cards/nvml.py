"""The GPU driver, through NVML: cards, probes, events."""

import ctypes
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
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
from agent.cards.nvml_calls import (
    SESSION_ERRORS,
    bus_id_of,
    in_mig_mode,
    memory_of,
    or_none,
    query,
    supported,
    translated,
)
from agent.cards.nvml_instances import (
    NO_INSTANCE,
    PROC,
    MigInstance,
    capability_nodes,
    list_instances,
    memory_of_instance,
    read_capabilities,
)
from agent.cards.nvml_links import find_links
from agent.cards.pci import SYSFS, numa_node
from agent.errors import SettingsError, Unavailable
from contract.inventory import Card, Inventory, is_instance_uuid

_CARD_FAULTS: Mapping[int, FaultKind] = {
    pynvml.NVML_ERROR_GPU_IS_LOST: FaultKind.LOST,
    pynvml.NVML_ERROR_NOT_FOUND: FaultKind.LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: FaultKind.RESET,
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
_NONE_VISIBLE = "in MIG mode, and the agent sees no instance of it"
_SHARED_MEMORY = "a compute instance that shares the memory of its GPU instance with others"
_VOLTA = (7, 0)
_NUMA_WORDS = 16  # of 64 nodes each


class NvmlSource:
    """Opens sessions with the driver.

    With *mig* they serve the MIG instances of cards, with *mps* only cards that MPS can limit.
    """

    def __init__(
        self, sysfs: Path = SYSFS, *, proc: Path = PROC, mig: bool = False, mps: bool = False
    ) -> None:
        self._sysfs = sysfs
        self._proc = proc
        self._mig = mig
        self._mps = mps

    @contextmanager
    def open(self) -> Iterator["NvmlSession"]:
        """Start a session, and end it; it is no error if the driver was unloaded meanwhile.

        Raises:
            Unavailable: the library or the driver is missing or does not work.
        """
        with translated():
            pynvml.nvmlInit()
        session = NvmlSession(self._sysfs, self._proc, mig=self._mig, mps=self._mps)
        try:
            yield session
        finally:
            session.close()


class NvmlSession:
    """A session between ``nvmlInit`` and ``nvmlShutdown``; for one thread.

    Every method except ``close`` raises ``Unavailable`` if NVML itself does not work.
    """

    def __init__(self, sysfs: Path, proc: Path, *, mig: bool, mps: bool) -> None:
        self._sysfs = sysfs
        self._proc = proc
        self._mig = mig
        self._mps = mps
        self._events: Any = None
        self._watched: dict[int, list[_Watched]] = {}
        self.stale = False
        """Whether the MIG instances of a card have changed."""

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
        found, handles = _Findings(), dict[int, Any]()
        with translated():
            driver = or_none(pynvml.nvmlSystemGetDriverVersion) or ""
            for index in range(pynvml.nvmlDeviceGetCount()):
                instances: list[MigInstance] = []
                with found.reading(index) as card:
                    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                    card.uuid = supported(pynvml.nvmlDeviceGetUUID, handle)
                    if self._mps and (reason := _too_old(handle)):
                        found.skip(card, reason)
                    elif not in_mig_mode(handle):
                        found.add(self._card(index, card.uuid, handle))
                        handles[index] = handle
                    elif not self._mig:
                        found.skip(card, "in MIG mode, which is not served")
                    else:
                        instances = list_instances(handle)
                        if not instances:
                            found.skip(card, _NONE_VISIBLE)
                if instances:
                    self._read_instances(index, handle, instances, found)
            cards = [card for card in found.cards if card.index in handles]
            links = find_links(cards, handles, self._sysfs)
        in_order = tuple(sorted(found.cards, key=lambda card: card.index))
        return Discovery(
            Inventory(in_order, links), driver, tuple(found.faults), tuple(found.skipped)
        )

    def _read_instances(
        self, index: int, handle: Any, instances: list[MigInstance], found: "_Findings"
    ) -> None:
        """Read the MIG instances of the card with this index and handle."""
        capabilities = read_capabilities(self._proc)
        for each in instances:
            with found.reading(index) as instance:
                instance.uuid = supported(pynvml.nvmlDeviceGetUUID, each.handle)
                if each.gpu is None or each.compute is None:
                    raise SettingsError("NVML does not report the IDs of this MIG instance")
                if [other.gpu for other in instances].count(each.gpu) > 1:
                    found.skip(instance, _SHARED_MEMORY)
                    continue
                read = self._card(each.index_on(index), instance.uuid, each.handle, parent=handle)
                nodes = capability_nodes(capabilities, read.minor, each)
                found.add(replace(read, capabilities=tuple(nodes)))

    def _card(
        self, index: int, uuid: str | None, handle: Any, *, parent: Any | None = None
    ) -> Card:
        """Read one card; its values must follow the rules of a cards file.

        *parent* is the handle of a MIG instance's card, which has the PCI address, the minor
        number and the NUMA node.

        Raises:
            SettingsError: a value breaks a rule, or the card does not support a call that is
                needed, such as one with unified memory, or in WSL.
        """
        physical, read_memory = handle, memory_of
        if parent is not None:
            physical, read_memory = parent, memory_of_instance
        pci = supported(pynvml.nvmlDeviceGetPciInfo, physical)
        bus_id = "" if pci is None else bus_id_of(pci)
        minor = supported(pynvml.nvmlDeviceGetMinorNumber, physical)
        memory = supported(read_memory, handle)
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
        model = supported(pynvml.nvmlDeviceGetName, handle)
        card = parse_card(
            {
                "uuid": uuid,
                "index": index,
                "minor": minor,
                "memory": total,
                "numa": self._numa(bus_id, physical),
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
        words = or_none(
            pynvml.nvmlDeviceGetMemoryAffinity,
            handle,
            _NUMA_WORDS,
            pynvml.NVML_AFFINITY_SCOPE_NODE,
        )
        mask = sum(word << (64 * index) for index, word in enumerate(words or ()))
        return mask.bit_length() - 1 if mask.bit_count() == 1 else None

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
                    handle, instance = _card_of(uuid)
                    types = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
                    if not types & _EVENTS:
                        failures[uuid] = "it has neither Xid nor ECC events"
                        continue
                    watched = self._watched.get(_address(handle), [])
                    if not watched:
                        wanted = _EVENTS | (pynvml.nvmlEventMigConfigChange if self._mig else 0)
                        pynvml.nvmlDeviceRegisterEvents(handle, types & wanted, events)
                        self._watched[_address(handle)] = watched
                    watched.append(_Watched(uuid, instance))
                except pynvml.NVMLError as error:
                    if error.value in SESSION_ERRORS:
                        raise
                    failures[uuid] = f"NVML: {error}"
            if not self._watched:  # NVML cannot wait for an empty event set
                self._events = None
                pynvml.nvmlEventSetFree(events)
        return failures

    def wait(self, seconds: float) -> tuple[tuple[str, ...], CardFault] | None:
        """Wait for an event; return the UUIDs of the cards, and the fault, or ``None``.

        An event of a card in MIG mode is one of all its instances, unless it names one.

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
        watched = self._watched.get(_address(data.device))
        if watched is None:
            raise Unavailable("NVML: an event of an unknown card")
        if data.eventType == pynvml.nvmlEventMigConfigChange:
            self.stale = True
            return None
        fault = CardFault(FaultKind.ECC, "double-bit ECC error")
        if data.eventType == pynvml.nvmlEventTypeXidCriticalError:
            fault = xid_fault(int(data.eventData))
        named = data.gpuInstanceId
        uuids = [
            uuid
            for uuid, instance in watched
            if instance is None or named in {instance, NO_INSTANCE}
        ]
        return tuple(uuids), fault

    def probe(self, uuid: str) -> Probe | CardFault:
        """Probe a card; return the result, or the fault because of which there is none."""
        with translated():
            try:
                handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                if not is_instance_uuid(uuid) and in_mig_mode(handle):
                    return CardFault(FaultKind.MIG, "in MIG mode, which is not served")
                pynvml.nvmlDeviceGetMemoryInfo(handle)
                if is_instance_uuid(uuid):
                    handle = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
                return _probe(handle)
            except pynvml.NVMLError as error:
                if error.value in SESSION_ERRORS:
                    raise
                if error.value == pynvml.NVML_ERROR_NOT_SUPPORTED:
                    return Probe()  # the card has responded, and can report nothing more
                if error.value == pynvml.NVML_ERROR_NOT_FOUND and is_instance_uuid(uuid):
                    return CardFault(FaultKind.LOST, "this MIG instance does not exist any more")
                return CardFault(_CARD_FAULTS.get(error.value, FaultKind.ERROR), f"NVML: {error}")


@dataclass(slots=True)
class _ReadCard:
    """The card or MIG instance that is being read; *index* is that of the card."""

    index: int
    uuid: str | None = None


@dataclass(slots=True)
class _Findings:
    """What a discovery has found so far."""

    cards: list[Card] = field(default_factory=list)
    faults: list[UnservedCard] = field(default_factory=list)
    skipped: list[UnservedCard] = field(default_factory=list)

    @contextmanager
    def reading(self, index: int) -> Iterator[_ReadCard]:
        """Read a card; if that fails, it is a fault, unless NVML itself does not work."""
        card = _ReadCard(index)
        try:
            yield card
        except pynvml.NVMLError as error:
            if error.value in SESSION_ERRORS:
                raise
            self.faults.append(UnservedCard(index, card.uuid, f"NVML: {error}"))
        except (SettingsError, UnicodeDecodeError) as error:
            self.faults.append(UnservedCard(index, card.uuid, str(error)))

    def add(self, card: Card) -> None:
        """Add a card that can be served; raise ``SettingsError`` if another one is like it."""
        check_distinct([*self.cards, card])
        self.cards.append(card)

    def skip(self, card: _ReadCard, reason: str) -> None:
        """Leave a card out that works."""
        self.skipped.append(UnservedCard(card.index, card.uuid, reason))


class _Watched(NamedTuple):
    """A card whose events are awaited; *instance* is the ID of its GPU instance, if it is one."""

    uuid: str
    instance: int | None


def _card_of(uuid: str) -> tuple[Any, int | None]:
    """Find the handle of a card; of a MIG instance that of its card, and the GPU instance's ID."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    if not is_instance_uuid(uuid):
        return handle, None
    card = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    return card, pynvml.nvmlDeviceGetGpuInstanceId(handle)


def _too_old(handle: Any) -> str:
    """Return why MPS cannot limit a card; empty if it can, or if that is not known."""
    capability = query(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    if capability is None or tuple(capability) >= _VOLTA:
        return ""
    found = ".".join(map(str, capability))
    return f"of compute capability {found}, and MPS limits cards from 7.0 (Volta) on"


def _probe(handle: Any) -> Probe:
    rows = query(pynvml.nvmlDeviceGetRemappedRows, handle)  # Ampere and newer
    if rows is None:
        pending, failed = bool(query(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)), 0
    else:
        _, _, pending, failed = rows
    return Probe(
        uncorrectable=query(
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
    values = query(pynvml.nvmlDeviceGetFieldValues, handle, [_RECOVERY_ACTION])
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    action = values[0].value.uiVal
    return _ACTIONS.get(action, f"recovery action {action}")


def _address(handle: Any) -> int:
    """Return the identity of a handle: a pointer that stays the same during a session."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
