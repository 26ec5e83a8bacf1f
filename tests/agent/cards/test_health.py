from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cards.health import (
    CardHealth,
    Fault,
    FaultKind,
    Moment,
    Probe,
    Rules,
    after_fault,
    after_probe,
    xid_fault,
)
from agent.cards.xids import APPLICATION_XIDS
from tests.agent.builders import patient

RULES = Rules(quiet=300)
NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
FELL_OFF, CONTAINED = xid_fault(79), xid_fault(94)
LOST = Fault(FaultKind.LOST, "NVML: GPU is lost")
UNREADABLE = Fault(FaultKind.ERROR, "NVML: Unknown Error")
UNLOADED = Fault(FaultKind.DRIVER, "NVML: Driver Not Loaded")
TOLD_ALL_WELL = Probe(uncorrectable=0, action="")
OLD_DRIVER = Probe(uncorrectable=0, action=None)
Happening = Fault | Probe


def moment(at: float) -> Moment:
    return Moment(at, NOON + timedelta(seconds=at))


def story(*happenings: tuple[float, Happening], rules: Rules = RULES) -> CardHealth:
    """What becomes of a card, from healthy, by what happens when."""
    health = CardHealth()
    for at, what in happenings:
        step = after_fault if isinstance(what, Fault) else after_probe
        health = step(health, what, moment(at), rules)  # type: ignore[arg-type]  # by its type
    return health


# --- faults ---------------------------------------------------------------------------


def test_a_fault_makes_a_card_unhealthy_and_says_what_and_when() -> None:
    health = story((1, FELL_OFF))
    assert not health.healthy
    assert health.reason == "Xid 79 (GPU has fallen off the bus) at 12:00:01"


def test_an_error_of_an_application_is_not_the_cards_fault() -> None:
    for xid in APPLICATION_XIDS:
        assert story((1, xid_fault(xid))) == CardHealth()


def test_which_errors_are_an_applications_is_a_setting() -> None:
    rules = Rules(application_xids={94})
    assert story((1, CONTAINED), rules=rules).healthy
    assert not story((1, xid_fault(13)), rules=rules).healthy


def test_an_xid_without_a_name_is_told_by_its_number() -> None:
    assert story((0, xid_fault(999))).reason == "Xid 999 at 12:00:00"


def test_the_first_fault_is_told_until_a_graver_one_comes() -> None:
    assert story((1, CONTAINED), (2, UNREADABLE)).reason.startswith("Xid 94 ")
    assert story((1, LOST), (2, FELL_OFF), (3, LOST), (4, xid_fault(119))).reason == (
        "Xid 79 (GPU has fallen off the bus) at 12:00:02"
    )


@pytest.mark.parametrize(
    ("fault", "needed"),
    [
        *((xid_fault(xid), True) for xid in (48, 62, 64, 74, 79, 95, 119, 120)),
        *((xid_fault(xid), False) for xid in (61, 63, 92, 94, 154, 999)),
        (Fault(FaultKind.ECC, "double-bit ECC error"), True),
        (Fault(FaultKind.RESET, "NVML: GPU requires restart"), True),
        (LOST, False),
        (UNLOADED, False),
        (Fault(FaultKind.MIG, "in MIG mode"), False),
    ],
)
def test_some_faults_need_a_reset(fault: Fault, needed: bool) -> None:
    assert fault.needs_reset is needed


# --- recovery -------------------------------------------------------------------------


def test_a_card_comes_back_after_the_quiet_time_by_a_passing_probe() -> None:
    assert not story((0, CONTAINED), (299.9, TOLD_ALL_WELL)).healthy
    assert story((0, CONTAINED), (300, TOLD_ALL_WELL)) == CardHealth(uncorrectable=0)


@pytest.mark.parametrize("fault", [FELL_OFF, xid_fault(119), Fault(FaultKind.ECC, "ECC")])
def test_what_needs_a_reset_waits_for_one(fault: Fault) -> None:
    assert not story((0, OLD_DRIVER), (1, fault), (9e9, OLD_DRIVER)).healthy


def test_a_driver_that_asks_for_nothing_more_is_believed() -> None:
    assert story((0, xid_fault(119)), (300, TOLD_ALL_WELL)).healthy


def test_a_driver_that_still_asks_keeps_the_card_unhealthy() -> None:
    asks = Probe(uncorrectable=0, action="a reset of the card")
    health = story((0, CONTAINED), (400, asks))
    assert health.reason == "the driver asks for a reset of the card at 12:06:40"
    asked = ((0.0, CONTAINED), (400.0, asks))
    assert not story(*asked, (699, TOLD_ALL_WELL)).healthy
    assert story(*asked, (700, TOLD_ALL_WELL)).healthy


def test_an_agent_that_starts_late_learns_from_the_driver_what_it_missed() -> None:
    assert story((5, Probe(action="a reset of the card"))).reason == (
        "the driver asks for a reset of the card at 12:00:05"
    )


@pytest.mark.parametrize("absence", [LOST, UNLOADED])
def test_a_card_that_was_gone_and_answers_again_was_reset(absence: Fault) -> None:
    away = ((0.0, FELL_OFF), (10.0, absence), (100.0, absence), (110.0, OLD_DRIVER))
    assert story(*away).reset_seen
    assert not story(*away, (399, OLD_DRIVER)).healthy
    assert story(*away, (400, OLD_DRIVER)).healthy


def test_an_error_of_nvml_that_passes_is_no_reset() -> None:
    assert not story((0, FELL_OFF), (10, UNREADABLE), (9e9, OLD_DRIVER)).healthy


def test_a_count_of_errors_that_starts_again_shows_a_reset() -> None:
    before = ((0.0, Probe(uncorrectable=2)), (1.0, FELL_OFF))
    assert not story(*before, (400, Probe(uncorrectable=2))).healthy
    assert story(*before, (400, Probe(uncorrectable=0))).healthy


def test_a_fault_after_the_reset_needs_another() -> None:
    reset = ((0.0, FELL_OFF), (1.0, LOST), (10.0, OLD_DRIVER))
    assert not story(*reset, (20, FELL_OFF), (9e9, OLD_DRIVER)).healthy
    assert story(*reset, (20, CONTAINED), (9e9, OLD_DRIVER)).healthy


def test_memory_that_waits_for_a_reset_contradicts_one() -> None:
    waiting = replace(TOLD_ALL_WELL, pending=True)
    assert not story((0, xid_fault(95)), (400, waiting)).healthy
    assert story((0, CONTAINED), (400, waiting)).healthy  # the bad row is out of use till then


def test_a_defect_keeps_an_unhealthy_card_away_but_takes_no_healthy_one() -> None:
    defect = replace(TOLD_ALL_WELL, defect="memory rows could not be remapped")
    assert not story((0, xid_fault(64)), (9e9, defect)).healthy
    assert story((0, defect)).healthy


def test_new_uncorrectable_errors_are_a_fault_wherever_they_are_seen() -> None:
    seen = story((0, Probe(uncorrectable=1)), (1, Probe(uncorrectable=3)))
    assert seen.reason == "3 uncorrectable ECC errors, before 1 at 12:00:01"
    assert seen.needs_reset
    quiet = ((0.0, Probe(uncorrectable=1)), (1.0, CONTAINED))
    assert not story(*quiet, (400, Probe(uncorrectable=2, action=""))).healthy
    assert story(*quiet, (400, Probe(uncorrectable=1, action=""))).healthy


def test_a_probe_without_a_count_keeps_the_last_one() -> None:
    assert story((0, Probe(uncorrectable=7)), (1, Probe())).uncorrectable == 7
    assert story((0, Probe())) == CardHealth()


# --- properties -----------------------------------------------------------------------

_faults = st.sampled_from(
    [
        *(xid_fault(xid) for xid in (13, 31, 48, 63, 79, 94, 119, 999)),
        Fault(FaultKind.ECC, "double-bit ECC error"),
        Fault(FaultKind.RESET, "NVML: GPU requires restart"),
        Fault(FaultKind.NVML, "NVML: Uninitialized"),
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
def stories(draw: st.DrawFn) -> list[tuple[float, Happening]]:
    return [(at, draw(_faults | _probes)) for at in draw(_times)]


@patient
@given(stories(), _faults, _rules)
def test_a_fault_that_counts_always_makes_unhealthy_and_no_other_changes_anything(
    told: Sequence[tuple[float, Happening]], fault: Fault, rules: Rules
) -> None:
    before = story(*told, rules=rules)
    after = after_fault(before, fault, moment(2000), rules)
    if rules.counts(fault):
        assert not after.healthy
        assert after.last == 2000
    else:
        assert after == before


@patient
@given(stories(), _rules)
def test_a_card_comes_back_only_by_a_clean_probe_after_the_quiet_time_and_a_needed_reset(
    told: Sequence[tuple[float, Happening]], rules: Rules
) -> None:
    health, last, needy = CardHealth(), 0.0, False
    for at, what in told:
        if isinstance(what, Fault):
            health, before = after_fault(health, what, moment(at), rules), health
            assert before.healthy or not health.healthy  # a fault heals nothing
            if rules.counts(what):
                last, needy = at, needy or what.needs_reset
            continue
        health, before = after_probe(health, what, moment(at), rules), health
        rose = (
            what.uncorrectable is not None
            and before.uncorrectable is not None
            and what.uncorrectable > before.uncorrectable
        )
        if rose or what.action:
            last, needy = at, True
            assert not health.healthy
        if health.healthy and not before.healthy:
            assert at - last >= rules.quiet
            assert not what.defect
            assert (
                not needy
                or before.reset_seen
                or what.action == ""
                or before.gone
                or (
                    before.uncorrectable is not None
                    and what.uncorrectable is not None
                    and what.uncorrectable < before.uncorrectable
                )
            )
            assert not (needy and what.pending)
            needy = False
        if before.healthy and not (rose or what.action):
            assert health.healthy  # nothing but a fault makes unhealthy


@patient
@given(stories(), _rules)
def test_a_quiet_card_of_a_driver_that_can_tell_always_comes_back(
    told: Sequence[tuple[float, Happening]], rules: Rules
) -> None:
    ill = story(*told, rules=rules)
    count = ill.uncorrectable
    well = after_probe(ill, Probe(count, action=""), moment(1000 + rules.quiet), rules)
    assert well.healthy


@patient
@given(stories(), _faults, _faults, _rules)
def test_the_order_of_faults_of_one_moment_changes_only_what_is_told(
    told: Sequence[tuple[float, Happening]], one: Fault, other: Fault, rules: Rules
) -> None:
    before = story(*told, rules=rules)
    now = moment(2000)
    there = after_fault(after_fault(before, one, now, rules), other, now, rules)
    back = after_fault(after_fault(before, other, now, rules), one, now, rules)
    assert replace(there, fault=None, since=None) == replace(back, fault=None, since=None)
