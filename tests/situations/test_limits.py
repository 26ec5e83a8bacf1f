"""Every container finds its own limits: in bursts, after kills, with a wiped disk."""

import shutil
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.situations.build import Json, Node, a_node, a_pod, gpu, uid_of, wait_for


def crowd(count: int, *, seed: int, prefix: str = "p") -> list[Json]:
    """Shares of different sizes, some with init containers, and a whole card."""
    random = Random(seed)
    pods = []
    for number in range(count):
        containers = [
            gpu(f"c{each}", random.choice((1, 2, 3)), random.choice((1, 2, 3)))
            for each in range(random.choice((1, 1, 2, 3)))
        ]
        init = [gpu("init", 2, random.choice((1, 2)))] if random.random() < 0.2 else []
        if number == 0:
            containers, init = [gpu("whole", 100, 32)], []
        pods.append(a_pod(f"{prefix}-{number}", *containers, init=init, at=number))
    return pods


def a_limited_node(**options: object) -> Node:
    return a_node(seed=3, cards=8, memory="32Gi", limits=True, **options)


def directories(node: Node) -> set[Path]:
    return {each for each in (node.state / "tickets").iterdir() if not each.name.startswith(".")}


def assert_own_limits(node: Node) -> None:
    assert node.wrong_limits() == [], node.wrong_limits()
    node.assert_sound()


def restart_all(node: Node) -> None:
    """Let every container end and start again, as a crashed program does."""
    names = {view.id.uid: view.id.name for view in node.views()}
    starts = Counter(_starts(node))
    running = sorted(node.kubelet.running())
    for uid, container in running:
        node.kubelet.restart_container("default", names[uid], container)
    wait_for(lambda: all(_starts(node)[each] > starts[each] for each in running))


def _starts(node: Node) -> Counter[tuple[str, str]]:
    events = node.kubelet.trace.events
    return Counter((each.pod_uid, each.container) for each in events if each.event == "start")


def test_every_container_of_a_burst_finds_its_own_limits() -> None:
    with a_limited_node() as node:
        node.bind(*crowd(25, seed=1))
        node.settle()
        assert node.decision_log.refusals == []
        assert_own_limits(node)


def test_only_the_files_of_deleted_pods_are_removed() -> None:
    with a_limited_node() as node:
        pods = crowd(10, seed=2)
        node.bind(*pods)
        node.settle()
        before = directories(node)
        node.sweep_limits()
        assert directories(node) == before
        for each in pods[::2]:
            node.delete(uid_of(each))
        wait_for(lambda: not _remaining(node, pods[::2]))
        node.sweep_limits()
        left = directories(node)
        assert left < before
        assert_own_limits(node)
        for each in pods[1::2]:
            node.delete(uid_of(each))
        wait_for(lambda: not _remaining(node, pods))
        node.sweep_limits()
        assert directories(node) == set()


def _remaining(node: Node, pods: list[Json]) -> set[str]:
    node.sweep()
    return {uid_of(each) for each in pods} & {view.id.uid for view in node.views()}


@pytest.mark.parametrize("wiped", [False, True], ids=["disk kept", "disk wiped"])
def test_an_agent_killed_in_a_burst_leaves_every_container_its_own_limits(wiped: bool) -> None:
    with a_limited_node() as node:
        node.bind(*crowd(10, seed=4, prefix="a"))
        wait_for(lambda: len(node.admissions()) > 8)
        node.kill_agent()
        if wiped:
            shutil.rmtree(node.state / "tickets")
        node.start_agent()
        node.wait_until_offered()
        node.bind(*crowd(10, seed=5, prefix="b"))
        node.settle()
        if wiped:  # running containers keep their mounts; restarted ones get new files
            restart_all(node)
        assert_own_limits(node)
