"""The allocator on a node in memory: who a call is for, what it gets, and what is refused."""

import pytest

from contract.allocation import Allocation, Evidence
from contract.inventory import Amounts
from contract.resource import Resource
from tests.agent.builders import CORE, MEMORY
from tests.in_memory.node import CORE_FIRST, MEMORY_FIRST, Node
from tests.in_memory.pods import NAMES, Pod, gpu, init, make_pod, sidecar, static_pod

ORDERS = pytest.mark.parametrize("order", [CORE_FIRST, MEMORY_FIRST], ids=["cores", "memory"])


@pytest.fixture
def node() -> Node:
    return Node()


# --- the three calls for one container ------------------------------------------------


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


# --- evidence -------------------------------------------------------------------------


def test_pods_are_listed_before_a_call_is_refused_for_an_unwatched_pod(
    node: Node,
) -> None:
    """Without the kubelet's record nothing else names it."""
    pod = make_pod("a", gpu(30, 8))
    node.bind(pod, seen=False)
    node.list_error = "hanging"
    node.begin(pod)
    node.call()
    assert node.decision_log.refs("prefer") == ["a/main"]


def test_a_pod_that_has_been_freed_is_not_asking_when_the_checkpoint_forgets_it_too(
    node: Node,
) -> None:
    """K20: deleted by force, it is listed with nothing, as if it waited."""
    deleted = node.admit(make_pod("a", gpu(10, 2)))
    node.delete(deleted, ends=False, keeps=False)
    node.admit(make_pod("b", gpu(10, 2, "first"), gpu(10, 2, "second")))
    assert {*node.decision_log.evidence("prefer")} == {Evidence.WITNESS}


# --- what no call tells of ---------------------------------------------------------------


def test_a_pod_on_a_card_that_is_gone_does_not_keep_the_agent_from_starting(node: Node) -> None:
    """A card was taken out; the kubelet's checkpoint still shows its places."""
    for name, card in (("stale", 9), ("fine", 1)):
        pod = make_pod(name, gpu(2, 1))
        node.bind(pod)
        node.kubelet.know(pod)
        cores = [f"GPU-{card}::{number}" for number in range(2)]
        node.kubelet.hold(pod, "main", {CORE: cores, MEMORY: cores[:1]})
    node.allocator.refresh()
    assert [each["metadata"]["name"] for each in node.api.patches] == ["fine"]
    assert node.allocator.free(CORE) == {"GPU-0": 100, "GPU-1": 98}


@pytest.mark.parametrize("both", [False, True], ids=["agent", "agent-and-kubelet"])
def test_an_allocation_left_unwritten_by_an_ended_agent_is_written_without_a_call(
    node: Node, *, both: bool
) -> None:
    """By the evidence that its file tells; after a new kubelet that file means nothing."""
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


def test_a_pod_that_has_nothing_or_shows_it_already_is_not_caught_up(node: Node) -> None:
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
    asked = node.asked
    node.allocator.refresh(thorough=False)
    assert node.asked == asked
    node.admit(make_pod("b", gpu(30, 8)))
    asked = node.asked
    node.allocator.refresh(thorough=False)
    assert node.asked == asked + 1


def test_what_a_pod_held_is_free_though_no_call_comes_and_an_old_list_keeps_it() -> None:
    """K8: until it is deleted."""
    node = Node(active_only=False)
    pod = node.admit(make_pod("a", init(40, 8), gpu(30, 8)))
    node.ends(pod)
    node.publish_statuses()
    assert node.allocator.refresh()
    assert node.allocator.free(CORE) == {"GPU-0": 100, "GPU-1": 100}
    assert not node.allocator.refresh()


def test_what_a_pod_held_that_was_deleted_by_force_is_free_when_its_containers_have_ended(
    node: Node,
) -> None:
    """K20."""
    pod = node.admit(make_pod("a", gpu(30, 8)))
    node.delete(pod, ends=False)
    assert not node.allocator.refresh()
    assert node.allocator.free(CORE)["GPU-0"] == 70
    node.ends(pod)
    assert node.allocator.refresh()
    assert node.allocator.free(CORE)["GPU-0"] == 100


@pytest.mark.parametrize(
    ("uids", "paused", "evidence"),
    [
        (["uid-a"], 3, Evidence.WITNESS),
        (["", "uid-a"], 3, Evidence.ORDER),
        (["uid-before", "uid-a"], 3, Evidence.ORDER),
        (["", "uid-listed", "uid-a"], 3, Evidence.WITNESS),
        (["uid-listed", "uid-between", "uid-a"], 3, Evidence.ORDER),
        (["uid-listed", "uid-a", ""], 3, Evidence.ORDER),
        (["uid-listed"], 50, Evidence.ORDER),
    ],
    ids=[
        "it was uids of, alone",
        "others may have been there before the watch",
        "its name had another pod, which the kubelet may come to now",
        "its name had another pod, which the kubelet has come to",
        "and one more, which it has not come to",
        "nobody knows whether there are others",
        "it is never told of",
    ],
)
def test_a_call_that_comes_before_the_watch_event_waits_for_it(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    uids: list[str],
    paused: int,
    evidence: Evidence,
) -> None:
    """Only the watch tells that no other pod of a name can be asking; on a busy node it is late."""
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


def test_what_a_guess_gave_a_pod_without_a_spec_is_free_when_two_looks_do_not_find_it(
    node: Node,
) -> None:
    """One look may come before the kubelet has written down what was answered."""
    node.begin(static_pod("static", gpu(30, 8)))
    node.allocator.allocate(CORE, node.call())
    free = []
    for _ in range(2):
        node.allocator.refresh()
        free.append(sum(node.allocator.free(CORE).values()))
    assert free[1] - free[0] == 30
