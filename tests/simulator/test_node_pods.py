"""The pods of a node in this process: an API server, and a watch that may be behind it."""

from contract.names import Names
from simulator.burst import container, pod
from simulator.node.pods import Json, PodsInMemory

NAMES = Names()


def a_pod(name: str = "p", uid: str = "u") -> Json:
    made = pod(name, [container("c0", 10, 4, NAMES)])
    made["metadata"]["uid"] = uid
    return made


def uids(pods: PodsInMemory) -> list[str]:
    return [each.id.uid for each in pods.views()]


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
