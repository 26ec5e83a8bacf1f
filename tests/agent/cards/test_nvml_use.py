"""The use of cards, as the stand-in of NVML reports it."""

import time
from pathlib import Path

import pynvml
import pytest

from agent.cards.card_use import CardUse, CoreSample, newest_samples
from agent.cards.nvml_use import read_use
from agent.errors import Unavailable
from tests.agent.builders import raising
from tests.agent.nvml_node import GIB, NvmlScript, load, unload, uuid

UUIDS = uuid(0), uuid(1)
NOT_SUPPORTED, PERMISSION, LOST, UNINITIALIZED = 3, 4, 15, 1


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
