"""The footprint in a tiny configuration: that it measures, not what."""

from bench import footprint
from bench.load import Load


def test_a_small_node_is_measured_and_its_goals_are_named() -> None:
    result = footprint.run(cards=1, live=4, arriving=2, idle_seconds=0.5)
    (row,) = result.tables[0].rows
    live, started, served, idle = row
    assert live == 4
    assert isinstance(started, float)
    assert isinstance(served, float)
    assert isinstance(idle, float)
    assert 10 < started <= 1000
    assert 10 < served <= 1000
    assert idle >= 0
    assert [each.what for each in result.goals] == ["MiB resident", "idle CPU, percent"]


def test_no_more_live_containers_than_fit_are_counted() -> None:
    assert footprint.measure(Load(1, 76, 1), 0.1).live == 75
