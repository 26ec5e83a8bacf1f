"""The node path in a tiny configuration: real processes, real sockets."""

from bench import nodepath
from bench.load import Load
from contract.resource import Resource


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


def test_what_live_containers_hold_is_what_they_ask_for_and_nothing_twice() -> None:
    load = Load(2, 30, 1)
    places: set[tuple[Resource, str]] = set()
    table = load.table()
    for view, held in load.held():
        (container,) = view.demand.containers
        counts = [len(held[resource]) for resource in held]
        assert counts == [container.demand.cores, container.demand.memory]
        for resource, ids in held.items():
            assert table.read(resource, ids)
            assert not places & {(resource, each) for each in ids}
            places |= {(resource, each) for each in ids}
