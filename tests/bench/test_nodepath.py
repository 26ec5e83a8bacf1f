"""The node path in a tiny configuration: real processes, real sockets."""

from bench import nodepath
from bench.load import Load


def test_all_plugins_are_measured_and_no_start_waits_for_list() -> None:
    found = nodepath.measure(Load(1, 3, 3), seed=1)
    assert list(found.times) == list(found.cpu) == ["ours", "asking", "bare"]
    for measured in found.times.values():
        assert len(measured["container"]) == 2
        assert all(len(measured[call]) == 4 for call in ("GetPreferredAllocation", "Allocate"))
        assert len(measured["PreStartContainer"]) == 4
    assert found.reads <= 1
    assert found.list_kib > 0
    assert (found.lists, found.lists_at_start) == (2, 0)
