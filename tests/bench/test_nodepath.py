"""The node path in a tiny configuration: real processes, real sockets."""

from bench import nodepath
from bench.load import Load


def test_both_plugins_are_measured_and_no_start_waits_for_list() -> None:
    found = nodepath.measure(Load(1, 3, 3), seed=1)
    assert list(found.times) == list(found.cpu) == ["ours", "bare"]
    assert [len(seconds) for seconds in found.times.values()] == [2, 2]
    assert found.reads <= 1
    assert (found.lists, found.lists_at_start) == (2, 0)
