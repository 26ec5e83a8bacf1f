"""Refusals are answered at a pace; everything else at once."""

import pytest

from agent.allocator.model.answer import Answer
from agent.errors import PlacementError, Unavailable
from agent.kubelet.refusal_pacing import LONGEST_SECONDS, PacedCalls, RefusalPace
from tests.agent.builders import CORE
from tests.agent.fakes import FakeCalls, FakeClock


def test_a_burst_is_answered_at_once_and_then_so_many_a_second() -> None:
    clock = FakeClock()
    pace = RefusalPace(clock, burst=3, per_second=10)
    answered = list[float]()
    for _ in range(23):
        clock.now += pace.delay()
        answered.append(clock.now - 1000)
    assert answered[:3] == pytest.approx([0, 0, 0])
    assert answered[-1] == pytest.approx(2.0)


def test_what_is_saved_up_is_no_more_than_a_burst() -> None:
    clock = FakeClock()
    pace = RefusalPace(clock, burst=2, per_second=10)
    clock.now += 3600
    assert [pace.delay() for _ in range(3)] == pytest.approx([0, 0, 0.1])


def test_no_answer_is_kept_back_for_long() -> None:
    pace = RefusalPace(FakeClock(), burst=1, per_second=10)
    assert max(pace.delay() for _ in range(100)) == LONGEST_SECONDS


def test_only_refusals_of_the_kubelets_serial_calls_wait() -> None:
    calls, waits = FakeCalls(), list[float]()
    paced = PacedCalls(
        calls, wait=waits.append, pace=RefusalPace(FakeClock(), burst=1, per_second=10)
    )
    assert paced.prefer(CORE, ["GPU-0::0"], [], 1) == ["GPU-0::0"]
    assert isinstance(paced.allocate(CORE, ["GPU-0::0"]), Answer)
    assert waits == []
    calls.error = PlacementError("no card fits")
    for _ in range(2):
        with pytest.raises(PlacementError):
            paced.prefer(CORE, ["GPU-0::0"], [], 1)
    with pytest.raises(PlacementError):
        paced.allocate(CORE, ["GPU-0::0"])
    with pytest.raises(PlacementError):
        paced.prestart(CORE, ["GPU-0::0"])
    assert waits == pytest.approx([0, 0.1, 0.2])
    calls.error = Unavailable("away")
    with pytest.raises(Unavailable):
        paced.allocate(CORE, ["GPU-0::0"])
    assert len(waits) == 3
