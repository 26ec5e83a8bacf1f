"""The footprint in a tiny configuration: that it measures, not what."""

from bench import footprint
from bench.load import Load


def test_a_small_node_is_measured_and_its_goals_are_named() -> None:
    result = footprint.run(usual=Load(1, 4, 2), large=Load(2, 5, 1), starts=2, idle_seconds=0.5)
    starts, nodes = result.tables
    for _, shortest, median, longest in starts.rows:
        assert isinstance(shortest, float)
        assert isinstance(median, float)
        assert isinstance(longest, float)
        assert 0 < shortest <= median <= longest <= 60
    assert [row[:2] for row in nodes.rows] == [(1, 4), (2, 5)]
    for _, _, started, served, idle in nodes.rows:
        assert isinstance(started, float)
        assert isinstance(served, float)
        assert isinstance(idle, float)
        assert 10 < started <= 1000
        assert 10 < served <= 1000
        assert idle >= 0
    assert [each.what for each in result.goals] == [
        "seconds from start to registered, median",
        "MiB resident, 1 cards and 4 live",
        "MiB resident, 2 cards and 5 live",
        "idle CPU, percent",
    ]


def test_no_more_live_containers_than_fit_are_counted() -> None:
    assert footprint.measure(Load(1, 76, 1), 0.1).live == 75
