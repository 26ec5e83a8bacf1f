"""The footprint in a tiny configuration: that it measures, not what."""

from bench import footprint
from bench.load import Load


def test_a_small_node_is_measured() -> None:
    result = footprint.run(usual=Load(1, 4, 2), large=Load(1, 76, 1), starts=1, idle_seconds=0.2)
    starts, nodes = result.tables
    for _, shortest, median, longest in starts.rows:
        assert 0 < float(shortest) <= float(median) <= float(longest) <= 60
    assert [row[:2] for row in nodes.rows] == [(1, 4), (1, 75)]  # no more than fit
    for _, _, started, served, idle in nodes.rows:
        assert 10 < float(started) <= 1000
        assert 10 < float(served) <= 1000
        assert float(idle) >= 0
