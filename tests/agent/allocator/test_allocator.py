"""The allocator on a node in memory: targets of calls, their slots, and refusals."""

from typing import cast

import pytest

from agent.allocator.interfaces import PodSource
from agent.allocator.observer import PodReader
from agent.errors import Unavailable
from contract.allocation import Allocation, Evidence
from contract.inventory import Amounts
from contract.resource import Resource
from tests.agent.builders import CORE, MEMORY, cases
from tests.agent.fakes import FakeClock
from tests.in_memory.node import CORE_FIRST, MEMORY_FIRST, Node
from tests.in_memory.pods import NAMES, Pod, gpu, init, make_pod, sidecar, static_pod

ORDER, WITNESS = Evidence.ORDER, Evidence.WITNESS
ORDERS = pytest.mark.parametrize("order", [CORE_FIRST, MEMORY_FIRST], ids=["cores", "memory"])


@ORDERS
def test_a_share_is_resolved_placed_translated_and_proven(
    node: Node, order: tuple[Resource, ...]
) -> None:
    pod = node.admit(make_pod("a", gpu(30, 8)), order)
    node.start(pod)

    assert [each.cards for each in node.grants] == [
        {"GPU-0": {CORE: Amounts(30, 0), MEMORY: Amounts(0, 8)}[resource]} for resource in order
    ]
    assert node.cards(pod) == ["GPU-0"]
    assert node.decision_log.evidence("prefer") == [Evidence.WITNESS] * 2
    assert node.decision_log.evidence("allocate") == [Evidence.TICKET] * 2
    assert node.decision_log.evidence("prestart") == [Evidence.RECORD] * 2
    assert set(node.decision_log.refs("prestart")) == {"a/main"}
    assert node.written(pod) == {"main": Allocation(("GPU-0",), 30, 8, Evidence.WITNESS)}
    assert not node.decision_log.refusals
    assert not node.decision_log.of("corrected")


# --- without a call -------------------------------------------------------------------


@pytest.mark.parametrize("both", [False, True], ids=["agent", "agent-and-kubelet"])
def test_an_allocation_that_a_killed_agent_did_not_write_is_written_without_a_call(
    node: Node, *, both: bool
) -> None:
    """With the evidence in its file, which is not valid for another kubelet."""
    node.written(node.admit(make_pod("done", gpu(10, 2))))
    pod = node.admit(make_pod("a", sidecar(10, 2), gpu(30, 8)))
    if both:
        node.restart_kubelet()
    node.restart_agent()
    node.allocator.refresh()
    assert [each["metadata"]["name"] for each in node.api.patches] == ["a"]
    evidence = Evidence.RECORD if both else Evidence.WITNESS
    assert node.written(pod) == {
        "main": Allocation(("GPU-0",), 30, 8, evidence),
        "side": Allocation(("GPU-0",), 10, 2, evidence),
    }
    assert node.allocator.free(CORE) == {"GPU-0": 50, "GPU-1": 100}


def test_only_a_missing_allocation_annotation_is_written_at_an_event(node: Node) -> None:
    pod = node.admit(make_pod("a", gpu(30, 8)))
    node.written(pod)
    node.bind(make_pod("plain"), make_pod("waiting", gpu(30, 8)))
    node.watch.deliver()
    assert not node.api.patches
    del pod.annotations[NAMES.gpu_allocation]
    node.api.changed(pod)
    node.watch.deliver()
    assert [each["metadata"]["name"] for each in node.api.patches] == ["a"]


def test_the_kubelet_is_not_called_if_nothing_may_have_changed(node: Node) -> None:
    node.admit(make_pod("a", gpu(30, 8)))
    node.allocator.refresh()
    calls = node.asked
    node.allocator.refresh(thorough=False)
    assert node.asked == calls
    node.admit(make_pod("b", gpu(30, 8)))
    calls = node.asked
    node.allocator.refresh(thorough=False)
    assert node.asked == calls + 1


def test_slots_of_an_ended_pod_are_free_without_a_call_though_an_old_list_shows_it() -> None:
    """K8: until it is deleted."""
    node = Node(active_only=False)
    pod = node.admit(make_pod("a", init(40, 8), gpu(30, 8)))
    node.ends(pod)
    node.publish_statuses()
    assert node.allocator.refresh()
    assert node.allocator.free(CORE) == {"GPU-0": 100, "GPU-1": 100}
    assert not node.allocator.refresh()


BETWEEN = ["uid-listed", "uid-between", "uid-a"]


@cases(
    "uids, paused, evidence",
    {
        "its event, alone": (["uid-a"], 3, WITNESS),
        "other pods may have been there before the watch": (["", "uid-a"], 3, ORDER),
        "its name had another pod, which may be admitted now": (["uid-before", "uid-a"], 3, ORDER),
        "its name had another pod, which was admitted": (["", "uid-listed", "uid-a"], 3, WITNESS),
        "and one more, which was not admitted": (BETWEEN, 3, ORDER),
        "there may be other pods": (["uid-listed", "uid-a", ""], 3, ORDER),
        "no event": (["uid-listed"], 50, ORDER),
    },
)
def test_a_call_that_comes_before_the_watch_event_waits_for_it(
    node: Node, monkeypatch: pytest.MonkeyPatch, uids: list[str], paused: int, evidence: Evidence
) -> None:
    """Only the watch shows that a name has no other pod; on a busy node it is late."""
    before = node.admit(_named("uid-listed"))
    node.start(before)
    node.delete(before)
    node.allocator.refresh()
    node.kubelet.state.write()
    node.allocator.refresh()
    node.paused = 0
    cache = node.watch.cache
    monkeypatch.setattr(cache, "uids_seen", lambda _: uids if node.paused >= 3 else [])
    pod = _named("uid-a")
    node.bind(pod, seen=False)
    node.begin(pod)
    node.call()
    assert (node.paused, node.decision_log.evidence("prefer")[2:]) == (paused, [evidence])


def _named(uid: str) -> Pod:
    pod = make_pod("a", gpu(30, 8))
    pod.uid = uid
    return pod


def test_guessed_slots_of_a_pod_without_a_spec_are_free_if_two_observations_lack_them(
    node: Node,
) -> None:
    """One observation may come before the kubelet has written the allocation."""
    node.begin(static_pod("static", gpu(30, 8)))
    node.allocator.allocate(CORE, node.call())
    free = []
    for _ in range(2):
        node.allocator.refresh()
        free.append(sum(node.allocator.free(CORE).values()))
    assert free[1] - free[0] == 30


# --- reading pods while a call waits --------------------------------------------------


class SlowPods:
    """An API server whose first responses never come, or fail at once."""

    def __init__(self, failures: int, *, hangs: bool) -> None:
        self.clock = FakeClock()
        self.within: list[float] = []
        self._failures, self._hangs = failures, hangs

    def fetch(self, namespace: str, name: str, *, within: float) -> None:
        self.within.append(round(within, 3))
        if len(self.within) <= self._failures:
            self.pause(within if self._hangs else 0)
            raise Unavailable("no response")

    def pause(self, seconds: float) -> None:
        self.clock.now += seconds

    def reader(self) -> PodReader:
        return PodReader(cast(PodSource, self), self.clock, self.pause)


@cases(
    "pods, within, in_time",
    {
        "at once": (SlowPods(0, hangs=False), [0.5, 0.5], True),
        "after two errors": (SlowPods(2, hangs=False), [0.5, 0.475, 0.75, 0.375], True),
        "never": (SlowPods(9, hangs=False), [0.5, 0.475, 0.75], False),
        "after one hung request": (SlowPods(1, hangs=True), [0.5, 0.225, 0.225], True),
        "all requests hang": (SlowPods(9, hangs=True), [0.5, 0.225, 0.025], False),
    },
)
def test_every_request_leaves_time_for_another_before_the_deadline(
    pods: SlowPods, within: list[float], *, in_time: bool
) -> None:
    reader = pods.reader()
    keys = [("default", "a"), ("default", "b")]
    assert reader.read(keys, deadline=reader.deadline(1.0)) is in_time
    assert pods.within == within
    assert pods.clock.now <= 1001


def test_an_unreachable_api_server_gets_one_retry_until_it_responds() -> None:
    pods = SlowPods(8, hangs=False)
    reader = pods.reader()
    requests = []
    for _ in range(4):
        reader.read([("default", "a")], deadline=reader.deadline(1.0))
        requests.append(len(pods.within))
    assert requests == [3, 6, 8, 9]
