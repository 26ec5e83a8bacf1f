"""MIG instances as the stand-in of NVML has them, and the use of instances and cards."""

import ctypes
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from agent.cards.card_use import CardUse, CoreSample, newest_samples
from agent.cards.health import CardFault, FaultKind, Probe, xid_fault
from agent.cards.inventory import UnservedCard
from agent.cards.nvml import NvmlSession, NvmlSource
from agent.cards.nvml_use import read_use
from agent.errors import Unavailable
from contract.inventory import Card, Link
from tests.agent.builders import cases, raising
from tests.agent.nvml_node import (
    ECC,
    GIB,
    MIG_CHANGE,
    XID,
    NvmlScript,
    instance_at,
    instance_uuid,
    load,
    mig_minors,
    unload,
    uuid,
)

NOT_SUPPORTED, PERMISSION, LOST, UNKNOWN, UNINITIALIZED = 3, 4, 15, 999, 1
SEVEN, NINE = instance_uuid(0, 7), instance_uuid(0, 9)


@pytest.fixture
def two_instances(node: NvmlScript, tmp_path: Path) -> None:
    node.mig(0, 7, 9)
    mig_minors(tmp_path, *((minor, gpu) for minor in range(2) for gpu in range(15)))


@pytest.fixture
def session(library: ctypes.CDLL, two_instances: None, tmp_path: Path) -> Iterator[NvmlSession]:
    with NvmlSource(tmp_path / "sys", proc=tmp_path, mig=True).open() as opened:
        yield opened


def test_instances_are_small_cards_and_their_card_is_not_offered(
    session: NvmlSession, node: NvmlScript, tmp_path: Path
) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text("1\n")
    node.card(instance_at(0, 1), reserved=GIB)
    found = session.discover()
    seven = Card(
        SEVEN,
        1007,
        "NVIDIA A100-SXM4-80GB MIG 1g.5gb",
        5 * GIB,
        1,
        minor=0,
        bus_id="0000:01:00.0",
        device="/dev/nvidia0",
        capabilities=("/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67"),
    )
    nine = replace(
        seven,
        uuid=NINE,
        index=1009,
        memory=4 * GIB,
        reserved=GIB,
        capabilities=("/dev/nvidia-caps/nvidia-cap84", "/dev/nvidia-caps/nvidia-cap85"),
    )
    whole = found.inventory.card(uuid(1))
    assert found.inventory.cards == (whole, seven, nine)
    assert (found.faults, found.skipped, found.inventory.links) == ((), (), ())
    assert found.inventory.unlinked() == ()


def test_whole_cards_keep_their_links_beside_instances(
    node: NvmlScript, tmp_path: Path, library: ctypes.CDLL
) -> None:
    node = NvmlScript(node.path, cards=3)
    node.mig(1, 2)
    mig_minors(tmp_path, (1, 2))
    with NvmlSource(tmp_path / "sys", proc=tmp_path, mig=True).open() as session:
        found = session.discover().inventory
    assert [card.index for card in found.cards] == [0, 2, 2002]
    assert found.links == (Link((0, 2), "PHB"),)


def test_an_index_stays_when_another_instance_is_destroyed(
    session: NvmlSession, node: NvmlScript
) -> None:
    node.forget("instance 0 0")
    node.set("instance 0 0", f"9 0 {NINE}")  # NVML's own index of it is another one then
    node.forget("instance 0 1")
    node.card(instance_at(0, 0), name="X MIG 2g.10gb", memory=10 * GIB)
    cards = session.discover().inventory.cards
    assert [(card.index, card.uuid) for card in cards] == [(1, uuid(1)), (1009, NINE)]


def test_without_the_option_a_card_in_mig_mode_is_left_out(
    library: ctypes.CDLL, two_instances: None, tmp_path: Path
) -> None:
    with NvmlSource(tmp_path / "sys", proc=tmp_path).open() as session:
        found = session.discover()
        assert session.watch([uuid(1)]) == {}
    assert [card.uuid for card in found.inventory.cards] == [uuid(1)]
    assert found.skipped == (UnservedCard(0, uuid(0), "in MIG mode, which is not served"),)


def test_without_instances_and_with_shared_memory_a_card_is_left_out_with_the_reason(
    session: NvmlSession, node: NvmlScript
) -> None:
    other = instance_uuid(0, 70)
    node.set("instance 0 2", f"7 1 {other}")
    found = session.discover()
    reason = "a compute instance that shares the memory of its GPU instance with others"
    assert found.skipped == (UnservedCard(0, SEVEN, reason), UnservedCard(0, other, reason))
    assert [card.uuid for card in found.inventory.cards] == [uuid(1), NINE]
    node.forget(*(f"instance 0 {at}" for at in range(3)))
    found = session.discover()
    reason = "in MIG mode, and the agent sees no instance of it"
    assert found.skipped == (UnservedCard(0, uuid(0), reason),)
    assert [card.uuid for card in found.inventory.cards] == [uuid(1)]


_RULE = "must be a card UUID of at most 56 letters, digits, '-', '.' and '_'"
_MINORS = "/proc/driver/nvidia-caps/mig-minors does not list gpu0/gi20/access and"


@cases(
    "facts,reason",
    {
        "a driver before R470": (
            {"instance 0 0": f"7 0 MIG-{uuid(0)}/7/0"},
            f'card 1007.uuid: Invalid value: "MIG-{uuid(0)}/7/0": {_RULE}',
        ),
        "an unlisted capability": (
            {"instance 0 0": f"20 0 {SEVEN}"},
            f"{_MINORS} gpu0/gi20/ci0/access",
        ),
        "no ID": (
            {"fail nvmlDeviceGetGpuInstanceId 100": UNKNOWN},
            "NVML does not report the IDs of this MIG instance",
        ),
        "no name": ({"fail nvmlDeviceGetName 100": LOST}, "NVML: GPU is lost"),
        "no memory": (
            {"fail nvmlDeviceGetMemoryInfo_v2 100": PERMISSION},
            "NVML: Insufficient Permissions",
        ),
    },
)
def test_an_instance_that_cannot_be_read_is_named_and_the_others_are_served(
    session: NvmlSession, node: NvmlScript, facts: dict[str, object], reason: str
) -> None:
    for key, value in facts.items():
        node.set(key, value)
    found = session.discover()
    (fault,) = found.faults
    assert (fault.index, fault.reason) == (0, reason)
    assert [card.uuid for card in found.inventory.cards] == [uuid(1), NINE]


def test_memory_by_the_older_call_is_enough(session: NvmlSession, node: NvmlScript) -> None:
    node.fail("nvmlDeviceGetMemoryInfo_v2", NOT_SUPPORTED, card=100)
    found = session.discover().inventory.card(SEVEN)
    assert found is not None
    assert found.memory == 5 * GIB


def test_an_event_concerns_the_instance_that_it_names_or_all_of_its_card(
    session: NvmlSession, node: NvmlScript
) -> None:
    session.discover()
    assert session.watch([uuid(1), SEVEN, NINE]) == {}
    node.event(0, XID, 94, instance=9)
    assert session.wait(5) == ((NINE,), xid_fault(94))
    node.event(0, XID, 79)
    assert session.wait(5) == ((SEVEN, NINE), xid_fault(79))
    node.event(0, XID, 94, instance=3)  # of an instance that was left out
    assert session.wait(5) == ((), xid_fault(94))
    node.event(1, XID, 79)
    assert session.wait(5) == ((uuid(1),), xid_fault(79))
    node.event(0, ECC, 0)
    ecc = CardFault(FaultKind.ECC, "double-bit ECC error")
    assert session.wait(5) == ((SEVEN, NINE), ecc)
    assert not session.stale


def test_changed_instances_need_a_new_session(session: NvmlSession, node: NvmlScript) -> None:
    session.discover()
    session.watch([SEVEN])
    node.event(0, MIG_CHANGE, 0)
    assert session.wait(5) is None
    assert session.stale


def test_an_instance_is_as_healthy_as_its_card(session: NvmlSession, node: NvmlScript) -> None:
    assert session.probe(SEVEN) == Probe(0, "")
    node.card(0, ecc=3, action=1, failed=1)
    assert session.probe(SEVEN) == session.probe(NINE)
    assert session.probe(SEVEN) == Probe(
        3, "a reset of the card", defect="memory rows could not be remapped"
    )
    node.fail("nvmlDeviceGetRemappedRows", LOST, card=0)
    assert session.probe(SEVEN) == CardFault(FaultKind.LOST, "NVML: GPU is lost")


def test_a_destroyed_instance_is_lost(session: NvmlSession, node: NvmlScript) -> None:
    node.forget("instance 0 0")
    gone = CardFault(FaultKind.LOST, "this MIG instance does not exist any more")
    assert session.probe(SEVEN) == gone
    assert session.probe(NINE) == Probe(0, "")
    assert session.watch([SEVEN, NINE]) == {SEVEN: "NVML: Not Found"}


_UNKNOWN_CORES = "use of cores: NVML does not report it for MIG instances"


def test_memory_of_an_instance_is_known_and_its_cores_are_not(
    node: NvmlScript, two_instances: None
) -> None:
    node.card(instance_at(0, 0), used=2 * GIB)
    node.process(instance_at(0, 0), 11, GIB)
    node.fail("nvmlDeviceGetGraphicsRunningProcesses_v3", NOT_SUPPORTED, card=101)
    assert read_use([SEVEN, NINE], since=0) == {
        SEVEN: CardUse(None, 2 * GIB, None, {11: GIB}, (_UNKNOWN_CORES,)),
        NINE: CardUse(None, 1 << 20, None, {}, (_UNKNOWN_CORES,)),
    }


UUIDS = uuid(0), uuid(1)


def read() -> dict[str, CardUse]:
    return read_use(UUIDS, since=time.time_ns() // 1000 - 5_000_000)


def test_processes_are_listed_by_card(node: NvmlScript) -> None:
    node.card(0, gpu=70, used=3 * GIB)
    node.card(1, gpu=0)
    node.process(0, 11, 2 * GIB, 60)
    # It computes and draws: it is listed twice, each time with all its memory.
    node.process(0, 11, 2 * GIB, draws=True)
    node.process(0, 12, GIB)
    node.set("sample 0 13 5", 60_000_000)  # of a process that has ended, a minute ago
    assert read() == {
        uuid(0): CardUse(70, 3 * GIB, {11: 60}, {11: 2 * GIB, 12: GIB}),
        uuid(1): CardUse(0, 1 << 20, {}, {}),
    }


@pytest.mark.parametrize(
    ("function", "code", "missing"),
    [
        ("nvmlDeviceGetUtilizationRates", NOT_SUPPORTED, "cores"),
        ("nvmlDeviceGetMemoryInfo", LOST, "memory"),
        ("nvmlDeviceGetProcessUtilization", PERMISSION, "process_cores"),
        ("nvmlDeviceGetComputeRunningProcesses_v3", PERMISSION, "process_memory"),
        ("nvmlDeviceGetGraphicsRunningProcesses_v3", NOT_SUPPORTED, "process_memory"),
    ],
)
def test_a_value_that_a_card_cannot_report_is_the_only_one_missing(
    node: NvmlScript, function: str, code: int, missing: str
) -> None:
    for index in range(2):
        node.card(index, gpu=7)
    node.fail(function, code, card=0)
    one, other = read().values()
    names = ("cores", "memory", "process_cores", "process_memory")
    assert [each for each in names if getattr(one, each) is None] == [missing]
    assert len(one.problems) == 1
    assert other == CardUse(7, 1 << 20, {}, {})


def test_a_card_in_mig_mode_and_a_lost_card_report_no_use(node: NvmlScript) -> None:
    node.card(0, mig=1)
    node.fail("nvmlDeviceGetHandleByUUID", LOST, card=1)
    one, other = read().values()
    assert one == CardUse(problems=("in MIG mode",))
    assert other.problems[0].startswith("the card: NVML: ")
    assert other == CardUse(problems=other.problems)


def test_memory_unknown_for_one_process_is_reported_for_none(node: NvmlScript) -> None:
    node.process(0, 11, 2 * GIB)
    node.process(0, 12, -1)
    one = read()[uuid(0)]
    assert one.process_memory is None
    assert "memory of processes: the driver does not report it" in one.problems


def test_an_older_driver_is_queried_with_its_own_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(monkeypatch, tmp_path, old=True)
    node = NvmlScript(tmp_path / "node")
    monkeypatch.setenv("NVML_STUB", str(node.path))
    node.process(0, 11, GIB)
    assert read()[uuid(0)].process_memory == {11: GIB}


def test_an_empty_utilization_list_is_no_error(
    node: NvmlScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The binding takes an empty first response for an error."""
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetProcessUtilization", raising(pynvml.NVMLError(pynvml.NVML_SUCCESS))
    )
    assert read()[uuid(0)].process_cores == {}


def test_a_driver_that_does_not_work_is_reported_with_the_reason_and_closed(
    node: NvmlScript, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node.fail("nvmlDeviceGetMemoryInfo", UNINITIALIZED)
    library = load(monkeypatch, tmp_path)
    with pytest.raises(Unavailable, match="NVML: "):
        read()
    assert library.stub_sessions() == 0
    unload(monkeypatch)
    with pytest.raises(Unavailable, match=r"libnvidia-ml\.so\.1 cannot be loaded"):
        read()


@pytest.mark.parametrize(
    ("samples", "found"),
    [
        ([], {}),
        ([CoreSample(1, 11, 30)], {1: 30}),
        ([CoreSample(1, 12, 30), CoreSample(1, 11, 90), CoreSample(2, 11, 0)], {1: 30, 2: 0}),
        ([CoreSample(1, 12, 30), CoreSample(1, 12, 40)], {1: 40}),
        ([CoreSample(1, 12, 40), CoreSample(1, 12, 30)], {1: 40}),
        ([CoreSample(1, 10, 30)], {}),  # not newer than the start
        ([CoreSample(0, 11, 30)], {}),  # an entry that was not filled
        ([CoreSample(1, 11, 101), CoreSample(2, 11, 1_431_633_408)], {}),  # more than a card has
    ],
)
def test_of_samples_the_newest_plausible_one_counts(
    samples: list[CoreSample], found: dict[int, int]
) -> None:
    assert newest_samples(samples, since=10) == found
