"""The bench of the scheduler extender, on a small scale."""

import threading

from bench import scheduler
from tests.agent.fakes import eventually


def test_decisions_and_start_are_measured_on_small_clusters() -> None:
    speed = scheduler.Speed(20)
    speed.measure(10)
    assert len(speed.ours) == len(speed.first_fit) == 10
    before = {*threading.enumerate()}
    seconds, mib = scheduler.start(20, 100)
    assert seconds > 0
    assert mib > 10
    eventually(lambda: before >= {*threading.enumerate()}, "the API server's threads end", within=5)


def test_the_extender_gets_as_many_nodes_as_from_kube_scheduler() -> None:
    sent = [scheduler.nodes_sent(nodes) for nodes in (20, 100, 1000, 5000, 10_000)]
    assert sent == [20, 100, 420, 500, 500]
