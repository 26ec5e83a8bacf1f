"""Placement in a tiny configuration."""

from bench import placement
from bench.peers.machines import MACHINES

RTX8000 = MACHINES["4 x RTX8000"]


def test_a_small_measurement_answers_all_questions() -> None:
    result = placement.run(states=20, brute=20, seeds=6, machines=[RTX8000])
    speed, packing, *links = result.tables
    assert [row[0] for table in links for row in table.rows] == [RTX8000.name] * 2
    assert [row[0] for row in speed.rows] == ["ours", "every set"]
    assert [row[0] for row in packing.rows] == ["ours", "gpu-manager's rules", "first-fit"]
    goals = {goal.what: goal for goal in result.goals}
    assert goals["sets worse connected than the best there is"].met
    assert goals["refused by ours though a placement existed"].met
