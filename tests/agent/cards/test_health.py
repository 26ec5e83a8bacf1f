"""Faults and recovery of a card, and the faults that an agent saves for the next one."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cards.fault_store import FaultStore, decode, driver_instance, encode
from agent.cards.health import (
    RESET_XIDS,
    CardFault,
    CardHealth,
    ClockReading,
    FaultKind,
    Probe,
    Rules,
    after_fault,
    after_probe,
    xid_fault,
)
from agent.host.state_file import StateFile
from tests.agent.builders import patient

RULES = Rules(quiet=300)
NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
FELL_OFF, CONTAINED = xid_fault(79), xid_fault(94)
LOST = CardFault(FaultKind.LOST, "NVML: GPU is lost")
UNREADABLE = CardFault(FaultKind.ERROR, "NVML: Unknown Error")
UNLOADED = CardFault(FaultKind.DRIVER, "NVML: Driver Not Loaded")
CLEAN_PROBE = Probe(uncorrectable=0, action="")
OLD_DRIVER = Probe(uncorrectable=0, action=None)
Happening = CardFault | Probe


def moment(at: float) -> ClockReading:
    return ClockReading(at, NOON + timedelta(seconds=at))


def health_after(*happenings: tuple[float, Happening], rules: Rules = RULES) -> CardHealth:
    """Return the health of a card after timed events, starting healthy."""
    health = CardHealth()
    for at, what in happenings:
        step = after_fault if isinstance(what, CardFault) else after_probe
        health = step(health, what, moment(at), rules)  # type: ignore[arg-type]  # by its type
    return health


RESET_WANTED = Probe(uncorrectable=0, action="a reset of the card")
REASONS: dict[str, tuple[list[tuple[float, Happening]], str]] = {
    "what and when": (
        [(1, FELL_OFF)],
        "Xid 79 (GPU has fallen off the bus) at 2026-11-21T12:00:01Z",
    ),
    "an Xid without a name": ([(0, xid_fault(999))], "Xid 999 at 2026-11-21T12:00:00Z"),
    "the first until a graver one": (
        [(1, LOST), (2, FELL_OFF), (3, LOST), (4, xid_fault(119))],
        "Xid 79 (GPU has fallen off the bus) at 2026-11-21T12:00:02Z",
    ),
    "the first before a lesser one": (
        [(1, FELL_OFF), (2, UNREADABLE)],
        "Xid 79 (GPU has fallen off the bus) at 2026-11-21T12:00:01Z",
    ),
    "a driver that asks for a reset": (
        [(0, CONTAINED), (400, RESET_WANTED)],
        "the driver asks for a reset of the card at 2026-11-21T12:06:40Z",
    ),
    "rows that an agent that starts late finds": (
        [(5, Probe(uncorrectable=0, action="", defect="memory rows could not be remapped"))],
        "memory rows could not be remapped at 2026-11-21T12:00:05Z",
    ),
    "errors before an agent that starts late": (
        [(5, Probe(uncorrectable=2)), (6, Probe(uncorrectable=2))],
        "2 uncorrectable ECC errors since the driver was loaded at 2026-11-21T12:00:05Z",
    ),
    "such errors that need no reset by the driver": (
        [(5, Probe(uncorrectable=2, action=""))],
        "",
    ),
    "new uncorrectable errors": (
        [(0, Probe(uncorrectable=1, action="")), (1, Probe(uncorrectable=3))],
        "3 uncorrectable ECC errors, before 1 at 2026-11-21T12:00:01Z",
    ),
}


@pytest.mark.parametrize(("happened", "reason"), REASONS.values(), ids=REASONS)
def test_the_reason_of_an_unhealthy_card_is_shown(
    happened: list[tuple[float, Happening]], reason: str
) -> None:
    health = health_after(*happened)
    assert (health.reason, health.healthy) == (reason, not reason)


def test_which_xids_make_a_card_unhealthy_is_a_setting() -> None:
    rules = Rules(ignored_xids={94}, fatal_xids={31})
    assert health_after((1, CONTAINED), rules=rules).healthy
    assert not health_after((1, xid_fault(13)), rules=rules).healthy
    assert not health_after((1, xid_fault(31)), rules=rules).healthy
    none = Rules(ignored_xids=None, fatal_xids={31})
    assert health_after((1, FELL_OFF), rules=none).healthy
    assert not health_after((1, LOST), rules=none).healthy, "it is no Xid"
    assert not health_after((1, xid_fault(31)), rules=none).healthy


WAITS = replace(CLEAN_PROBE, pending=True)
DEFECT = replace(CLEAN_PROBE, defect="memory rows could not be remapped")
LOST_AND_BACK: list[tuple[float, Happening]] = [
    (0, FELL_OFF),
    (10, LOST),
    (100, LOST),
    (110, OLD_DRIVER),
]
UNLOADED_ONCE: list[tuple[float, Happening]] = [(0, FELL_OFF), (100, UNLOADED), (110, OLD_DRIVER)]
RESET: list[tuple[float, Happening]] = [(0, FELL_OFF), (1, LOST), (10, OLD_DRIVER)]
ONE_ERROR, TWO_ERRORS = Probe(uncorrectable=1, action=""), Probe(uncorrectable=2)
COMES_BACK: dict[str, tuple[list[tuple[float, Happening]], bool]] = {
    "after the quiet time": ([(0, CONTAINED), (300, CLEAN_PROBE)], True),
    **{
        f"{fault.text}: needs a reset": ([(0, OLD_DRIVER), (1, fault), (9e9, OLD_DRIVER)], False)
        for fault in (
            *(xid_fault(xid) for xid in (48, 64, 79, 120)),
            CardFault(FaultKind.ECC, "ECC"),
            CardFault(FaultKind.RESET, "NVML: GPU requires restart"),
        )
    },
    **{
        f"Xid {xid}: needs none": ([(0, OLD_DRIVER), (1, xid_fault(xid)), (301, OLD_DRIVER)], True)
        for xid in (61, 94, 999)
    },
    **{
        f"Xid {xid}: the driver asks for nothing": (
            [(0, CLEAN_PROBE), (1, xid_fault(xid)), (301, CLEAN_PROBE)],
            True,
        )
        for xid in RESET_XIDS
    },
    "the driver asks for a reset": (
        [(0, FELL_OFF), (10, RESET_WANTED), (9e9, RESET_WANTED)],
        False,
    ),
    "the driver asks for nothing more": (
        [(0, FELL_OFF), (10, RESET_WANTED), (400, CLEAN_PROBE)],
        True,
    ),
    "it asked a while ago": ([(0, CONTAINED), (400, RESET_WANTED), (699, CLEAN_PROBE)], False),
    "lost, and back for a while": ([*LOST_AND_BACK, (399, OLD_DRIVER)], False),
    "lost, and back: it was reset": ([*LOST_AND_BACK, (400, OLD_DRIVER)], True),
    "the driver was unloaded": ([*UNLOADED_ONCE, (400, OLD_DRIVER)], True),
    "an error of NVML that passes": ([(0, FELL_OFF), (10, UNREADABLE), (9e9, OLD_DRIVER)], False),
    "the count goes on": ([(0, TWO_ERRORS), (1, FELL_OFF), (400, TWO_ERRORS)], False),
    "the count starts again": ([(0, TWO_ERRORS), (1, FELL_OFF), (400, OLD_DRIVER)], True),
    "a fault after the reset": ([*RESET, (20, FELL_OFF), (9e9, OLD_DRIVER)], False),
    "its memory waits for a reset": ([(0, xid_fault(95)), (400, WAITS)], False),
    "the bad row is out of use till then": ([(0, CONTAINED), (400, WAITS)], True),
    "a defect": ([(0, xid_fault(64)), (9e9, DEFECT)], False),
    "a defect that is repaired": ([(0, DEFECT), (300, CLEAN_PROBE)], True),
    "the count rose": ([(0, Probe(1)), (1, CONTAINED), (400, TWO_ERRORS)], False),
    "the count is the same": ([(0, Probe(1)), (1, CONTAINED), (400, ONE_ERROR)], True),
}


@pytest.mark.parametrize(("happened", "healthy"), COMES_BACK.values(), ids=COMES_BACK)
def test_a_card_recovers_after_these_events(
    happened: list[tuple[float, Happening]], healthy: bool
) -> None:
    assert health_after(*happened).healthy is healthy


_faults = st.sampled_from(
    [
        *(xid_fault(xid) for xid in (13, 31, 48, 63, 79, 94, 119, 999)),
        CardFault(FaultKind.ECC, "double-bit ECC error"),
        CardFault(FaultKind.RESET, "NVML: GPU requires restart"),
        CardFault(FaultKind.NVML, "NVML: Uninitialized"),
        LOST,
        UNREADABLE,
        UNLOADED,
    ]
)
_probes = st.builds(
    Probe,
    uncorrectable=st.none() | st.integers(0, 3),
    action=st.sampled_from([None, "", "a reset of the card"]),
    pending=st.booleans(),
    defect=st.sampled_from(["", "broken"]),
)
_times = st.lists(st.floats(0, 1000), max_size=16).map(sorted)
_rules = st.builds(Rules, quiet=st.sampled_from([0.0, 50.0, 300.0]))


@st.composite
def happening_lists(draw: st.DrawFn) -> list[tuple[float, Happening]]:
    return [(at, draw(_faults | _probes)) for at in draw(_times)]


@patient
@given(happening_lists(), _faults, _rules)
def test_a_fault_that_counts_always_makes_unhealthy_and_no_other_changes_anything(
    happenings: Sequence[tuple[float, Happening]], fault: CardFault, rules: Rules
) -> None:
    before = health_after(*happenings, rules=rules)
    after = after_fault(before, fault, moment(2000), rules)
    if rules.counts(fault):
        assert not after.healthy
        assert after.last == 2000
    else:
        assert after == before


@patient
@given(happening_lists(), _rules)
def test_a_quiet_card_always_recovers_if_the_driver_reports_recovery_actions(
    happenings: Sequence[tuple[float, Happening]], rules: Rules
) -> None:
    unhealthy = health_after(*happenings, rules=rules)
    count = unhealthy.uncorrectable
    probed = after_probe(unhealthy, Probe(count, action=""), moment(1000 + rules.quiet), rules)
    assert probed.healthy


UNHEALTHY = CardHealth(xid_fault(79), NOON, 17.25, needs_reset=True, gone=True, uncorrectable=4)
ECC = CardHealth(CardFault(FaultKind.ECC, "double-bit ECC error"), NOON, 3.0, reset_seen=True)


@pytest.mark.parametrize("unhealthy", [{}, {"GPU-0": UNHEALTHY, "GPU-1": ECC}])
def test_written_faults_are_read(unhealthy: dict[str, CardHealth]) -> None:
    assert decode(encode("boot-1", unhealthy)) == ("boot-1", unhealthy)


def changed(field: str, value: object) -> str:
    document = json.loads(encode("boot-1", {"GPU-0": replace(UNHEALTHY)}))
    document["cards"]["GPU-0"][field] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "null",
        "[" * 100_000,
        '{"cards": {}}',
        '{"driver": "boot-1", "cards": []}',
        '{"driver": "boot-1", "cards": {"GPU-0": null}}',
        changed("fault", {"kind": "another", "text": "", "xid": None}),
        changed("since", "noon"),
        changed("last", "soon"),
        changed("last", float("nan")),
        changed("last", 10**400),
        changed("uncorrectable", "many"),
    ],
)
def test_an_invalid_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- what is wrong differs
        decode(text)


@pytest.mark.parametrize(("instance", "kept"), [("boot-1", {"GPU-0": UNHEALTHY}), ("", {})])
def test_where_the_driver_instance_is_not_known_nothing_is_kept(
    instance: str, kept: dict[str, CardHealth], tmp_path: Path
) -> None:
    """A new load of the driver would not be noticed: the card would stay unhealthy."""
    store = StateFile(tmp_path / "unhealthy-cards.json")
    FaultStore(store, lambda: instance).save({"GPU-0": UNHEALTHY})
    assert FaultStore(store, lambda: instance).load() == kept


def test_a_boot_and_a_load_of_the_module_begin_another_instance(tmp_path: Path) -> None:
    boot, module = tmp_path / "boot_id", tmp_path / "sys/module/nvidia"

    def instance() -> str:
        return driver_instance(boot, tmp_path / "sys")

    assert instance() == "", "the kernel reports nothing"
    boot.write_text("one\n")
    unloaded = instance()
    module.mkdir(parents=True)
    loaded = instance()
    assert instance() == loaded
    module.rename(tmp_path / "unloaded")  # its inode stays taken
    module.mkdir()
    again = instance()
    boot.write_text("two\n")
    assert len({"", unloaded, loaded, again, instance()}) == 5
    boot.write_bytes(b"\xff")
    assert instance() == ""
