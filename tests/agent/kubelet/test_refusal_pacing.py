"""How fast refusals are answered."""

import pytest

from agent.kubelet.refusal_pacing import BURST, LONGEST_SECONDS, PER_SECOND, RefusalPace
from tests.agent.fakes import FakeClock


def test_a_burst_is_answered_at_once_and_then_so_many_a_second() -> None:
    clock = FakeClock()
    pace = RefusalPace(clock)
    clock.now += 3600  # what is saved up meanwhile is no more than a burst
    assert [pace.delay() for _ in range(BURST)] == pytest.approx([0] * BURST)
    begun = clock.now
    for _ in range(100):
        clock.now += pace.delay()
    assert clock.now - begun == pytest.approx(100 / PER_SECOND)


def test_no_answer_is_kept_back_for_long() -> None:
    pace = RefusalPace(FakeClock())
    assert max(pace.delay() for _ in range(200)) == LONGEST_SECONDS
