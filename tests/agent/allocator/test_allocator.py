"""the allocator on a node in memory: who a call is for, what it gets, and what is refused."""

import itertools
from dataclasses import replace

import pytest

from agent.allocator.model.ledger_copy import Knowledge
from agent.allocator.model.pod_view import PodView
from agent.errors import GrantError, PlacementError, ResolutionError
from contract.allocation import Allocation, Evidence
from contract.resource import Resource
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

    assert [(each.resource, each.places) for each in node.grants] == [
        (resource, {CORE: 30, MEMORY: 8}[resource]) for resource in order
    ]
    assert node.cards(pod) == ["GPU-0"]
    assert node.decision_log.evidence("prefer") == [Evidence.WITNESS] * 2
    assert node.decision_log.evidence("allocate") == [Evidence.TICKET] * 2
    assert node.decision_log.evidence("prestart") == [Evidence.RECORD] * 2
    assert set(node.decision_log.refs("prestart")) == {"a/main"}
    assert node.writer.puts == [(pod, {"main": Allocation(("GPU-0",), 30, 8, Evidence.WITNESS)})]
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


def test_nobody_waits_for_what_is_asked(node: Node) -> None:
    node.begin(make_pod("a", asks(30, 8)))
    with pytest.raises(ResolutionError) as refused:
        node.prefer(CORE, 50)
    assert str(refused.value) == (
        "50 places of core were asked for, but no waiting container asks for that; "
        "waiting: default/a container main (cores 30, memory 8)"
    )
    assert node.decision_log.refusals == [("prefer", CORE, 50, str(refused.value))]


def test_with_the_api_away_what_the_kubelet_lists_is_enough(node: Node) -> None:
    pod = make_pod("a", asks(30, 8))
    node.pods.away = True
    node.admit(pod)
    node.start(pod)
    assert len(node.cards(pod)) == 1
    assert node.decision_log.refs("prestart") == ["a/main", "a/main"]
    assert not node.writer.puts
    assert len(node.pods.fetched) == 6  # three tries, then two a call: the API is away

    node.pods.away = False
    node.bind(pod)
    node.allocator.catch_up(pod)  # the watch is back; no call of the kubelet needs to come
    assert node.writer.of(pod)["main"].cards == tuple(node.cards(pod))


# --- the API server behind, or away ---------------------------------------------------


def test_a_pod_that_the_watch_has_not_told_of_is_listed_before_a_call_is_refused(
    node: Node,
) -> None:
    """Without the kubelet's record nothing else names it."""
    pod = make_pod("a", asks(30, 8))
    node.pods.on_server[pod.id.key] = pod
    node.record.away = "hanging"
    node.prefer(CORE, 30)
    assert node.decision_log.refs("prefer") == ["a/main"]


# --- init containers: fact K7 ---------------------------------------------------------


def test_an_init_container_starts_without_proof_because_the_record_omits_it(node: Node) -> None:
    pod = node.begin(make_pod("a", init(40, 8), asks(30, 8)))
    first = pod.demand.containers[0]
    node.serve(pod, first, CORE)
    node.allocator.prestart(CORE, node.got[pod.id, "init", CORE])
    ref, held, reason = node.decision_log.unproven_starts[0]
    assert ref is not None
    assert str(ref) == "default/a container init"
    assert held == frozenset(node.got[pod.id, "init", CORE])
    assert reason == "ordinary init containers are not in the kubelet's record"


# --- what is refused at Allocate ------------------------------------------------------


def test_a_place_another_live_container_holds_is_refused(node: Node) -> None:
    """K15, after the decision: the holder appeared between preferred call and Allocate."""
    pod, other = make_pod("a", asks(3, 8)), make_pod("b", asks(5, 8))
    node.begin(pod)
    chosen = node.prefer(CORE, 3)
    node.begin(other)
    node.record.give(other, "main", CORE, ids(0, range(5)))
    node.allocator.rebuild()
    with pytest.raises(GrantError) as refused:
        node.allocator.allocate(CORE, chosen)
    assert str(refused.value) == (
        "3 places of core are held by another container: GPU-0::0, GPU-0::1, GPU-0::2"
    )
    assert node.decision_log.refusals == [("allocate", CORE, 3, str(refused.value))]
    assert not node.grants


@ORDERS
def test_memory_on_another_card_than_the_cores_is_refused(
    node: Node, order: tuple[Resource, Resource]
) -> None:
    cores, memory = (CORE, ids(0, range(30))), (MEMORY, ids(1, range(8)))
    first, then = (cores, memory) if order is CORE_FIRST else (memory, cores)
    pod = node.begin(make_pod("a", asks(30, 8)))
    node.allocator.allocate(*first)
    node.took(pod, pod.demand.containers[0], *first)
    with pytest.raises(GrantError) as refused:
        node.allocator.allocate(*then)
    assert str(refused.value) == "memory on GPU-1, but the container's cores are on GPU-0"


# --- wrong guesses --------------------------------------------------------------------


@pytest.fixture
def misled(node: Node) -> tuple[Node, PodView, PodView]:
    """Without a witness, ``b`` is guessed by its queue position, and it was ``a``."""
    asked, guessed = make_pod("a", asks(30, 8), at=2), make_pod("b", asks(30, 8), at=1)
    node.bind(asked, guessed)
    node.record.away = "rate limited"
    node.admit(asked)
    assert set(node.decision_log.refs("allocate")) == {"b/main"}
    assert node.writer.of(guessed)["main"].evidence is Evidence.ORDER
    node.record.away = ""
    return node, asked, guessed


def test_a_wrong_guess_is_corrected_at_prestart_counted_and_written(
    misled: tuple[Node, PodView, PodView],
) -> None:
    node, asked, guessed = misled
    node.start(asked)
    assert node.decision_log.refs("prestart") == ["a/main", "a/main"]
    assert {
        (each.resource, str(each.guessed), str(each.proven))
        for each in node.decision_log.corrections
    } == {
        (CORE, "default/b container main", "default/a container main"),
        (MEMORY, "default/b container main", "default/a container main"),
    }
    assert node.writer.of(asked) == {"main": Allocation(("GPU-0",), 30, 8, Evidence.RECORD)}
    node.admit(guessed)
    assert node.writer.of(guessed)["main"].evidence is Evidence.WITNESS
    node.start(guessed)
    assert node.decision_log.refs("prestart")[2:] == ["b/main", "b/main"]


def test_a_wrong_guess_corrected_by_the_next_list_is_written(
    misled: tuple[Node, PodView, PodView],
) -> None:
    """Nobody may start a container for a long while; its pod must not go without its allocation."""
    node, asked, guessed = misled
    node.admit(guessed)
    node.allocator.catch_up(asked)
    assert node.writer.of(asked)["main"].evidence is Evidence.RECORD
    assert node.writer.of(guessed)["main"].evidence is Evidence.WITNESS


def test_a_container_the_guess_and_the_record_agree_on_is_proven_once(node: Node) -> None:
    pod = node.admitted(make_pod("a", asks(30, 8)))
    node.start(pod)
    asked = node.record.asked
    node.start(pod)
    assert node.record.asked == asked  # a restart of a proven container asks nobody
    assert not node.decision_log.corrections


# --- the proof ------------------------------------------------------------------------


def test_a_container_whose_memory_is_on_another_card_is_vetoed(node: Node) -> None:
    """Also where the API cannot tell what it asks for."""
    pod = make_pod("a", asks(30, 8))
    node.record.give(pod, "main", CORE, ids(0, range(30)))
    node.record.give(pod, "main", MEMORY, ids(1, range(8)))
    node.allocator.rebuild()
    with pytest.raises(GrantError) as vetoed:
        node.allocator.prestart(MEMORY, ids(1, range(8)))
    assert str(vetoed.value) == "memory on GPU-1, but the container's cores are on GPU-0"


def test_without_a_record_a_container_starts_unproven(node: Node) -> None:
    pod = node.admitted(make_pod("a", asks(30, 8)))
    node.record.away = "PodResources: DEADLINE_EXCEEDED"
    node.start(pod)
    assert [(str(each[0]), each[2]) for each in node.decision_log.unproven_starts] == [
        ("default/a container main", "PodResources: DEADLINE_EXCEEDED"),
    ]  # the cores were proven by the List of the preferred call for the memory


def test_a_container_that_is_released_while_its_start_asks_the_kubelet_starts_unproven(
    node: Node,
) -> None:
    pod = node.admitted(make_pod("a", init(30, 8), asks(10, 2)))

    def another_call() -> None:
        node.record.meanwhile = lambda: None
        node.forget(pod)
        with pytest.raises(ResolutionError):
            node.prefer(CORE, 55)

    node.record.meanwhile = another_call
    node.allocator.prestart(CORE, node.got[pod.id, "init", CORE])
    assert node.decision_log.unproven_starts[-1][0] is None


def test_an_init_container_whose_places_another_pod_holds_is_vetoed(node: Node) -> None:
    """The kubelet forgot whose they are (K15), and the agent that knew has been replaced."""
    pod = node.begin(make_pod("a", init(40, 8), asks(30, 8)))
    for resource in CORE_FIRST:
        node.serve(pod, pod.demand.containers[0], resource)
    other = make_pod("b", asks(60, 4))
    node.bind(other)
    node.record.give(other, "main", CORE, ids(0, range(20, 80)))
    for restarted in (False, True):
        if restarted:
            node.restart_agent()
            node.allocator.rebuild()
        with pytest.raises(GrantError) as vetoed:
            node.allocator.prestart(CORE, node.got[pod.id, "init", CORE])
        assert str(vetoed.value) == (
            "20 places of core are held by another container: GPU-0::20, GPU-0::21, GPU-0::22"
        )
        node.allocator.prestart(MEMORY, node.got[pod.id, "init", MEMORY])


# --- rejected pods: fact K8 -----------------------------------------------------------


def test_a_successor_does_not_name_a_pod_that_its_predecessor_refused(node: Node) -> None:
    """An old List goes on showing it (K21), and only the one that refused it knows."""
    never, good = make_pod("n", asks(30, 999), at=2), make_pod("g", asks(30, 8), at=1)
    node.bind(never, good)
    node.record.show(never)
    with pytest.raises(PlacementError):
        node.prefer(CORE, 30)
    known = node.allocator.knowledge()
    node.restart_agent()
    node.allocator.rebuild()
    node.allocator.inherit(known)
    node.admit(good)
    assert node.decision_log.refs("allocate")[-2:] == ["g/main", "g/main"]
    assert node.decision_log.evidence("prefer")[-2:] == [Evidence.WITNESS] * 2


def test_a_successor_knows_what_an_init_container_got(node: Node) -> None:
    """K4: the kubelet does not show it, and the annotation of the pod is not written yet."""
    pod = node.begin(make_pod("a", init(80, 20), asks(10, 2)))
    node.serve(pod, pod.demand.containers[0], CORE)
    known = node.allocator.knowledge()
    node.restart_agent()
    node.allocator.rebuild()
    assert node.allocator.free(CORE) == {"GPU-0": 100, "GPU-1": 100}
    node.allocator.inherit(known)
    assert node.allocator.free(CORE) == {"GPU-0": 20, "GPU-1": 100}


def test_a_successor_that_hears_of_a_pod_before_it_inherits_writes_nothing(node: Node) -> None:
    """Its watch tells of pods at any time; what would be written lacks the init container."""
    pod = node.admitted(make_pod("a", init(30, 8), asks(10, 2)))
    known = node.allocator.knowledge()
    node.restart_agent()
    node.allocator.rebuild(inheriting=True)
    node.allocator.catch_up(pod)
    assert not node.writer.puts
    node.allocator.inherit(known)
    assert [allocations.keys() for _, allocations in node.writer.puts] == [{"init", "main"}]


def test_a_successor_knows_that_no_init_container_of_a_pod_was_served_yet(node: Node) -> None:
    """Its predecessor saw all of the pod: the first container that lacks something is asking."""
    pod = make_pod("a", init(10, 2), asks(10, 2))
    node.bind(pod)
    node.record.show(pod)
    known = node.allocator.knowledge()
    node.restart_agent()
    node.allocator.rebuild(inheriting=True)
    node.allocator.inherit(known)
    node.serve(pod, pod.demand.containers[0], CORE)
    assert node.decision_log.refs("allocate") == ["a/init"]
    assert node.decision_log.evidence("prefer") == [Evidence.WITNESS]


def test_what_a_predecessor_takes_back_is_taken_back(node: Node) -> None:
    """It guessed that a pod had been rejected, and was asked for it again."""
    pod = make_pod("a", init(30, 8), asks(10, 2))
    node.admitted(pod)
    known = node.allocator.knowledge()
    node.restart_agent()
    node.allocator.rebuild(inheriting=True)
    node.allocator.inherit(replace(known, rejected=frozenset([pod.id])))
    node.allocator.inherit(known)
    node.admitted(make_pod("b", asks(10, 2)))
    node.allocator.prestart(CORE, node.got[pod.id, "init", CORE])
    assert str(node.decision_log.unproven_starts[-1][0]) == "default/a container init"


def test_what_a_predecessor_tells_late_of_an_init_container_is_written(node: Node) -> None:
    """It answered for the init container, and the successor for the rest before it heard."""
    pod = make_pod("a", init(30, 8), asks(10, 2))
    container, main = pod.demand.containers
    node.bind(pod)
    node.record.show(pod)
    for resource in (CORE, MEMORY):
        node.serve(pod, container, resource)
    known = node.allocator.knowledge()
    node.restart_agent()
    node.allocator.rebuild(inheriting=True)
    node.allocator.inherit(Knowledge())
    for resource in (CORE, MEMORY):
        node.serve(pod, main, resource)
    assert node.writer.puts[-1][1].keys() == {"main"}
    node.allocator.inherit(known)
    assert node.writer.puts[-1][1].keys() == {"init", "main"}


def test_what_a_predecessor_tells_again_of_a_pod_that_has_ended_refuses_nobody(node: Node) -> None:
    """It tells all it knows after each call that it ends, and lets nothing go any more."""
    ended, next_one = make_pod("e", asks(30, 8)), make_pod("n", asks(30, 8))
    node.admitted(ended)
    known = node.allocator.knowledge()
    node.restart_agent()
    node.allocator.rebuild()
    node.allocator.inherit(known)
    had = set(node.got[ended.id, "main", CORE])
    node.forget(ended)
    node.begin(next_one)
    chosen = node.prefer(CORE, 30)
    assert set(chosen) == had
    node.allocator.inherit(known)
    node.allocator.allocate(CORE, chosen)
    assert node.decision_log.refs("allocate")[-1] == "n/main"


@pytest.mark.parametrize("served", [True, False], ids=["served", "half-served"])
def test_a_successor_tells_two_pods_of_one_name_apart_as_its_predecessor_did(
    node: Node, *, served: bool
) -> None:
    """``List`` tells no UID, and the API shows only the one that came last (K20)."""
    node.pods.remove(node.admitted(make_pod("a", asks(60, 8, "first"), asks(20, 4))))
    newer = node.begin(make_pod("a", asks(60, 8, "first"), asks(20, 4)))
    first, main = newer.demand.containers
    containers = (first, main) if served else (first,)
    for container in containers:
        for resource in (CORE, MEMORY):
            node.serve(newer, container, resource)
    known = node.allocator.knowledge()
    node.restart_agent()
    node.allocator.rebuild(inheriting=True)
    node.allocator.inherit(known)
    if not served:
        for resource in (CORE, MEMORY):
            node.serve(newer, main, resource)
    for name in ("first", "main"):
        found = node.allocator.entitled(newer.id.uid, name)
        assert found is not None
        assert found.core_ids == set(node.got[newer.id, name, CORE])


def test_a_pod_of_init_containers_does_not_take_over_what_one_of_its_name_has_given_back(
    node: Node,
) -> None:
    """It was deleted by force; the kubelet offers its places to the one that comes after it."""
    older = node.admitted(make_pod("a", init(30, 8)))
    node.forget(older)
    newer = node.admitted(make_pod("a", init(30, 8)))
    assert [each[1].pod for each in node.decision_log.decisions][-4:] == [newer.id] * 4


def test_what_was_given_in_the_name_of_a_pod_that_never_came_is_its_successors(node: Node) -> None:
    """The watch was behind: a pod that was deleted before its turn, and one like it."""
    older = make_pod("a", init(30, 8), asks(20, 4))
    newer = make_pod("a", init(30, 8), asks(20, 4))
    node.bind(older)
    node.admit(newer)
    assert {each[1].pod for each in node.decision_log.decisions} == {older.id}
    node.pods.remove(older)
    node.bind(newer)
    node.allocator.refresh()
    assert node.allocator.entitled(newer.id.uid, "main") is None  # it may be the older one yet
    node.pods.add(replace(newer, running=True))
    node.allocator.refresh()
    found = node.allocator.entitled(newer.id.uid, "main")
    assert found is not None
    assert found.core_ids == set(node.got[newer.id, "main", CORE])
    assert node.writer.of(newer).keys() == {"init", "main"}


def test_an_init_container_has_none_of_what_a_pod_of_its_name_had_before_it_was_listed(
    node: Node,
) -> None:
    """That one left the API unseen, and its devices are free before it has left ``List``."""
    older = make_pod("a", asks(50, 8))
    newer = make_pod("a", init(50, 8), asks(50, 8), mains=frozenset({"main", "plain"}))
    node.bind(newer)
    node.admit(older, MEMORY_FIRST)
    node.record.show(older)
    node.give_back(older)
    node.record.show(newer)
    node.record.entries[newer.id]["plain"] = {}
    node.serve(newer, newer.demand.containers[0], MEMORY)
    node.serve(newer, newer.demand.containers[0], CORE)
    assert [(str(each[1]), each[3]) for each in node.decision_log.decisions[4::2]] == [
        ("default/a container init", Evidence.WITNESS)
    ] * 2


def test_a_pod_is_not_done_because_one_of_its_name_was_listed_before_it(node: Node) -> None:
    """``List`` showed one entry, of the older pod: what became of that one is not the newer's."""
    older = node.admitted(make_pod("a", asks(10, 2)))
    node.start(older)
    newer = make_pod("a", init(10, 2), asks(10, 2))
    node.pods.remove(older)
    node.bind(newer)
    node.record.show(older)
    node.give_back(older)
    node.admitted(make_pod("b", asks(20, 4)))
    node.record.show(newer)
    node.prefer(CORE, 10)
    assert str(node.decision_log.decisions[-1][1]) == "default/a container init"
    assert node.decision_log.decisions[-1][1].pod == newer.id


# --- restarts -------------------------------------------------------------------------


def test_a_successor_of_another_kubelet_forgets_what_was_half_served_too(node: Node) -> None:
    pod = node.begin(make_pod("a", init(30, 8), asks(10, 2)))
    node.serve(pod, pod.demand.containers[0], CORE)
    known = node.allocator.knowledge().for_another_kubelet()
    node.restart_agent()
    node.allocator.inherit(known)
    assert node.allocator.free(CORE) == {"GPU-0": 100, "GPU-1": 100}


def test_a_restarted_agent_does_not_claim_to_know_how_far_the_init_containers_are(
    node: Node,
) -> None:
    """Of a pod that it finds; of one that comes later it has seen all (K4)."""
    pod, later = (make_pod(name, init(30, 8), asks(30, 2)) for name in "ab")
    node.begin(pod)
    node.serve(pod, pod.demand.containers[0], CORE)
    node.restart_agent()
    node.allocator.rebuild()
    for resource in (MEMORY, CORE):
        node.serve(pod, pod.demand.containers[resource is CORE], resource)
    assert node.decision_log.evidence("allocate") == [Evidence.TICKET, Evidence.ORDER]
    node.admitted(later)
    assert set(node.decision_log.evidence("prefer")) == {Evidence.WITNESS}


def test_a_new_kubelet_knows_nothing_of_an_init_container_that_was_half_served(node: Node) -> None:
    """It wrote nothing of it into its checkpoint, and ``List`` never shows it (K4)."""
    pod = node.begin(make_pod("a", init(30, 8), asks(10, 2)))
    node.serve(pod, pod.demand.containers[0], CORE)
    node.allocator.registered()
    assert node.allocator.free(CORE) == {"GPU-0": 100, "GPU-1": 100}
    again = node.prefer(MEMORY, 8, among=ids(1, range(32)))
    assert cards_of(again) == ["GPU-1"]
    node.allocator.allocate(MEMORY, again)
    assert node.decision_log.refs("allocate") == ["a/init", "a/init"]


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside-another"])
def test_a_pod_of_init_containers_alone_is_served_again_by_a_kubelet_that_lost_the_last(
    node: Node, *, beside: bool
) -> None:
    """It has no container that ``List`` shows lacking anything; these are not even offered (K7)."""
    pod = node.begin(make_pod("a", init(30, 8, "first"), init(30, 8, "second")))
    first, second = pod.demand.containers
    for container in (first, second):
        for resource in (CORE, MEMORY):
            node.serve(pod, container, resource)
    if beside:
        node.admitted(make_pod("b", init(30, 8), asks(30, 8)))
    node.allocator.registered()
    for resource in (CORE, MEMORY):
        node.serve(pod, second, resource)
    assert node.decision_log.refs("allocate")[-2:] == ["a/second", "a/second"]
    assert node.cards(pod, "second") == ["GPU-0"]


@pytest.mark.parametrize("whole", [False, True], ids=["half-served", "served"])
def test_a_new_kubelet_serves_a_container_again_while_its_record_is_away(
    node: Node, *, whole: bool
) -> None:
    """It offers what its predecessor had given and not written down (K11)."""
    pod = node.begin(make_pod("a", asks(30, 8)))
    (main,) = pod.demand.containers
    offered = dict(node.free)
    for resource in (CORE, MEMORY) if whole else (CORE,):
        node.serve(pod, main, resource)
    node.record.hide(pod)
    node.free = offered
    node.allocator.registered()
    node.record.away = "hanging"
    for resource in (MEMORY, CORE) if whole else (CORE, MEMORY):
        node.serve(pod, main, resource)
    assert node.decision_log.refs("allocate")[-2:] == ["a/main", "a/main"]
    assert node.cards(pod) == ["GPU-0"]


def test_a_new_kubelet_hands_places_on_again_while_its_record_is_away(node: Node) -> None:
    """Those of an init container that its checkpoint shows, to the container after it (K7)."""
    pod = node.begin(make_pod("a", init(30, 8), asks(20, 8)))
    first, main = pod.demand.containers
    for resource in (CORE, MEMORY):
        node.serve(pod, first, resource)
    checkpoint = dict(node.free), dict(node.reusable)
    node.serve(pod, main, CORE)
    node.record.hide(pod)
    node.free, node.reusable = checkpoint
    node.allocator.registered()
    node.record.away = "hanging"
    for resource in (CORE, MEMORY):
        node.serve(pod, main, resource)
    assert node.decision_log.refs("allocate")[-2:] == ["a/main", "a/main"]
    assert node.allocator.free(CORE) == {"GPU-0": 70, "GPU-1": 100}


def test_what_is_being_served_again_is_not_done_though_its_annotation_says_so(node: Node) -> None:
    """A kubelet that died had been answered, and wrote nothing down."""
    shown = {"main": Allocation(("GPU-0",), 30, 8, Evidence.WITNESS)}
    pod = node.begin(replace(make_pod("a", asks(30, 8)), annotated=shown))
    node.bind(make_pod("b", asks(20, 8)))
    (main,) = pod.demand.containers
    node.serve(pod, main, CORE)
    node.record.away = "hanging"
    node.serve(pod, main, MEMORY)
    assert node.decision_log.refs("allocate") == ["a/main", "a/main"]


def test_a_pod_on_a_card_that_is_gone_does_not_keep_the_agent_from_starting(node: Node) -> None:
    """A card was taken out; the kubelet's checkpoint still shows its places."""
    stale, fine = make_pod("stale", asks(2, 1)), make_pod("fine", asks(2, 1))
    node.bind(stale, fine)
    for view, card in ((stale, 9), (fine, 1)):
        node.record.give(view, "main", CORE, ids(card, range(2)))
        node.record.give(view, "main", MEMORY, ids(card, range(1)))
    assert node.allocator.rebuild()
    assert [put.id for put, _ in node.writer.puts] == [fine.id]
    assert node.allocator.free(CORE) == {"GPU-0": 100, "GPU-1": 98}


def test_a_pod_that_has_nothing_or_shows_it_already_is_not_caught_up(node: Node) -> None:
    pod = node.admitted(make_pod("a", asks(30, 8)))
    node.writer.puts.clear()
    shown = {"main": Allocation(("GPU-0",), 30, 8, Evidence.WITNESS)}
    for view in (
        replace(pod, assigned=True),
        replace(pod, terminal=True),
        replace(pod, annotated=shown),
        make_pod("plain"),
        make_pod("waiting", asks(30, 8)),
    ):
        node.allocator.catch_up(view)
    assert not node.writer.puts
    node.allocator.catch_up(pod)
    assert [put for put, _ in node.writer.puts] == [pod]


# --- what is not published yet --------------------------------------------------------------------


def unwritten(node: Node, view: PodView) -> None:
    """Have the agent start anew after it served a pod and before it wrote so, kubelet away."""
    node.admitted(view)
    node.record.away = "PodResources: no socket"
    node.restart_agent()
    assert not node.allocator.rebuild()
    node.record.away = ""


@pytest.mark.parametrize("again", ["refresh", "registered"])
def test_an_allocation_that_a_dead_agent_has_not_written_is_written_though_no_call_comes(
    node: Node, again: str
) -> None:
    done = node.admitted(make_pod("done", asks(10, 2)))
    node.pods.add(replace(done, assigned=True, annotated=node.writer.of(done)))
    pod = make_pod("a", asks(30, 8), sidecar(10, 2))
    unwritten(node, pod)
    getattr(node.allocator, again)()
    assert node.writer.of(pod) == {
        "main": Allocation(("GPU-0",), 30, 8, Evidence.RECORD),
        "side": Allocation(("GPU-0",), 10, 2, Evidence.RECORD),
    }
    assert [view.id for view, _ in node.writer.puts] == [pod.id]
    assert node.allocator.free(CORE) == {"GPU-0": 50, "GPU-1": 100}


def test_where_everything_is_published_the_kubelet_is_not_asked(node: Node) -> None:
    done = node.admitted(make_pod("a", asks(30, 8)))
    node.pods.add(replace(done, assigned=True, annotated=node.writer.of(done)))
    node.pods.add(make_pod("plain"))
    node.pods.add(make_pod("ended", asks(30, 8), terminal=True))
    asked = node.record.asked
    node.allocator.refresh()
    assert node.record.asked == asked


def test_what_a_record_that_cannot_be_had_shows_is_written_later(node: Node) -> None:
    """Nothing was decided without it, so nothing is told of it either."""
    pod = make_pod("a", asks(30, 8))
    unwritten(node, pod)
    node.decision_log.blinds.clear()
    node.record.away = "PodResources: no socket"
    node.allocator.refresh()
    assert not node.writer.puts
    assert not node.decision_log.blinds
    node.record.away = ""
    node.allocator.refresh()
    assert [view for view, _ in node.writer.puts] == [pod]


def test_looking_after_what_is_not_published_takes_nothing_away(node: Node) -> None:
    """Calls of the kubelet may be under way, which its record does not show yet."""
    behind, asking = make_pod("behind", asks(30, 8)), make_pod("a", asks(20, 4))
    unwritten(node, behind)
    node.begin(asking)
    chosen = node.prefer(CORE, 20)
    node.allocator.allocate(CORE, chosen)
    node.allocator.refresh()
    assert node.allocator.free(CORE) == {"GPU-0": 50, "GPU-1": 100}
    node.took(asking, asking.demand.containers[0], CORE, chosen)
    node.serve(asking, asking.demand.containers[0], MEMORY)
    assert node.writer.of(asking)["main"].cards == ("GPU-0",)
    assert node.writer.of(behind)["main"].cards == ("GPU-0",)


@pytest.mark.parametrize("how", ["gone", "ended"])
def test_what_an_ended_pod_held_is_free_though_no_call_comes(node: Node, how: str) -> None:
    pod, stays = (node.admitted(make_pod(name, asks(30, 8))) for name in ("a", "stays"))
    node.record.hide(pod)
    if how == "gone":
        node.pods.remove(pod)
    else:
        node.pods.add(replace(pod, terminal=True))
    node.allocator.refresh()
    assert node.allocator.free(CORE) == {"GPU-0": 70, "GPU-1": 100}
    assert node.cards(stays) == ["GPU-0"]


@pytest.mark.parametrize("shape", ["main", "init"])
def test_what_an_ended_pod_held_is_free_though_an_old_kubelet_lists_it_on(
    node: Node, shape: str
) -> None:
    """Before 1.34 it is listed for as long as the API server has it, without devices (K8)."""
    containers = (init(40, 8), asks(30, 8)) if shape == "init" else (asks(30, 8),)
    pod = node.admitted(make_pod("a", *containers))
    node.pods.add(replace(pod, terminal=True))
    assert not node.allocator.refresh(unpublished=False)
    assert node.allocator.free(CORE)["GPU-0"] < 100, "the record shows it holding these"
    node.record.show(pod)
    assert node.allocator.refresh(unpublished=False)
    assert node.allocator.free(CORE) == {"GPU-0": 100, "GPU-1": 100}
    assert not node.allocator.refresh(unpublished=False)


def test_what_a_pod_deleted_by_force_held_is_free_once_the_record_shows_it_without(
    node: Node,
) -> None:
    """It is listed until its containers have ended (K20); the API has forgotten it."""
    pod = node.admitted(make_pod("a", asks(30, 8)))
    node.start(pod)
    node.pods.remove(pod)
    assert not node.allocator.refresh(unpublished=False)
    node.record.show(pod)
    assert node.allocator.refresh(unpublished=False)
    assert node.allocator.free(CORE) == {"GPU-0": 100, "GPU-1": 100}


def test_a_pod_that_only_the_kubelet_shows_keeps_what_it_holds(node: Node) -> None:
    """The watch may be behind, and a static pod may have no mirror."""
    pod = node.admitted(make_pod("a", asks(30, 8)))
    node.pods.remove(pod)
    node.allocator.refresh()
    assert node.allocator.free(CORE) == {"GPU-0": 70, "GPU-1": 100}


def test_an_ended_pod_keeps_what_it_held_while_the_record_cannot_be_had(node: Node) -> None:
    pod = node.admitted(make_pod("a", asks(30, 8)))
    node.pods.remove(pod)
    node.record.hide(pod)
    node.record.away = "PodResources: no socket"
    node.allocator.refresh()
    assert node.allocator.free(CORE) == {"GPU-0": 70, "GPU-1": 100}


def test_what_an_init_container_got_is_written_before_its_pod_is_complete(node: Node) -> None:
    """Nobody else knows (K4): an agent killed before the pod is complete would forget it."""
    pod = node.begin(make_pod("a", init(40, 8, "i0"), init(10, 2, "i1"), asks(30, 8)))
    written: list[set[str]] = []
    for container in pod.demand.containers:
        for resource in CORE_FIRST:
            before = len(node.writer.puts)
            node.serve(pod, container, resource)
            written += [set(found) for _, found in node.writer.puts[before:]]
    # The queue passes over what it has written already.
    assert [each for each, _ in itertools.groupby(written)] == [
        {"i0"},
        {"i0", "i1"},
        {"i0", "i1", "main"},
    ]
    assert node.writer.of(pod)["i0"].cores == 40


def test_a_copied_annotation_of_an_init_container_is_not_believed_on_another_card(
    node: Node,
) -> None:
    """An agent was killed before it wrote over it; what follows has the places of init (K7)."""
    copied = {"init": Allocation(("GPU-1",), 10, 4, Evidence.TICKET)}
    pod = node.admitted(make_pod("a", init(10, 4), asks(10, 2), annotated=copied))
    assert node.cards(pod) == ["GPU-0"]
    node.restart_agent()
    node.allocator.rebuild()
    assert node.allocator.free(CORE) == {"GPU-0": 90, "GPU-1": 100}
    assert node.allocator.free(MEMORY)["GPU-1"] == 32
    assert set(node.writer.of(pod)) == {"main"}


# --- an agent that starts while the API is away -------------------------------------------


def test_an_agent_that_could_not_read_the_record_when_it_started_assigns_what_runs_on_a_quiet_node(
    node: Node,
) -> None:
    """An agent before it has written the pods' annotations, so that none is missing."""
    written = {"main": Allocation(("GPU-0",), 30, 8, Evidence.WITNESS)}
    pod = node.begin(make_pod("a", asks(30, 8), annotated=written, assigned=True))
    for resource, size in ((CORE, 30), (MEMORY, 8)):
        node.record.give(pod, "main", resource, ids(0, range(size)))
    node.allocator.refresh()
    assert node.allocator.entitled(pod.id.uid, "main") is not None
    assert node.allocator.free(CORE)["GPU-0"] == 70


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


def test_containers_are_entitled_and_counted_once_as_soon_as_the_api_is_back(node: Node) -> None:
    """Served and annotated by the agent before: no call of the kubelet will come for them."""
    pod = node.admitted(make_pod("a", asks(30, 8)), CORE_FIRST)
    annotated = replace(pod, assigned=True, annotated=node.writer.of(pod), running=True)
    node.pods.remove(pod)
    node.restart_agent()
    node.allocator.rebuild()
    assert node.allocator.entitled(pod.id.uid, "main") is None
    free = sum(node.allocator.free(CORE).values())
    node.pods.add(annotated)
    node.allocator.catch_up(annotated)
    assert node.allocator.entitled(pod.id.uid, "main") is not None
    assert sum(node.allocator.free(CORE).values()) == free == 170
