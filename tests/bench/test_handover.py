"""The measurement of handovers, in small."""

from collections import Counter

import pytest

from bench import handover
from bench.handover import Outcome


@pytest.mark.parametrize("lost", [0, 2])
def test_every_way_to_end_is_measured_and_no_pod_may_fail_in_a_handover(
    monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    def measure(way: str, times: int, seconds: float) -> Outcome:
        assert seconds == 60
        failed = Counter(refused=lost if way == "hand_over" else 5)
        return Outcome(times, 300, failed, () if way == "hand_over" else (0.01, 0.02))

    monkeypatch.setattr(handover, "measure", measure)
    result = handover.run(seconds=60)
    (table,) = result.tables
    assert table.rows == [
        ("handed over (rolling update)", 10, 300, lost, 0),
        ("kill -9 beside a standby", 2, 300, 5, 20),
        ("kill -9, no standby", 2, 300, 5, 20),
    ]
    (goal,) = result.goals
    assert goal.met is (lost == 0)
