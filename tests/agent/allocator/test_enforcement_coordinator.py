"""Calls of the enforcer: before an assignment, before a start, and after pods have ended."""

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import pytest

from agent.errors import EnforcementError
from agent.holdings.edits import ContainerEdits, Mount
from agent.holdings.holding import UNKNOWN, ContainerRef, Holding
from contract.inventory import Amounts
from placement.pods import PodId
from tests.agent.builders import CORE, MEMORY, holding
from tests.agent.fakes import DEADLINE_S
from tests.in_memory.node import MEMORY_FIRST, Node
from tests.in_memory.pods import gpu, init, make_pod


class FakeEnforcer:
    limits = True

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.made: list[Holding] = []
        self.started: list[Holding] = []
        self.kept: list[set[PodId]] = []
        self.candidates: list[list[str]] = []
        self.chosen = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def prepare_allocation(self, holding: Holding) -> ContainerEdits:
        self._fail()
        self.made.append(holding)
        self.meanwhile()
        count = holding.count(CORE) or holding.count(MEMORY)
        return ContainerEdits({"LIMIT": str(count)}, mounts=(Mount("/etc/limit", "/host"),))

    def prepare_start(self, holding: Holding) -> None:
        self._fail()
        self.started.append(holding)

    def identify_starting(self, candidates: Sequence[Holding]) -> Holding:
        self.candidates.append([each.ref.container for each in candidates])
        return candidates[self.chosen]

    def prune(self, pods: Collection[PodId]) -> None:
        self.kept.append(set(pods))

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.fixture
def enforcer() -> FakeEnforcer:
    return FakeEnforcer()


@pytest.fixture
def node(enforcer: FakeEnforcer) -> Node:
    return Node(1, enforcer=enforcer)


def test_the_enforcer_adds_to_the_response(node: Node) -> None:
    node.begin(make_pod("p", gpu(30, 4)))
    edits = node.allocator.allocate(CORE, node.call())
    assert edits == ContainerEdits(
        {"CARDS": "GPU-0", "LIMIT": "30"}, mounts=(Mount("/etc/limit", "/host"),)
    )


def test_a_call_that_cannot_be_prepared_is_refused_and_nothing_is_assigned(
    node: Node, enforcer: FakeEnforcer
) -> None:
    node.begin(make_pod("p", gpu(30, 4)))
    node.call()
    enforcer.error = EnforcementError("state-dir: no space left on device")
    with pytest.raises(EnforcementError, match="no space left"):
        node.call()
    assert node.allocator.free(CORE) == {"GPU-0": 100}
    assert node.decision_log.refusals[-1].reason == "state-dir: no space left on device"


def test_nothing_is_created_for_slots_of_another_container(
    node: Node, enforcer: FakeEnforcer
) -> None:
    """Files of the running container must not change (fact K15)."""
    holder = node.admit(make_pod("a", gpu(30, 4)))
    node.begin(make_pod("b", gpu(30, 4)))
    before = list(enforcer.made)
    with pytest.raises(Exception, match="held by another container"):
        node.allocator.allocate(CORE, sorted(node.held(holder)[CORE]))
    assert enforcer.made == before


def test_a_start_and_a_query_return_the_limits_of_the_proven_container(
    node: Node, enforcer: FakeEnforcer
) -> None:
    pod = node.admit(make_pod("p", gpu(30, 4), core_limit="80"))
    node.start(pod)
    ids, ref = node.held(pod)[CORE], ContainerRef(pod.id, "main")
    about = replace(holding(ref, ids, {"GPU-0": 4}, core_limit=80), runtime_uid=pod.uid)
    assert enforcer.started == [about]
    assert node.allocator.entitled(pod.uid, "main") == about
    assert node.allocator.entitled(pod.uid, "other") is None
    assert node.allocator.entitled("forged", "main") is None


@pytest.mark.parametrize("memory", [0, 4])
def test_whole_cards_have_no_memory_limit(node: Node, enforcer: FakeEnforcer, memory: int) -> None:
    """As with gpu-manager, whatever memory is requested beside them."""
    node.start(node.admit(make_pod("p", gpu(100, memory))))
    assert [each.cards for each in enforcer.made] == [{"GPU-0": Amounts(100, 0)}]
    (about,) = enforcer.started
    assert about.ref != UNKNOWN
    assert about.is_whole
    assert (about.memory_limits, about.core_limit) == ({}, None)


def test_the_memory_of_a_guessed_container_is_limited_because_it_may_be_a_share(
    enforcer: FakeEnforcer,
) -> None:
    node = Node(1, enforcer=enforcer, active_only=False)
    node.rejected(make_pod("p", gpu(100, 4)))
    pod = node.begin(make_pod("q", gpu(100, 4)), MEMORY_FIRST)
    node.serve(pod, "main", MEMORY)
    (made,) = enforcer.made
    assert (made.count(MEMORY), made.count(CORE)) == (4, 0)
    assert made.memory_limits


def test_a_start_of_an_unknown_container_is_prepared_by_its_slots(
    node: Node, enforcer: FakeEnforcer
) -> None:
    ids = ["GPU-0::0", "GPU-0::1"]
    node.allocator.prestart(CORE, ids)
    assert enforcer.started == [holding(UNKNOWN, ids)]


def test_a_start_is_vetoed_when_it_cannot_be_made_ready(node: Node, enforcer: FakeEnforcer) -> None:
    pod = node.admit(make_pod("p", gpu(30, 4)))
    enforcer.error = EnforcementError("state-dir: read-only")
    with pytest.raises(EnforcementError):
        node.start(pod)
    enforcer.error = None
    node.start(pod)  # the kubelet tries again
    assert len(enforcer.started) == 1, "for the cores alone"


def test_a_sweep_keeps_pods_that_are_held_bound_or_listed(
    node: Node, enforcer: FakeEnforcer
) -> None:
    held, bound, deleted = (make_pod(name, gpu(10, 1)) for name in ("held", "bound", "deleted"))
    node.admit(held)
    node.admit(deleted)
    node.bind(bound)
    node.delete(deleted)
    node.allocator.refresh()
    node.allocator.sweep()
    assert enforcer.kept == [{held.id, bound.id, PodId("default", "held", "")}]


def test_a_sweep_removes_nothing_while_the_kubelet_is_unavailable(
    node: Node, enforcer: FakeEnforcer
) -> None:
    node.list_error = "rate limited"
    node.allocator.sweep()
    assert enforcer.kept == []


def test_a_sweep_waits_for_an_allocation_in_progress(node: Node, enforcer: FakeEnforcer) -> None:
    """Between preparation and assignment no source has the pod: the watch is behind."""
    pod = make_pod("p", gpu(100, 0))
    node.bind(pod, seen=False)
    node.begin(pod)
    node.call()
    sweeper = threading.Thread(target=node.allocator.sweep)
    enforcer.meanwhile = sweeper.start
    node.call()
    sweeper.join(DEADLINE_S)
    assert enforcer.kept == [{pod.id, PodId("default", "p", "")}]


def test_the_enforcer_identifies_which_of_several_with_the_same_slots_starts(
    node: Node, enforcer: FakeEnforcer
) -> None:
    """An init container leaves its slots, and a start has nothing but slots (K7, K10)."""
    pod = node.admit(make_pod("p", init(30, 4, "a"), init(30, 2, "b"), gpu(30, 8)))
    same = {node.held(pod, name)[CORE] for name in ("a", "b", "main")}
    assert len(same) == 1
    for enforcer.chosen, (name, blocks) in enumerate((("a", 4), ("b", 2), ("main", 8))):
        node.start(pod, name)
        about = enforcer.started[-1]
        assert about.ref.container == name
        assert about.memory_limits == {"GPU-0": blocks}
    assert enforcer.candidates == [["a", "b", "main"]] * 3
