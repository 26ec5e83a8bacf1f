"""The cluster's state: after each event it equals one that is read again."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from contract.stamps import OrderStamp
from placement.cluster import node_allocations
from placement.cluster.holdings import PodCards, known_cards
from placement.cluster.nodes import Node
from placement.pods import PodInfo
from scheduler.state import State
from tests.agent.builders import patient
from tests.placement.cluster.builders import NAMES, a_pod, hint, make_node, make_pod, record
from tests.scheduler.states import free_amounts


@pytest.fixture
def state() -> State:
    made = State(NAMES)
    made.put_node(make_node("n1", 2))
    made.put_node(make_node("n2", 2))
    return made


FULL = [(100, 32), (100, 32)]


def planned(name: str, node: str, *cards: int, limit: tuple[int, int] = (30, 4)) -> PodInfo:
    """A pod as bind assumes it."""
    return a_pod(name, limit, node=node, annotations=hint(",".join(map(str, cards))))


# --- pods -----------------------------------------------------------------------------


def test_unreported_pods_are_simulated_in_the_order_of_their_binding() -> None:
    pods = [
        make_pod(
            "a", (60, 4), node="n1", annotations={NAMES.bind_order: OrderStamp(2, "w", 0).encode()}
        ),
        make_pod(
            "b", (30, 4), node="n1", annotations={NAMES.bind_order: OrderStamp(1, "w", 0).encode()}
        ),
        make_pod("c", (50, 4), node="n1", annotations=hint("1")),
    ]
    seen = []
    for order in (pods, pods[::-1]):
        state = State(NAMES)
        for pod in order:
            state.put_pod(pod)
        state.put_node(make_node("n1", 2))
        seen.append(free_amounts(state))
    assert seen == [[(40, 28), (20, 24)]] * 2


def test_only_a_change_of_free_amounts_is_a_change(state: State) -> None:
    version = state.version
    pod = make_pod("a", (30, 4), node="n1", annotations=hint("1"))
    state.put_pod(pod)
    assert state.changed_since(version) == ["n1"]
    version = state.version
    state.put_pod({**pod, "status": {"phase": "Running"}})
    state.put_pod(make_pod("a", (30, 4), node="n1", annotations=hint("1") | {"other": "x"}))
    state.put_node(make_node("n1", 2))
    state.put_pod(make_pod("b", (30, 4)))
    assert state.changed_since(version) == []
    state.put_node(make_node("n2", 2, unhealthy=[0]))
    state.put_node(make_node("n1", 2, unhealthy=[0]))
    assert state.changed_since(version) == ["n1", "n2"]


class NoticedLock:
    """A lock that reports when it is wanted."""

    def __init__(self, wanted: threading.Event) -> None:
        self._lock = threading.RLock()
        self._wanted = wanted

    def __enter__(self) -> None:
        self._wanted.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_read_by_another_thread_within_a_change_does_not_hide_the_change(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read keeps the snapshot that it makes, until the next change."""
    begun = threading.Event()
    state.lock = NoticedLock(begun)  # type: ignore[assignment]

    def read() -> None:
        free_amounts(state)
        begun.set()

    reader = threading.Thread(target=read)

    def known(pod: PodInfo, node: Node) -> PodCards | None:
        begun.clear()
        reader.start()
        assert begun.wait(60)
        return known_cards(pod, node)

    monkeypatch.setattr(node_allocations, "known_cards", known)
    state.put_pod(make_pod("a", (30, 4), node="n1", annotations=hint("1")))
    reader.join(60)
    assert free_amounts(state) == [(100, 32), (70, 28)]


# --- what this process binds ------------------------------------------------------------


def test_an_assumed_pod_counts_until_the_watch_shows_it(state: State) -> None:
    state.assume(planned("a", "n1", 1))
    assert free_amounts(state) == [(100, 32), (70, 28)]
    state.put_pod(make_pod("a", (30, 4)))  # an event from before the binding
    assert free_amounts(state) == [(100, 32), (70, 28)]
    state.put_pod(make_pod("a", (30, 4), node="n1", annotations=hint("1")))
    assert (state.assumed, free_amounts(state)) == (0, [(100, 32), (70, 28)])
    assert state.find("u-a") is None


def test_a_pod_assumed_after_a_list_began_outlives_it(state: State) -> None:
    known = state.known_pods()
    state.assume(planned("a", "n1", 1))
    state.forget_missing(known, set())
    assert free_amounts(state) == [(100, 32), (70, 28)]


def test_a_failed_binding_leaves_a_pod_on_the_node_where_the_watch_shows_it(state: State) -> None:
    state.put_pod(make_pod("a", (30, 4), node="n1", annotations=hint("1")))
    state.assume(planned("a", "n1", 1))
    state.forget_assumed("u-a", "n1")
    assert free_amounts(state) == [(100, 32), (70, 28)]


def test_exchanged_cards_end_the_choice_of_an_assumed_pod(state: State) -> None:
    state.assume(planned("a", "n1", 1))
    state.put_node(make_node("n1", 1))
    assert free_amounts(state) == [(70, 28)]  # simulated there: the agent will place it again


# --- any order of events ----------------------------------------------------------------

_NODES, _PODS = ("n1", "n2"), tuple("abcde")
_annotations = st.sampled_from(
    [
        {},
        hint("0"),
        hint("1"),
        hint("7"),
        record(c0=(["GPU-n1-0"], 30, 4)),
        record(c0=(["GPU-n2-1"], 30, 4)) | hint("1"),
    ]
)


class Events(RuleBasedStateMachine):
    """Any events, and a state that is read again after each."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State(NAMES)
        self.nodes: dict[str, Any] = {}
        self.pods: dict[str, Any] = {}
        self.assumed: dict[str, PodInfo] = {}

    @rule(
        name=st.sampled_from(_NODES), unhealthy=st.sampled_from([(), (0,)]), cards=st.integers(1, 2)
    )
    def node(self, name: str, unhealthy: Sequence[int], cards: int) -> None:
        self.nodes[name] = make_node(name, cards, unhealthy=unhealthy)
        self.state.put_node(self.nodes[name])

    @rule(name=st.sampled_from(_NODES))
    def node_deleted(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.state.drop_node(name)

    @rule(
        name=st.sampled_from(_PODS),
        node=st.sampled_from(_NODES),
        annotations=_annotations,
        phase=st.sampled_from(["Running", "Pending", "Failed"]),
    )
    def pod(self, name: str, node: str, annotations: dict[str, str], phase: str) -> None:
        known = self.pods.get(name)
        node = known["spec"]["nodeName"] if known else node  # a pod does not move
        made = make_pod(name, (30, 4), node=node, annotations=annotations, phase=phase)
        self.pods.pop(name, None)
        if phase != "Failed":
            self.pods[name] = made
        self.assumed.pop(name, None)
        self.state.put_pod(made)

    @rule(name=st.sampled_from(_PODS))
    def pod_deleted(self, name: str) -> None:
        self.pods.pop(name, None)
        self.assumed.pop(name, None)
        self.state.drop_pod(f"u-{name}")

    @rule(name=st.sampled_from(_PODS), node=st.sampled_from(_NODES))
    def assume(self, name: str, node: str) -> None:
        if name in self.pods or name in self.assumed or node not in self.nodes:
            return
        self.assumed[name] = planned(name, node, 0)
        self.state.assume(self.assumed[name])

    @rule(name=st.sampled_from(_PODS))
    def forget_assumed(self, name: str) -> None:
        pod = self.assumed.pop(name, None)
        if pod is not None:
            self.state.forget_assumed(pod.id.uid, pod.node)

    @rule(node=st.sampled_from((*_NODES, "")), pod=st.sampled_from((*_PODS, "")))
    def list_again(self, node: str, pod: str) -> None:
        """List everything, as the watch may have missed the end of a node and of a pod."""
        self.nodes.pop(node, None)
        self.pods.pop(pod, None)
        known = self.state.known_pods()
        for each in self.pods.values():
            self.state.put_pod(each)
        waiting = {f"u-{name}" for name in self.assumed}  # unbound, and in the list
        self.state.forget_missing(known, {f"u-{name}" for name in self.pods} | waiting)
        self.state.replace_nodes(list(self.nodes.values()))

    @invariant()
    def equals_a_state_that_is_read_again(self) -> None:
        again = State(NAMES)
        for node in self.nodes.values():
            again.put_node(node)
        for pod in self.pods.values():
            again.put_pod(pod)
        for each in self.assumed.values():
            again.assume(each)
        for name in _NODES:
            assert free_amounts(self.state, name) == free_amounts(again, name)
        assert self.state.counts == again.counts
        assert self.state.assumed == again.assumed


Events.TestCase.settings = patient
TestEvents = Events.TestCase


def test_pods_of_a_deleted_node_count_when_it_is_back(state: State) -> None:
    state.put_pod(make_pod("a", (30, 4), node="n1", annotations=hint("1")))
    for name in ("n1", "unknown"):
        state.drop_node(name)
    assert free_amounts(state) is None
    state.put_node(make_node("n1", 2))
    assert free_amounts(state) == [(100, 32), (70, 28)]


def test_a_pod_bound_by_another_scheduler_counts_on_its_node(state: State) -> None:
    state.assume(planned("a", "n1", 1))
    state.put_pod(make_pod("a", (30, 4), node="n2", annotations=hint("0")))
    assert (free_amounts(state, "n1"), free_amounts(state, "n2")) == (FULL, [(70, 28), (100, 32)])
