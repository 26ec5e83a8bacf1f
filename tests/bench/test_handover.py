"""The measurement of handovers, in small."""

import pytest

from bench import handover
from bench.result import Result

pytestmark = pytest.mark.timeout(400)  # three clusters are started


@pytest.fixture(scope="module")
def result() -> Result:
    return handover.run(seconds=4.0)


def test_every_way_to_end_is_measured(result: Result) -> None:
    (table,) = result.tables
    assert [row[0] for row in table.rows] == [
        "handed over (rolling update)",
        "kill -9 beside a standby",
        "kill -9, no standby",
    ]
    assert [row[1] for row in table.rows] == [1, 1, 1]
    assert all(isinstance(row[2], int) and row[2] >= 10 for row in table.rows)


def test_no_pod_fails_in_a_handover_and_kills_leave_a_gap(result: Result) -> None:
    (goal,) = result.goals
    assert goal.met
    assert result.figures["hand_over"]["gaps"] == ()
    assert all(gap > 0 for gap in result.figures["kill_alone"]["gaps"])
    assert len(result.figures["kill_beside_standby"]["gaps"]) == 1
