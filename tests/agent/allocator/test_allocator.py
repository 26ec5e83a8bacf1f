"""The allocator on a node in memory: who a call is for, what it gets, and what is refused."""

from dataclasses import replace

import pytest

from agent.errors import GrantError
from contract.allocation import Allocation, Evidence
from contract.resource import Resource
from placement.pods import PodInfo
from tests.agent.builders import CORE, MEMORY
from tests.agent.fakes import (
    CORE_FIRST,
    MEMORY_FIRST,
    Node,
    asks,
    cards_of,
    ids,
    init,
    make_pod,
    sidecar,
)

ORDERS = pytest.mark.parametrize("order", [CORE_FIRST, MEMORY_FIRST], ids=["cores", "memory"])


@pytest.fixture
def node() -> Node:
    return Node()


# --- the three calls for one container ------------------------------------------------


@ORDERS
def test_a_share_is_resolved_placed_translated_and_proven(
    node: Node, order: tuple[Resource, ...]
) -> None:
    pod = node.admitted(make_pod("a", asks(30, 8)), order)
    node.start(pod)

    assert [(each.resource, each.slots) for each in node.grants] == [
        (resource, {CORE: 30, MEMORY: 8}[resource]) for resource in order
    ]
    assert node.cards(pod) == ["GPU-0"]
    assert node.decision_log.evidence("prefer") == [Evidence.WITNESS] * 2
    assert node.decision_log.evidence("allocate") == [Evidence.TICKET] * 2
    assert node.decision_log.evidence("prestart") == [Evidence.RECORD] * 2
    assert set(node.decision_log.refs("prestart")) == {"a/main"}
    assert node.writer.of(pod) == {"main": Allocation(("GPU-0",), 30, 8, Evidence.WITNESS)}
    assert not node.decision_log.refusals
    assert not node.decision_log.corrections


# --- evidence -------------------------------------------------------------------------


def test_a_kubelet_that_takes_other_places_than_preferred_is_followed(node: Node) -> None:
    pod = node.begin(make_pod("a", asks(30, 8)))
    assert cards_of(node.prefer(CORE, 30)) == ["GPU-0"]
    node.allocator.allocate(CORE, ids(1, range(30)))
    assert node.decision_log.evidence("allocate") == [Evidence.WITNESS]
    node.took(pod, pod.demand.containers[0], CORE, ids(1, range(30)))
    assert cards_of(node.prefer(MEMORY, 8)) == ["GPU-1"]


def test_a_pod_that_the_watch_has_not_told_of_is_listed_before_a_call_is_refused(
    node: Node,
) -> None:
    """Without the kubelet's record nothing else names it."""
    pod = make_pod("a", asks(30, 8))
    node.pods.on_server[pod.id.key] = pod
    node.record.away = "hanging"
    node.prefer(CORE, 30)
    assert node.decision_log.refs("prefer") == ["a/main"]


def test_a_pod_that_has_been_freed_is_not_asking_when_the_checkpoint_forgets_it_too(
    node: Node,
) -> None:
    """K20: deleted by force, it is listed with nothing, as if it waited."""
    deleted = node.admitted(make_pod("a", asks(10, 2)))
    node.forget(deleted)
    node.record.show(deleted)
    node.admitted(make_pod("b", asks(10, 2, "first"), asks(10, 2, "second")))
    assert {*node.decision_log.evidence("prefer")} == {Evidence.WITNESS}


# --- what is refused at Allocate ------------------------------------------------------


def test_a_place_another_live_container_holds_is_refused(node: Node) -> None:
    """K15, after the decision: the holder appeared between preferred call and Allocate."""
    pod, other = make_pod("a", asks(3, 8)), make_pod("b", asks(5, 8))
    node.begin(pod)
    chosen = node.prefer(CORE, 3)
    node.begin(other)
    node.record.give(other, "main", CORE, ids(0, range(5)))
    node.allocator.refresh()
    with pytest.raises(GrantError, match="held by another container") as refused:
        node.allocator.allocate(CORE, chosen)
    assert node.decision_log.refusals == [("allocate", CORE, 3, str(refused.value))]
    assert not node.grants


@ORDERS
def test_memory_on_another_card_than_the_cores_is_refused(
    node: Node, order: tuple[Resource, Resource]
) -> None:
    places = {CORE: ids(0, range(30)), MEMORY: ids(1, range(8))}
    first, then = order
    pod = node.begin(make_pod("a", asks(30, 8)))
    node.allocator.allocate(first, places[first])
    node.took(pod, pod.demand.containers[0], first, places[first])
    with pytest.raises(GrantError, match="memory on GPU-1, but the container's cores are on GPU-0"):
        node.allocator.allocate(then, places[then])


# --- what no call tells of ---------------------------------------------------------------


def test_a_pod_on_a_card_that_is_gone_does_not_keep_the_agent_from_starting(node: Node) -> None:
    """A card was taken out; the kubelet's checkpoint still shows its places."""
    stale, fine = make_pod("stale", asks(2, 1)), make_pod("fine", asks(2, 1))
    node.bind(stale, fine)
    for view, card in ((stale, 9), (fine, 1)):
        node.record.give(view, "main", CORE, ids(card, range(2)))
        node.record.give(view, "main", MEMORY, ids(card, range(1)))
    node.allocator.refresh()
    assert [put.id for put, _ in node.writer.puts] == [fine.id]
    assert node.allocator.free(CORE) == {"GPU-0": 100, "GPU-1": 98}


@pytest.mark.parametrize("both", [False, True], ids=["agent", "agent-and-kubelet"])
def test_an_allocation_that_a_dead_agent_has_not_written_is_written_though_no_call_comes(
    node: Node, *, both: bool
) -> None:
    """By the evidence that its file tells; after a new kubelet that file means nothing."""
    done = node.admitted(make_pod("done", asks(10, 2)))
    node.pods.add(replace(done, annotated=node.writer.of(done)))
    pod = node.admitted(make_pod("a", asks(30, 8), sidecar(10, 2)))
    if both:
        node.restart_kubelet()
    node.restart_agent()
    node.allocator.refresh()
    told = Evidence.RECORD if both else Evidence.WITNESS
    assert node.writer.of(pod) == {
        "main": Allocation(("GPU-0",), 30, 8, told),
        "side": Allocation(("GPU-0",), 10, 2, told),
    }
    assert [view.id for view, _ in node.writer.puts] == [pod.id]
    assert node.allocator.free(CORE) == {"GPU-0": 50, "GPU-1": 100}


def test_a_pod_that_has_nothing_or_shows_it_already_is_not_caught_up(node: Node) -> None:
    pod = node.admitted(make_pod("a", asks(30, 8)))
    shown = replace(pod, annotated=node.writer.of(pod))
    node.writer.puts.clear()
    for view in (shown, make_pod("plain"), make_pod("waiting", asks(30, 8))):
        node.bind(view)
        node.allocator.catch_up(view)
    node.allocator.catch_up(replace(pod, terminal=True))
    assert not node.writer.puts
    node.bind(pod)
    node.allocator.catch_up(pod)
    assert [put for put, _ in node.writer.puts] == [pod]


def test_where_there_is_no_news_the_kubelet_is_not_asked(node: Node) -> None:
    node.admitted(make_pod("a", asks(30, 8)))
    node.allocator.refresh()
    asked = node.record.asked
    node.allocator.refresh(thorough=False)
    assert node.record.asked == asked
    node.admitted(make_pod("b", asks(30, 8)))
    asked = node.record.asked
    node.allocator.refresh(thorough=False)
    assert node.record.asked == asked + 1


@pytest.mark.parametrize("how", ["ended", "of init containers", "deleted by force"])
def test_what_a_pod_held_is_free_though_no_call_comes_and_it_is_listed_on(
    node: Node, how: str
) -> None:
    """An old kubelet lists it until it is deleted (K8), any until its containers end (K20)."""
    containers = (init(40, 8), asks(30, 8)) if how == "of init containers" else (asks(30, 8),)
    pod = node.admitted(make_pod("a", *containers))
    if how == "deleted by force":
        node.pods.remove(pod)
    else:
        node.pods.add(replace(pod, terminal=True))
    assert not node.allocator.refresh()
    assert node.allocator.free(CORE)["GPU-0"] < 100, "the record shows it holding these"
    node.record.show(pod)
    assert node.allocator.refresh()
    assert node.allocator.free(CORE) == {"GPU-0": 100, "GPU-1": 100}
    assert not node.allocator.refresh()


@pytest.mark.parametrize(
    ("told", "paused", "evidence"),
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
        "it was told of, alone",
        "others may have been there before the watch",
        "its name had another pod, which the kubelet may come to now",
        "its name had another pod, which the kubelet has come to",
        "and one more, which it has not come to",
        "nobody knows whether there are others",
        "it is never told of",
    ],
)
def test_a_call_that_comes_before_the_watch_waits_for_what_that_tells(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    told: list[str],
    paused: int,
    evidence: Evidence,
) -> None:
    """Only the watch tells that no other pod of a name can be asking; on a busy node it is late."""
    before = node.admitted(_named("uid-listed"))
    node.start(before)
    node.forget(before)
    node.checkpoint.write()
    node.allocator.refresh()
    node.paused = 0
    monkeypatch.setattr(node.pods, "uids_seen", lambda _: told if node.paused >= 3 else [])
    pod = _named("uid-a")
    node.pods.on_server[pod.id.key] = pod
    node.record.show(pod)
    node.prefer(CORE, 30)
    assert (node.paused, node.decision_log.evidence("prefer")[2:]) == (paused, [evidence])


def _named(uid: str) -> PodInfo:
    pod = make_pod("a", asks(30, 8))
    return replace(pod, id=pod.id._replace(uid=uid), runtime_uid=uid)


def test_what_a_guess_gave_a_pod_without_a_spec_is_free_when_two_looks_do_not_find_it(
    node: Node,
) -> None:
    """One look may come before the kubelet has written down what was answered."""
    static = make_pod("static", asks(30, 8))
    node.record.show(static)
    node.allocator.allocate(CORE, node.prefer(CORE, 30))
    free = []
    for _ in range(2):
        node.allocator.refresh()
        free.append(sum(node.allocator.free(CORE).values()))
    assert free[1] - free[0] == 30
