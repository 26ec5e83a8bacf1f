"""The real pynvml over a stand-in library: structures and error codes as NVML has them."""

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from agent.cards.health import CardFault, FaultKind, Probe, xid_fault
from agent.cards.inventory import UnservedCard
from agent.cards.nvml import NvmlSession, NvmlSource
from agent.errors import DriverUnloaded, Unavailable
from contract.inventory import Card, Link
from tests.agent.nvml_node import ECC, GIB, XID, NvmlScript, load, uuid

NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
LOST = pynvml.NVML_ERROR_GPU_IS_LOST
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN
UNLOADED = pynvml.NVML_ERROR_DRIVER_NOT_LOADED


@pytest.fixture
def session(library: ctypes.CDLL, tmp_path: Path) -> Iterator[NvmlSession]:
    with NvmlSource(tmp_path / "sys").open() as opened:
        yield opened


def pci_device(tmp_path: Path, bus_id: str, **attributes: str) -> None:
    folder = tmp_path / "sys/bus/pci/devices" / bus_id
    folder.mkdir(parents=True)
    for name, text in attributes.items():
        (folder / name).write_text(f"{text}\n")


# --- discovery ------------------------------------------------------------------------


def test_every_card_is_described(session: NvmlSession, node: NvmlScript, tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:01:00.0", numa_node="1")
    node.card(1, minor=7, name="NVIDIA A10", pci="10000 af 1f", memory=24 * GIB)
    found = session.discover()
    one = Card(uuid(0), 0, "NVIDIA A100-SXM4-80GB", 80 * GIB, 1, minor=0, device="/dev/nvidia0")
    other = Card(uuid(1), 1, "NVIDIA A10", 24 * GIB, minor=7, device="/dev/nvidia7")
    assert found.inventory.cards == (
        replace(one, bus_id="0000:01:00.0"),
        replace(other, bus_id="10000:af:1f.0"),
    )
    assert found.inventory.links == (Link((0, 1), "PHB"),)
    assert (found.driver, found.faults, found.skipped) == ("550.54.15", (), ())


def fails(function: str, code: int) -> Callable[[NvmlScript], None]:
    return lambda node: node.fail(f"nvmlDeviceGet{function}", code, card=0)


def lacks(*facts: str) -> Callable[[NvmlScript], None]:
    return lambda node: node.forget(*(f"card 0 {each}" for each in facts))


_FILE = (
    "NVML does not report its {}: list it in a cards file, with {} (docs/reference.md#cards-files)"
)


@pytest.mark.parametrize(
    ("spoil", "known", "reason"),
    [
        (fails("HandleByIndex_v2", LOST), False, "NVML: GPU is lost"),
        (fails("HandleByIndex_v2", 4242), False, "NVML: a text of the library"),
        (fails("UUID", UNKNOWN), False, "NVML: Unknown Error"),
        (fails("Name", LOST), True, "NVML: GPU is lost"),
        (fails("MinorNumber", UNKNOWN), True, "NVML: Unknown Error"),
        (fails("MemoryInfo_v2", UNKNOWN), True, "NVML: Unknown Error"),
        (fails("PciInfo_v3", pynvml.NVML_ERROR_RESET_REQUIRED), True, "NVML: GPU requires restart"),
        (fails("MigMode", LOST), True, "NVML: GPU is lost"),
        (lacks("memory"), True, _FILE.format("memory", "memory")),  # GB10: unified memory
        (lacks("minor"), True, _FILE.format("minor number", "device")),  # WSL 2
        (
            lacks("minor", "memory", "pci"),
            True,
            _FILE.format("minor number and memory", "device and memory"),
        ),
        (lacks("uuid"), False, _FILE.format("UUID", "uuid")),
    ],
)
def test_a_card_that_cannot_be_read_is_named_and_the_others_are_served(
    *,
    session: NvmlSession,
    node: NvmlScript,
    spoil: Callable[[NvmlScript], None],
    known: bool,
    reason: str,
) -> None:
    spoil(node)
    found = session.discover()
    assert [card.index for card in found.inventory.cards] == [1]
    assert found.inventory.links == ()
    assert found.faults == (UnservedCard(0, uuid(0) if known else None, reason),)


_CALLS = (
    *("HandleByIndex_v2", "UUID", "Name", "MinorNumber", "MemoryInfo", "MemoryInfo_v2"),
    *("PciInfo_v3", "MigMode", "TopologyCommonAncestor", "NvLinkState", "MemoryAffinity"),
    *("HandleByUUID", "RemappedRows", "RetiredPagesPendingStatus", "TotalEccErrors"),
    *("FieldValues", "SupportedEventTypes"),
)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("function", _CALLS)
def test_a_card_that_supports_all_but_one_call_is_served_or_left_out_and_never_unhealthy(
    *, node: NvmlScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, old: bool
) -> None:
    load(monkeypatch, tmp_path, old=old)
    node.fail(f"nvmlDeviceGet{function}", NOT_SUPPORTED, card=0)
    with NvmlSource(tmp_path / "sys").open() as session:
        found = session.discover()
        probes = {card.uuid: session.probe(card.uuid) for card in found.inventory.cards}
    needed = {"HandleByIndex_v2", "UUID", "MinorNumber"}
    needed.add("MemoryInfo" if old else "MemoryInfo_v2")
    assert (uuid(0) in probes) is (function not in needed)
    assert all(isinstance(each, Probe) for each in probes.values())


@pytest.mark.parametrize("old", [False, True])
def test_memory_that_the_driver_keeps_is_not_offered(
    *, node: NvmlScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    """A Tesla T4 has 15360 MiB, of which the driver keeps 450; drivers before R510 do not say."""
    load(monkeypatch, tmp_path, old=old)
    kept = 450 << 20
    node.card(0, memory=15360 << 20, reserved=kept)
    with NvmlSource(tmp_path / "sys").open() as session:
        found = session.discover().inventory
    assert found.cards[0].memory == (15360 << 20) - (0 if old else kept)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"memory": 0}, "card 1.memory: Invalid value: 0: must be a number of bytes such as 24Gi"),
        ({"uuid": uuid(0)}, f'cards: uuid: Duplicate value: "{uuid(0)}"'),
        ({"name": "\udcff"}, "'utf-8' codec can't decode byte 0xff in position 0: "),
    ],
)
def test_a_card_with_invalid_values_is_left_out_by_the_rules_of_a_cards_file(
    session: NvmlSession, node: NvmlScript, facts: dict[str, object], reason: str
) -> None:
    node.card(1, **facts)
    found = session.discover()
    assert [card.index for card in found.inventory.cards] == [0]
    assert [fault.index for fault in found.faults] == [1]
    assert found.faults[0].reason.startswith(reason)


@pytest.mark.parametrize(
    ("kernel", "nvml", "node_id"),
    [("0", 1, 0), ("-1", 65, 65), (None, 0, 0), (None, None, None)],
)
def test_the_numa_node_is_the_kernels_and_else_that_of_nvml(
    *,
    session: NvmlSession,
    node: NvmlScript,
    tmp_path: Path,
    kernel: str | None,
    nvml: int | None,
    node_id: int | None,
) -> None:
    if kernel is not None:
        pci_device(tmp_path, "0000:01:00.0", numa_node=kernel)
    if nvml is not None:
        node.card(0, numa=nvml)
    assert session.discover().inventory.cards[0].numa == node_id


@pytest.mark.parametrize(
    ("level", "kind"),
    [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS"), (35, "")],
)
def test_the_pcie_path_has_nvidia_smis_name(
    session: NvmlSession, node: NvmlScript, level: int, kind: str
) -> None:
    node.set("level 0 1", level)
    assert session.discover().inventory.links == ((Link((0, 1), kind),) if kind else ())
    node.fail("nvmlDeviceGetTopologyCommonAncestor", UNKNOWN)
    assert session.discover().inventory.unlinked() == ((0, 1),)


def test_nvlinks_between_two_cards_are_counted(session: NvmlSession, node: NvmlScript) -> None:
    node.nvlink(0, range(4), "gpu 0 2 0")
    node.nvlink(1, range(4), "gpu 0 1 0")
    node.nvlink(0, range(4, 6), "gpu 0 9 0")  # to a card that is not served
    node.nvlink(0, range(6, 8), "gpu 0 2 0", state="inactive")
    both = (Link((0, 1), "PHB"), Link((0, 1), "NV4"))
    assert session.discover().inventory.links == both
    node.fail("nvmlDeviceGetNvLinkState", LOST, card=0)  # one end that knows them is enough
    assert session.discover().inventory.links == both
    node.fail("nvmlDeviceGetNvLinkRemotePciInfo_v2", UNKNOWN)  # nor does the other know its end
    assert session.discover().inventory.links == (Link((0, 1), "PHB"),)


def test_nvswitches_join_every_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: ctypes.CDLL
) -> None:
    four = NvmlScript(tmp_path / "four", cards=4)
    monkeypatch.setenv("NVML_STUB", str(four.path))
    for card in range(3):  # the fourth is on no switch
        four.nvlink(card, range(18), "switch 0 c4 0")
    four.fail("nvmlDeviceGetNvLinkRemotePciInfo_v2", NOT_SUPPORTED)  # as NVLink 5 switches do
    with NvmlSource(tmp_path / "sys").open() as session:
        links = session.discover().inventory.links
    assert {link.cards: link.kind for link in links} == {
        (0, 1): "NV18",
        (0, 2): "NV18",
        (1, 2): "NV18",
        (0, 3): "PHB",
        (1, 3): "PHB",
        (2, 3): "PHB",
    }


def test_a_driver_before_r460_is_read_by_its_own_functions(
    node: NvmlScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = load(monkeypatch, tmp_path, old=True)
    pci_device(tmp_path, "0000:c4:00.0", **{"class": "0x068000"})
    for card in range(2):
        node.nvlink(card, range(6), "unknown 0 c4 0")
        node.nvlink(card, range(6, 8), f"unknown 0 {2 - card} 0")
        node.card(card, pending=card, numa=1)
    with NvmlSource(tmp_path / "sys").open() as session:
        found = session.discover()
        probes = [session.probe(uuid(card)) for card in range(2)]
    assert found.inventory.links == (Link((0, 1), "PHB"), Link((0, 1), "NV8"))
    assert [card.numa for card in found.inventory.cards] == [None, None]
    assert probes == [Probe(0, None, pending=False), Probe(0, None, pending=True)]
    assert library.stub_sessions() == 0


@pytest.mark.parametrize(
    ("capability", "reason"),
    [
        ("6 1", ["of compute capability 6.1, and MPS limits cards from 7.0 (Volta) on"]),
        ("7 0", []),
        ("", []),
    ],
)
def test_cards_that_mps_cannot_limit_are_left_out(
    capability: str, reason: list[str], node: NvmlScript, library: object, tmp_path: Path
) -> None:
    node.card(0, capability="9 0")
    if capability:
        node.card(1, capability=capability)
    for mps in (True, False):
        with NvmlSource(tmp_path / "sys", mps=mps).open() as session:
            found = session.discover()
        assert [each.reason for each in found.skipped] == reason * mps
        assert len(found.inventory.cards) == 2 - len(reason) * mps


# --- sessions -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (UNLOADED, DriverUnloaded, "NVML: Driver Not Loaded"),
        (
            pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            Unavailable,
            (
                "NVML: RM has detected an NVML/RM version mismatch. "
                "The driver was replaced: restart the agent"
            ),
        ),
    ],
)
def test_a_driver_that_does_not_work_is_reported(
    library: ctypes.CDLL, node: NvmlScript, code: int, kind: type[Exception], message: str
) -> None:
    node.fail("nvmlInitWithFlags", code)
    with pytest.raises(kind) as caught, NvmlSource().open():
        pytest.fail("it does not work")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("function", "act"),
    [
        ("nvmlDeviceGetCount_v2", NvmlSession.discover),
        ("nvmlDeviceGetHandleByIndex_v2", NvmlSession.discover),
        ("nvmlDeviceGetMigMode", NvmlSession.discover),
        ("nvmlDeviceGetNvLinkState", NvmlSession.discover),
        ("nvmlSystemGetDriverVersion", NvmlSession.discover),
        ("nvmlEventSetCreate", lambda session: session.watch([uuid(0)])),
        ("nvmlDeviceRegisterEvents", lambda session: session.watch([uuid(0)])),
        ("nvmlDeviceGetHandleByUUID", lambda session: session.probe(uuid(0))),
        ("nvmlDeviceGetFieldValues", lambda session: session.probe(uuid(0))),
    ],
)
def test_a_failure_of_nvml_itself_is_no_fault_of_a_card(
    session: NvmlSession, node: NvmlScript, function: str, act: Callable[[NvmlSession], object]
) -> None:
    node.fail(function, UNLOADED)
    with pytest.raises(DriverUnloaded):
        act(session)


def test_a_session_ends_also_when_the_driver_went_meanwhile(
    library: ctypes.CDLL, node: NvmlScript
) -> None:
    with NvmlSource().open() as session:
        session.watch([uuid(0)])
        node.fail("nvmlEventSetFree", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        node.fail("nvmlShutdown", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    node.restore()
    with NvmlSource().open() as session:
        assert len(session.discover().inventory.cards) == 2


# --- events ---------------------------------------------------------------------------


def test_an_event_is_returned_with_its_card(session: NvmlSession, node: NvmlScript) -> None:
    node.card(0, events=XID | 0x10)
    assert session.watch([uuid(0), uuid(1)]) == {}
    assert session.watching
    assert session.wait(0) is None
    node.event(1, XID, 79)
    node.event(0, ECC, 0)  # which this card does not report
    node.event(0, XID, 13)
    node.event(1, ECC, 0)
    assert session.wait(5) == ((uuid(1),), xid_fault(79))
    assert session.wait(5) == ((uuid(0),), xid_fault(13))
    assert session.wait(5) == ((uuid(1),), CardFault(FaultKind.ECC, "double-bit ECC error"))
    assert session.wait(0.01) is None
    node.event(-1)
    with pytest.raises(Unavailable, match=r"\ANVML: an event of an unknown card\Z"):
        session.wait(5)
    node.fail("nvmlEventSetWait_v2", LOST)
    with pytest.raises(Unavailable):
        session.wait(5)


@pytest.mark.parametrize(
    ("function", "code", "reason", "both"),
    [
        ("nvmlEventSetCreate", NOT_SUPPORTED, "NVML: Not Supported", True),
        ("nvmlDeviceRegisterEvents", UNKNOWN, "NVML: Unknown Error", True),
        ("nvmlDeviceGetSupportedEventTypes", NOT_SUPPORTED, "NVML: Not Supported", False),
        ("", 0, "it has neither Xid nor ECC events", True),
    ],
)
def test_cards_without_events_are_named(
    *, session: NvmlSession, node: NvmlScript, function: str, code: int, reason: str, both: bool
) -> None:
    cards = [0, 1] if both else [0]
    for card in cards:
        node.card(card, events=XID if function else 0x10)
        if function:
            node.fail(function, code, **({} if both else {"card": card}))
    assert session.watch([uuid(0), uuid(1)]) == {uuid(card): reason for card in cards}
    assert session.watching is not both


# --- probes ---------------------------------------------------------------------------


def test_a_probe_returns_the_cards_errors_and_the_recovery_action(
    session: NvmlSession, node: NvmlScript
) -> None:
    assert session.probe(uuid(0)) == Probe(uncorrectable=0, action="", pending=False, defect="")
    node.card(0, ecc=3, action=1, pending=1, failed=1)
    assert session.probe(uuid(0)) == Probe(
        3, "a reset of the card", pending=True, defect="memory rows could not be remapped"
    )
    node.card(0, action=99)
    probe = session.probe(uuid(0))
    assert isinstance(probe, Probe)
    assert probe.action == "recovery action 99"
    node.forget(*(f"card 0 {each}" for each in ("ecc", "action", "pending", "failed", "mig")))
    assert session.probe(uuid(0)) == Probe(None, None, pending=False)  # nothing is supported
    node.card(0, mig=1)
    mig = "in MIG mode, which is not served"
    assert session.probe(uuid(0)) == CardFault(FaultKind.MIG, mig)


@pytest.mark.parametrize(
    ("function", "code", "kind", "text"),
    [
        ("HandleByUUID", LOST, FaultKind.LOST, "GPU is lost"),
        ("HandleByUUID", pynvml.NVML_ERROR_NOT_FOUND, FaultKind.LOST, "Not Found"),
        ("MemoryInfo", UNKNOWN, FaultKind.ERROR, "Unknown Error"),
        (
            "TotalEccErrors",
            pynvml.NVML_ERROR_RESET_REQUIRED,
            FaultKind.RESET,
            "GPU requires restart",
        ),
        ("FieldValues", LOST, FaultKind.LOST, "GPU is lost"),
    ],
)
def test_a_card_that_does_not_respond_is_reported_with_the_reason(
    *, session: NvmlSession, node: NvmlScript, function: str, code: int, kind: FaultKind, text: str
) -> None:
    node.fail(f"nvmlDeviceGet{function}", code, card=0)
    assert session.probe(uuid(0)) == CardFault(kind, f"NVML: {text}")
    assert isinstance(session.probe(uuid(1)), Probe)
