"""The pods of a node in this process: an API server, and a watch that may be behind it."""

from agent.allocator.model.pod_view import PodView
from contract.allocation import Allocation, Evidence
from contract.names import Names
from simulator.burst import container, pod
from simulator.node.pods import Json, PodsInMemory

NAMES = Names()
GOT = {"c0": Allocation(("GPU-0",), 10, 4, Evidence.WITNESS)}


def a_pod(name: str = "p", uid: str = "u") -> Json:
    made = pod(name, [container("c0", 10, 4, NAMES)])
    made["metadata"]["uid"] = uid
    return made


def uids(pods: PodsInMemory) -> list[str]:
    return [each.id.uid for each in pods.views()]


def test_the_watch_tells_what_happens() -> None:
    pods = PodsInMemory(NAMES)
    pods.bind(a_pod())
    [view] = pods.views()
    pods.put(view, GOT)
    pods.delete("u")
    pods.end("u")
    [after] = pods.views()
    assert (after.assigned, after.deleting, after.terminal) == (True, True, True)
    assert pods.recorded("u") == after.annotated == GOT
    pods.remove("u")
    assert uids(pods) == []
    assert pods.recorded("u") == {}


def test_a_watch_that_hangs_tells_nothing_until_it_catches_up() -> None:
    pods = PodsInMemory(NAMES)
    for uid in ("gone", "failed"):
        pods.bind(a_pod(uid, uid))
    pods.hang()
    pods.remove("gone")
    pods.end("failed")
    pods.bind(a_pod("new", "new"))
    assert uids(pods) == ["gone", "failed"]
    assert not any(each.terminal for each in pods.views())
    pods.catch_up()
    assert uids(pods) == ["failed", "new"]
    assert [each.terminal for each in pods.views()] == [True, False]


def test_a_pod_that_was_not_seen_is_there_once_it_is_asked_for() -> None:
    pods = PodsInMemory(NAMES)
    pods.bind(a_pod(), seen=False)
    assert uids(pods) == []
    assert pods.fetch("default", "other") is None
    found = pods.fetch("default", "p")
    assert found is not None
    assert uids(pods) == ["u"]
    assert pods.fetched == 2


def test_of_two_pods_of_one_name_the_newest_is_given() -> None:
    pods = PodsInMemory(NAMES)
    pods.bind(a_pod(uid="old"))
    pods.hang()
    pods.remove("old")
    pods.bind(a_pod(uid="new"))
    found = pods.fetch("default", "p")
    assert found is not None
    assert found.id.uid == "new"
    assert uids(pods) == ["new"]  # a name belongs to one pod: the old one is gone


def test_whoever_subscribes_is_told_of_what_the_watch_tells() -> None:
    told: list[PodView] = []
    pods = PodsInMemory(NAMES)
    pods.subscribe(told.append)
    pods.bind(a_pod("one", "1"))
    pods.hang()
    pods.bind(a_pod("two", "2"))
    pods.bind(a_pod("three", "3"))
    assert [each.id.uid for each in told] == ["1"]
    pods.fetch("default", "three")
    pods.catch_up()
    assert [each.id.uid for each in told] == ["1", "3", "2"]
