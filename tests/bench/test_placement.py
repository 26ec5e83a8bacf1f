"""Placement in a tiny configuration."""

from bench import placement
from bench.peers import quality
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


def test_links_are_compared_over_every_set_of_free_cards() -> None:
    """What docs/benchmarks.md says of these machines."""
    links, in_a_row = quality.tables()
    found = {name: (sets, below, above) for name, sets, below, _, above, _ in links.rows}
    assert found["DGX-1 Pascal"] == (629, 0, 20)
    assert found["DGX-1 Volta"] == (629, 0, 42)
    assert found["NVLink bridges"] == (629, 0, 32)
    assert found["cube mesh"] == (629, 16, 9)
    assert {name: row[0] for name, *row in in_a_row.rows}["DGX-1 Pascal"] == "600 (600)"
