"""the allocator on a node in memory: who a call is for, what it gets, and what is refused."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocator.model.pod_view import PodView
from agent.errors import GrantError, PlacementError, Refusal, ResolutionError
from contract.allocation import Allocation, Evidence
from contract.resource import Resource
from placement.scoring import Policy
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


def admitted(node: Node, view: PodView, order: Sequence[Resource] = CORE_FIRST) -> PodView:
    node.bind(view)
    node.admit(view, order)
    return view


# --- the three calls for one container ------------------------------------------------


@ORDERS
def test_a_share_is_resolved_placed_translated_and_proven(
    node: Node, order: tuple[Resource, ...]
) -> None:
    pod = admitted(node, make_pod("a", asks(30, 8)), order)
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


def test_the_allocate_answer_is_made_from_the_grant(node: Node) -> None:
    pod = make_pod("a", asks(200, 8))
    node.bind(pod)
    node.record.show(pod)
    answer = node.allocator.allocate(CORE, node.prefer(CORE, 200))
    assert dict(answer.envs) == {"CARDS": "GPU-0,GPU-1"}


@ORDERS
def test_the_second_resource_follows_the_card_of_the_first(
    node: Node, order: tuple[Resource, ...]
) -> None:
    """Each card has room; the fuller one changes between the two calls."""
    pod, other = make_pod("a", asks(30, 8)), make_pod("b", asks(40, 4))
    admitted(node, make_pod("first", asks(60, 4)))
    node.bind(pod)
    node.record.show(pod)
    first, second = order
    sizes = {CORE: 30, MEMORY: 8}
    main = pod.demand.containers[0]
    chosen = node.serve(pod, main, first)
    node.record.give(other, "main", CORE, ids(1, range(95)))
    node.record.give(other, "main", MEMORY, ids(1, range(20)))
    again = node.prefer(second, sizes[second])
    assert cards_of(again) == cards_of(chosen) == ["GPU-0"]


@ORDERS
def test_whole_cards_get_their_memory_shared_out_over_them(
    node: Node, order: tuple[Resource, ...]
) -> None:
    pod = admitted(node, make_pod("a", asks(200, 9)), order)
    node.start(pod)
    held = node.got[pod.id, "main", MEMORY]
    assert [
        len([each for each in held if each.startswith(card)]) for card in ("GPU-0", "GPU-1")
    ] == [5, 4]
    assert len(node.got[pod.id, "main", CORE]) == 200
    assert node.writer.of(pod) == {"main": Allocation(("GPU-0", "GPU-1"), 200, 9, Evidence.WITNESS)}


def test_a_whole_card_without_memory_is_finished_after_one_resource(node: Node) -> None:
    pod = admitted(node, make_pod("a", asks(100, 0)))
    assert node.writer.of(pod) == {"main": Allocation(("GPU-0",), 100, 0, Evidence.WITNESS)}


@ORDERS
def test_several_containers_of_a_pod_are_served_in_their_order(
    node: Node, order: tuple[Resource, ...]
) -> None:
    """Equal in cores, different in memory: what guessing by cores gets wrong."""
    pod = admitted(
        node,
        make_pod("a", sidecar(20, 2), asks(20, 4, "one"), asks(20, 6, "two")),
        order,
    )
    assert node.decision_log.refs("prefer") == [
        f"a/{name}" for name in ("side", "one", "two") for _ in order
    ]
    assert {name: each.memory_blocks for name, each in node.writer.of(pod).items()} == {
        "side": 2,
        "one": 4,
        "two": 6,
    }
    assert len(node.writer.puts) == 1


def test_spread_takes_the_emptiest_card() -> None:
    node = Node(policy=Policy.SPREAD)
    first, second = (admitted(node, make_pod(name, asks(10, 1))) for name in "ab")
    assert node.cards(first) == ["GPU-0"]
    assert node.cards(second) == ["GPU-1"]


def test_free_places_are_counted_by_card(node: Node) -> None:
    admitted(node, make_pod("a", asks(30, 8)))
    assert node.allocator.free(CORE) == {"GPU-0": 70, "GPU-1": 100}
    assert node.allocator.free(MEMORY) == {"GPU-0": 24, "GPU-1": 32}


# --- evidence -------------------------------------------------------------------------


def test_an_allocate_without_a_preferred_call_is_settled_by_the_witness(node: Node) -> None:
    """K2: exactly as many places as asked for are available."""
    pod = make_pod("a", asks(100, 32))
    node.bind(pod)
    node.free = {CORE: ids(1, range(100)), MEMORY: ids(1, range(32))}
    node.admit(pod)
    assert not node.decision_log.refs("prefer")
    assert node.decision_log.evidence("allocate") == [Evidence.WITNESS] * 2
    assert node.writer.of(pod)["main"].evidence is Evidence.WITNESS


def test_a_ticket_is_good_for_one_allocate(node: Node) -> None:
    """The same IDs once more, for the next container, are no ticket of the first."""
    first = admitted(node, make_pod("a", asks(30, 8)))
    same = node.got[first.id, "main", CORE]
    node.forget(first)
    second = make_pod("b", asks(30, 8))
    node.bind(second)
    node.record.show(second)
    node.allocator.allocate(CORE, same)
    assert node.decision_log.evidence("allocate")[-1] is Evidence.WITNESS
    assert node.decision_log.refs("allocate")[-1] == "b/main"


def test_the_ids_of_a_ticket_may_come_in_any_order(node: Node) -> None:
    pod = make_pod("a", asks(30, 8))
    node.bind(pod)
    node.record.show(pod)
    node.allocator.allocate(CORE, list(reversed(node.prefer(CORE, 30))))
    assert node.decision_log.evidence("allocate") == [Evidence.TICKET]


def test_a_kubelet_that_takes_other_places_than_preferred_is_followed(node: Node) -> None:
    pod = make_pod("a", asks(30, 8))
    node.bind(pod)
    node.record.show(pod)
    assert cards_of(node.prefer(CORE, 30)) == ["GPU-0"]
    node.allocator.allocate(CORE, ids(1, range(30)))
    assert node.decision_log.evidence("allocate") == [Evidence.WITNESS]
    node.took(pod, pod.demand.containers[0], CORE, ids(1, range(30)))
    assert cards_of(node.prefer(MEMORY, 8)) == ["GPU-1"]


def test_without_a_witness_the_line_decides_and_the_evidence_says_so(node: Node) -> None:
    late, early = make_pod("a", asks(30, 8), place=2), make_pod("b", asks(30, 8), place=1)
    node.bind(late, early)
    node.record.away = "PodResources: UNAVAILABLE: no socket"
    node.admit(early)
    node.admit(late)
    assert node.decision_log.refs("allocate") == ["b/main", "b/main", "a/main", "a/main"]
    assert node.decision_log.evidence("prefer") == [Evidence.ORDER] * 4
    assert node.decision_log.blinds == ["PodResources: UNAVAILABLE: no socket"] * 4
    assert node.writer.of(early)["main"].evidence is Evidence.ORDER


def test_a_pod_in_progress_goes_before_an_earlier_one_without_a_witness(node: Node) -> None:
    begun, early = make_pod("a", asks(30, 8), place=2), make_pod("b", asks(30, 8), place=1)
    node.bind(begun)
    node.record.away = "hanging"
    node.record.show(begun)
    node.serve(begun, begun.demand.containers[0], CORE)
    node.bind(early)
    node.serve(begun, begun.demand.containers[0], MEMORY)
    assert node.decision_log.refs("allocate") == ["a/main", "a/main"]


def test_without_a_witness_what_gone_pods_held_is_free(node: Node) -> None:
    gone = admitted(node, make_pod("a", asks(100, 32)))
    done = admitted(node, make_pod("b", asks(100, 32)))
    assert node.allocator.free(CORE) == {"GPU-0": 0, "GPU-1": 0}
    node.record.away = "hanging"
    node.forget(gone)
    node.give_back(done)
    node.pods.add(replace(done, terminal=True))
    third = make_pod("c", asks(200, 64))
    node.bind(third)
    node.admit(third)
    assert node.cards(third) == ["GPU-0", "GPU-1"]


def test_without_a_witness_a_pod_known_by_name_only_stays_while_its_name_does(node: Node) -> None:
    """The API was away while it was admitted; now the witness is away, and the API back."""
    static = make_pod("static", asks(30, 8))
    node.admit(static)
    node.record.away = "hanging"
    node.bind(static, make_pod("b", asks(20, 4)))
    node.prefer(CORE, 20)
    assert node.allocator.free(CORE)["GPU-0"] == 70
    node.pods.remove(static)
    node.prefer(CORE, 20, among=[*node.free[CORE], *node.got[static.id, "main", CORE]])
    assert node.allocator.free(CORE)["GPU-0"] == 100


def test_nobody_waits_for_what_is_asked(node: Node) -> None:
    pod = make_pod("a", asks(30, 8))
    node.bind(pod)
    node.record.show(pod)
    with pytest.raises(ResolutionError) as refused:
        node.prefer(CORE, 50)
    assert str(refused.value) == (
        "50 places of core were asked for, but no waiting container asks for that; "
        "waiting: default/a container main (cores 30, memory 8)"
    )
    assert node.decision_log.refusals == [("prefer", CORE, 50, str(refused.value))]


def test_nothing_fits_is_refused_with_the_reason_of_each_card(node: Node) -> None:
    admitted(node, make_pod("a", asks(80, 8)))
    admitted(node, make_pod("b", asks(90, 8)))
    pod = make_pod("c", asks(30, 8))
    node.bind(pod)
    node.record.show(pod)
    with pytest.raises(PlacementError) as refused:
        node.prefer(CORE, 30)
    assert str(refused.value) == (
        "no card fits 30 cores and 8 memory blocks: 0 of 1 cards found; "
        "GPU-0: 20 of 30 cores free; GPU-1: 10 of 30 cores free"
    )
    node.forget(pod)
    admitted(node, make_pod("d", asks(15, 8)))


# --- the API server behind, or away ---------------------------------------------------


def test_a_pod_the_watch_has_not_told_of_is_asked_for_once(node: Node) -> None:
    pod = make_pod("a", asks(30, 8))
    node.pods.on_server[pod.id.key] = pod
    node.admit(pod)
    assert node.pods.fetched == [pod.id.key]
    assert node.decision_log.evidence("prefer") == [Evidence.WITNESS] * 2
    assert node.writer.of(pod)["main"].cards == ("GPU-0",)


def test_a_known_pod_costs_no_request(node: Node) -> None:
    admitted(node, make_pod("a", asks(30, 8)))
    assert not node.pods.fetched


def test_only_a_few_unknown_pods_are_asked_for_in_one_call(node: Node) -> None:
    for name in "abcdefgh":
        node.record.show(make_pod(name, asks(30, 8)))
    node.allocator.rebuild()
    assert len(node.pods.fetched) == 6


@ORDERS
def test_with_the_api_away_what_the_kubelet_lists_is_enough(
    node: Node, order: tuple[Resource, ...]
) -> None:
    pod = make_pod("a", asks(30, 8))
    node.pods.away = True
    node.admit(pod, order)
    node.start(pod)
    assert len(node.cards(pod)) == 1
    assert node.decision_log.refs("prestart") == ["a/main", "a/main"]
    assert not node.writer.puts
    assert len(node.pods.fetched) == 6  # three tries, then two a call: the API is away

    node.pods.away = False
    node.bind(pod)
    node.allocator.catch_up(pod)  # the watch is back; no call of the kubelet needs to come
    assert node.writer.of(pod)["main"].cards == tuple(node.cards(pod))


# --- init containers: fact K7 ---------------------------------------------------------


@ORDERS
def test_places_of_an_init_container_are_handed_on_silently(
    node: Node, order: tuple[Resource, ...]
) -> None:
    pod = admitted(node, make_pod("a", init(40, 8), asks(30, 8)), order)
    assert node.decision_log.refs("prefer") == ["a/init", "a/init"]
    assert node.decision_log.refs("allocate") == ["a/init", "a/init", "a/main", "a/main"]
    assert node.decision_log.evidence("allocate")[2:] == [Evidence.WITNESS] * 2
    assert set(node.got[pod.id, "main", CORE]) < set(node.got[pod.id, "init", CORE])
    assert set(node.writer.of(pod)) == {"init", "main"}
    node.start(pod)
    assert node.decision_log.refs("prestart") == ["a/main", "a/main"]


@ORDERS
def test_places_of_an_init_container_are_included_where_they_are_too_few(
    node: Node, order: tuple[Resource, ...]
) -> None:
    pod = admitted(node, make_pod("a", init(10, 8), asks(30, 20)), order)
    for resource in Resource:
        held = node.got[pod.id, "main", resource]
        assert set(held) > set(node.got[pod.id, "init", resource])
        assert cards_of(held) == ["GPU-0"]
    assert node.decision_log.refs("prefer") == ["a/init", "a/init", "a/main", "a/main"]


def test_a_sidecar_between_init_containers_takes_places_for_good(node: Node) -> None:
    pod = admitted(
        node,
        make_pod("a", init(30, 4, "i1"), sidecar(20, 2), init(20, 4, "i2"), asks(40, 6)),
    )
    assert not set(node.got[pod.id, "side", CORE]) & set(node.got[pod.id, "main", CORE])
    assert set(node.writer.of(pod)) == {"i1", "side", "i2", "main"}


def test_cores_go_to_the_card_whose_memory_the_kubelet_will_hand_on(node: Node) -> None:
    """The cores of the init container are used up, some of its memory is not."""
    admitted(node, make_pod("full", asks(90, 4)))
    admitted(node, make_pod("other", asks(40, 4)))  # binpack now prefers GPU-0 for 10 cores
    pod = admitted(
        node, make_pod("a", init(20, 6), sidecar(20, 2), asks(20, 2, "c1"), asks(10, 2, "c2"))
    )
    assert node.cards(pod, "c2") == node.cards(pod, "init") == ["GPU-1"]


def test_an_init_container_starts_without_proof_because_the_record_omits_it(node: Node) -> None:
    pod = make_pod("a", init(40, 8), asks(30, 8))
    node.bind(pod)
    node.record.show(pod)
    first = pod.demand.containers[0]
    node.serve(pod, first, CORE)
    node.allocator.prestart(CORE, node.got[pod.id, "init", CORE])
    ref, held, reason = node.decision_log.unproven_starts[0]
    assert ref is not None
    assert str(ref) == "default/a container init"
    assert held == frozenset(node.got[pod.id, "init", CORE])
    assert reason == "ordinary init containers are not in the kubelet's record"


def test_places_of_two_pods_named_together_are_refused(node: Node) -> None:
    one = admitted(node, make_pod("a", asks(50, 8)))
    two = admitted(node, make_pod("b", asks(50, 8)))
    third = make_pod("c", asks(2, 1))
    node.bind(third)
    node.record.show(third)
    mixed = [node.got[one.id, "main", CORE][0], node.got[two.id, "main", CORE][0]]
    with pytest.raises(GrantError) as refused:
        node.allocator.allocate(CORE, mixed)
    assert str(refused.value) == (
        f"2 places of core are held by another container: {', '.join(sorted(mixed))}"
    )


def test_places_that_init_containers_of_two_pods_have_left_over_are_refused_together(
    node: Node,
) -> None:
    pods = [make_pod(name, init(50, 8), asks(10, 2)) for name in "ab"]
    node.bind(*pods)
    for pod in pods:
        node.serve(pod, pod.demand.containers[0], CORE)
    for pod in pods:
        node.record.show(pod)
    mixed = [node.got[pod.id, "init", CORE][0] for pod in pods]
    with pytest.raises(GrantError) as refused:
        node.allocator.allocate(CORE, mixed)
    assert (
        str(refused.value) == "places of core of 2 pods were named together: default/a, default/b"
    )


# --- what is refused at Allocate ------------------------------------------------------


def test_a_place_another_live_container_holds_is_never_offered_on(node: Node) -> None:
    """K15: the kubelet has forgotten that a place is taken, and offers it."""
    pod = admitted(node, make_pod("a", asks(60, 8)))
    node.pods.add(second := make_pod("b", asks(40, 8)))
    node.record.show(second)
    chosen = node.prefer(CORE, 40, among=list(node.book.tickets(CORE)))
    assert not set(chosen) & set(node.got[pod.id, "main", CORE])


def test_a_place_another_live_container_holds_is_refused(node: Node) -> None:
    """K15, after the decision: the holder appeared between preferred call and Allocate."""
    pod, other = make_pod("a", asks(3, 8)), make_pod("b", asks(5, 8))
    node.bind(pod)
    node.record.show(pod)
    chosen = node.prefer(CORE, 3)
    node.bind(other)
    node.record.show(other)
    node.record.give(other, "main", CORE, ids(0, range(5)))
    node.allocator.rebuild()
    with pytest.raises(GrantError) as refused:
        node.allocator.allocate(CORE, chosen)
    assert str(refused.value) == (
        "3 places of core are held by another container: GPU-0::0, GPU-0::1, GPU-0::2"
    )
    assert node.decision_log.refusals == [("allocate", CORE, 3, str(refused.value))]
    assert not node.grants


@pytest.mark.parametrize(
    ("resource", "chosen", "message"),
    [
        (
            CORE,
            ids(0, range(20)) + ids(1, range(10)),
            "a share of 30 cores is split over cards: 20 on GPU-0, 10 on GPU-1",
        ),
        (CORE, ["GPU-7::1"] * 30, 'device ID "GPU-7::1" names a card this node does not have'),
        (
            MEMORY,
            ids(0, range(25, 33)),
            'device ID "GPU-0::32" names a memory place beyond the 32 of its card',
        ),
        (
            CORE,
            ["nonsense"] * 30,
            'device ID "nonsense" is not <card uuid>::<place>: it was not given out by this agent',
        ),
        (CORE, ids(0, [0] * 30), "a place of core is named twice"),
    ],
    ids=["split", "unknown card", "beyond", "malformed", "twice"],
)
def test_places_that_make_no_sense_are_refused_and_nothing_is_booked(
    node: Node, resource: Resource, chosen: list[str], message: str
) -> None:
    pod = make_pod("a", asks(30, 8))
    node.bind(pod)
    node.record.show(pod)
    with pytest.raises(GrantError) as refused:
        node.allocator.allocate(resource, chosen)
    assert str(refused.value) == message
    assert node.allocator.free(CORE) == {"GPU-0": 100, "GPU-1": 100}


def test_whole_cards_that_are_not_whole_are_refused(node: Node) -> None:
    pod = make_pod("a", asks(100, 8))
    node.bind(pod)
    node.record.show(pod)
    with pytest.raises(GrantError) as refused:
        node.allocator.allocate(CORE, ids(0, range(50)) + ids(1, range(50)))
    assert str(refused.value) == (
        "100 cores are whole cards, but the places are not: 50 on GPU-0, 50 on GPU-1"
    )


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        ((CORE, ids(0, range(30))), (MEMORY, ids(1, range(8))), "GPU-1"),
        ((MEMORY, ids(1, range(8))), (CORE, ids(0, range(30))), "GPU-1"),
    ],
    ids=["cores first", "memory first"],
)
def test_memory_on_another_card_than_the_cores_is_refused(
    node: Node,
    first: tuple[Resource, list[str]],
    then: tuple[Resource, list[str]],
    message: str,
) -> None:
    pod = make_pod("a", asks(30, 8))
    node.bind(pod)
    node.record.show(pod)
    node.allocator.allocate(*first)
    node.took(pod, pod.demand.containers[0], *first)
    with pytest.raises(GrantError) as refused:
        node.allocator.allocate(*then)
    assert str(refused.value) == "memory on GPU-1, but the container's cores are on GPU-0"


def test_an_unknown_place_in_a_preferred_call_is_refused(node: Node) -> None:
    pod = make_pod("a", asks(30, 8))
    node.bind(pod)
    node.record.show(pod)
    with pytest.raises(GrantError, match='device ID "GPU-9::0" names a card this node does'):
        node.prefer(CORE, 30, ["GPU-9::0"])
    assert len(node.decision_log.refusals) == 1


def test_a_refused_pod_leaves_the_way_free_for_the_next(node: Node) -> None:
    bad, good = make_pod("bad", asks(90, 33)), make_pod("good", asks(30, 8))
    node.bind(bad, good)
    node.record.show(bad)
    with pytest.raises(Refusal):
        node.prefer(CORE, 90)
    node.record.hide(bad)  # v1.34 and newer: a rejected pod is gone from List at once
    node.admit(good)
    assert set(node.decision_log.refs("allocate")) == {"good/main"}
    assert node.decision_log.evidence("prefer") == [Evidence.WITNESS] * 2


# --- wrong guesses --------------------------------------------------------------------


@pytest.fixture
def misled(node: Node) -> tuple[Node, PodView, PodView]:
    """Without a witness, ``b`` is guessed by the line, and it was ``a``."""
    asked, guessed = make_pod("a", asks(30, 8), place=2), make_pod("b", asks(30, 8), place=1)
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


def test_a_wrong_guess_is_corrected_by_the_next_list(
    misled: tuple[Node, PodView, PodView],
) -> None:
    node, asked, guessed = misled
    node.record.show(guessed)
    node.prefer(CORE, 30)
    assert node.decision_log.refs("prefer")[-1] == "b/main"
    assert {(each.resource, each.proven.pod.name) for each in node.decision_log.corrections} == {
        (CORE, "a"),
        (MEMORY, "a"),
    }
    node.start(asked)
    assert node.decision_log.refs("prestart") == ["a/main", "a/main"]


def test_a_wrong_guess_corrected_by_the_next_list_is_written(
    misled: tuple[Node, PodView, PodView],
) -> None:
    """Nobody may start a container for a long while; its pod must not go without a record."""
    node, asked, guessed = misled
    node.admit(guessed)
    node.allocator.catch_up(asked)
    assert node.writer.of(asked)["main"].evidence is Evidence.RECORD
    assert node.writer.of(guessed)["main"].evidence is Evidence.WITNESS


def test_a_container_the_guess_and_the_record_agree_on_is_proven_once(node: Node) -> None:
    pod = admitted(node, make_pod("a", asks(30, 8)))
    node.start(pod)
    asked = node.record.asked
    node.start(pod)
    assert node.record.asked == asked  # a restart of a proven container asks nobody
    assert not node.decision_log.corrections


# --- the proof ------------------------------------------------------------------------


def test_a_container_whose_devices_contradict_its_request_is_vetoed(node: Node) -> None:
    pod = make_pod("a", asks(30, 8))
    node.bind(pod)
    node.record.give(pod, "main", CORE, ids(0, range(20)))
    with pytest.raises(GrantError) as vetoed:
        node.allocator.prestart(CORE, ids(0, range(20)))
    assert str(vetoed.value) == "20 places of core, but the container asks for 30"
    assert node.decision_log.refusals == [("prestart", CORE, 20, str(vetoed.value))]


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
    pod = admitted(node, make_pod("a", asks(30, 8)))
    node.record.away = "PodResources: DEADLINE_EXCEEDED"
    node.start(pod)
    assert [(str(each[0]), each[2]) for each in node.decision_log.unproven_starts] == [
        ("default/a container main", "PodResources: DEADLINE_EXCEEDED"),
    ]  # the cores were proven by the List of the preferred call for the memory


def test_places_that_nobody_holds_start_unproven(node: Node) -> None:
    node.allocator.prestart(CORE, ids(0, range(30)))
    assert node.decision_log.unproven_starts == [
        (
            None,
            frozenset(ids(0, range(30))),
            "the kubelet's record shows nobody holding exactly these",
        )
    ]
    node.record.away = "away"
    node.allocator.prestart(CORE, ids(0, range(30)))
    assert node.decision_log.unproven_starts[1][2] == "away"


def test_an_init_container_whose_places_another_pod_holds_is_vetoed(node: Node) -> None:
    """The kubelet forgot whose they are (K15), and the agent that knew has been replaced."""
    pod = make_pod("a", init(40, 8), asks(30, 8))
    node.bind(pod)
    node.record.show(pod)
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


def test_an_init_container_of_which_the_agent_knows_nothing_hands_places_on(node: Node) -> None:
    """Its own pod's containers hold some of them (K7): that is no veto."""
    pod = admitted(node, make_pod("a", init(40, 8), asks(30, 8)))
    node.restart_agent()
    node.allocator.rebuild()
    node.start(pod, "init")
    node.start(pod)
    assert node.decision_log.refusals == []


# --- rejected pods: fact K8 -----------------------------------------------------------


def burst_among_rejected(node: Node, cores: int, memory: int, *, watch_behind: bool) -> None:
    """Three pods admitted among three that the kubelet rejected before any call of ours."""
    rejected = [make_pod(f"r{index}", asks(cores, memory)) for index in range(3)]
    good = [make_pod(f"g{index}", asks(cores, memory)) for index in range(3)]
    node.bind(*good)
    for bad in rejected:
        node.bind(bad if watch_behind else replace(bad, terminal=True))
        node.record.show(bad)
    for fine in good:
        node.admit(fine)


def test_rejected_pods_that_stay_listed_do_not_stand_in_the_way() -> None:
    """Before v1.34 ``List`` keeps rejected pods, without devices."""
    node = Node(cards=4)
    burst_among_rejected(node, 30, 8, watch_behind=False)
    assert node.decision_log.evidence("prefer") == [Evidence.WITNESS] * 6
    assert node.decision_log.refs("allocate") == ["g0/main"] * 2 + ["g1/main"] * 2 + ["g2/main"] * 2


def test_with_the_watch_behind_the_newest_of_those_that_lack_is_asking() -> None:
    """The kubelet lists a pod when its turn comes: those before it were rejected (K8)."""
    node = Node(cards=4)
    burst_among_rejected(node, 30, 8, watch_behind=True)
    assert node.decision_log.evidence("prefer") == [Evidence.ORDER] + [Evidence.WITNESS] * 5
    assert node.decision_log.refs("allocate") == ["g0/main"] * 2 + ["g1/main"] * 2 + ["g2/main"] * 2
    assert node.decision_log.corrections == []


def test_with_the_watch_behind_the_pods_in_doubt_are_asked_for_and_those_that_failed_left_out(
    node: Node,
) -> None:
    """The stamps mislead: the rejected pod was bound after the one that is asking."""
    asking, rejected = make_pod("a", asks(30, 8), place=1), make_pod("r", asks(30, 8), place=2)
    other = make_pod("o", asks(30, 8), place=3)
    node.bind(asking, rejected, other)
    for each in (rejected, other):
        node.record.show(each)
        node.pods.on_server[each.id.key] = replace(each, terminal=True)
    node.admit(asking)
    assert node.decision_log.refs("allocate") == ["a/main", "a/main"]
    assert node.decision_log.evidence("prefer") == [Evidence.WITNESS] * 2
    assert node.pods.fetched[:3] == [("default", "o"), ("default", "r"), ("default", "a")]


def test_a_pod_guessed_wrongly_has_had_its_turn_once_the_record_says_who_it_was() -> None:
    """Whole cards without memory: there is no second call to show who is being admitted."""
    node = Node(cards=4)
    rejected, good = make_pod("r", asks(100, 0), place=9), make_pod("g", asks(100, 0), place=1)
    later = make_pod("l", asks(100, 0), place=2)
    node.bind(rejected, good, later)
    node.record.show(rejected)
    node.pods.on_server.clear()  # the API tells nothing new
    node.admit(good)
    node.admit(later)
    assert node.decision_log.refs("allocate") == ["r/main", "l/main"]
    assert node.decision_log.evidence("prefer") == [Evidence.ORDER, Evidence.WITNESS]
    assert len(node.decision_log.corrections) == 1


def test_a_pod_guessed_blindly_has_its_turn_still_before_it(node: Node) -> None:
    """Without a List nobody knows whether the guessed pod was there when another was served."""
    asked, guessed = make_pod("a", asks(30, 8), place=3), make_pod("b", asks(30, 8), place=2)
    rejected = make_pod("r", asks(30, 8), place=1)
    node.bind(asked, guessed, rejected)
    node.record.away = "rate limited"
    node.admit(asked)
    node.record.away = ""
    node.record.show(rejected)
    node.admit(guessed)
    assert node.decision_log.refs("allocate")[2:] == ["b/main", "b/main"]


def test_a_pod_that_was_refused_is_not_taken_for_the_next_one(node: Node) -> None:
    """List in its old form goes on showing it, and the watch does not know yet (K8)."""
    never, good = make_pod("n", asks(30, 999), place=2), make_pod("g", asks(30, 8), place=1)
    node.bind(never, good)
    node.record.show(never)
    with pytest.raises(PlacementError):
        node.prefer(CORE, 30)
    node.admit(good)
    assert node.decision_log.refs("allocate") == ["g/main", "g/main"]
    assert node.decision_log.evidence("prefer") == [Evidence.WITNESS] * 2
    assert [str(each) for each in node.decision_log.refused_claims] == ["default/n container main"]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_pod_that_was_answered_and_has_lost_it_again_was_rejected(
    node: Node, restarted: bool
) -> None:
    """Another plugin failed after our answer. A kubelet that restarted tries the pod again."""
    lost, good = make_pod("x", asks(30, 8), place=2), make_pod("g", asks(30, 8), place=1)
    node.bind(lost, good)
    node.record.show(lost)
    node.serve(lost, lost.demand.containers[0], CORE)
    node.give_back(lost)
    node.record.show(lost)
    if restarted:
        node.allocator.registered()
        node.admit(lost)
    else:
        node.admit(good)
    last = "x/main" if restarted else "g/main"
    assert node.decision_log.refs("allocate") == ["x/main", last, last]
    assert node.decision_log.evidence("prefer")[1:] == [Evidence.WITNESS] * 2


def test_a_successor_does_not_name_a_pod_that_its_predecessor_refused(node: Node) -> None:
    """An old List goes on showing it (K21), and only the one that refused it knows."""
    never, good = make_pod("n", asks(30, 999), place=2), make_pod("g", asks(30, 8), place=1)
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
    """K4: the kubelet does not show it, and the record on the pod is not written yet."""
    pod = make_pod("a", init(80, 20), asks(10, 2))
    node.bind(pod)
    node.record.show(pod)
    node.serve(pod, pod.demand.containers[0], CORE)
    known = node.allocator.knowledge()
    node.restart_agent()
    node.allocator.rebuild()
    assert node.allocator.free(CORE) == {"GPU-0": 100, "GPU-1": 100}
    node.allocator.inherit(known)
    assert node.allocator.free(CORE) == {"GPU-0": 20, "GPU-1": 100}


def test_a_successor_writes_no_record_without_what_the_init_container_got(node: Node) -> None:
    """The predecessor's is still on its way, and would be overwritten."""
    pod = make_pod("a", init(30, 8), asks(10, 2))
    node.bind(pod)
    node.admit(pod)
    known = node.allocator.knowledge()
    node.writer.puts.clear()
    node.restart_agent()
    node.allocator.rebuild(inheriting=True)
    node.allocator.inherit(known)
    ((_, allocations),) = node.writer.puts
    assert allocations.keys() == {"init", "main"}


def test_what_a_predecessor_tells_again_of_a_pod_that_has_ended_refuses_nobody(node: Node) -> None:
    """It tells all it knows after each call that it ends, and lets nothing go any more."""
    ended, next_one = make_pod("e", asks(30, 8)), make_pod("n", asks(30, 8))
    node.bind(ended)
    node.admit(ended)
    known = node.allocator.knowledge()
    node.restart_agent()
    node.allocator.rebuild()
    node.allocator.inherit(known)
    had = set(node.got[ended.id, "main", CORE])
    node.forget(ended)
    node.bind(next_one)
    node.record.show(next_one)
    chosen = node.prefer(CORE, 30)
    assert set(chosen) == had
    node.allocator.inherit(known)
    node.allocator.allocate(CORE, chosen)
    assert node.decision_log.refs("allocate")[-1] == "n/main"


def test_a_kubelet_that_does_not_list_the_pod_it_admits_is_no_witness_of_it(node: Node) -> None:
    """An older PodResources: the pods' line settles it, and a counter says so."""
    shown, first, second = (make_pod(name, asks(30, 8)) for name in ("s", "a", "b"))
    node.bind(shown, first, second)
    node.admit(shown)
    for pod in (first, second):
        for resource in (CORE, MEMORY):
            node.serve(pod, pod.demand.containers[0], resource)
            node.record.hide(pod)
    assert node.decision_log.refs("allocate")[2:] == ["a/main"] * 2 + ["b/main"] * 2
    assert node.decision_log.evidence("prefer")[2:] == [Evidence.ORDER] * 4
    assert set(node.decision_log.blinds) == {
        "PodResources: List does not show the pod that is being admitted"
    }


def test_pods_seen_lacking_while_another_was_served_have_had_their_turn(node: Node) -> None:
    """The watch is seconds behind, so nothing says that they have failed."""
    rejected = make_pod("r", asks(20, 8), place=1)
    first = make_pod("a", asks(30, 8), place=2)
    second = make_pod("b", asks(20, 8), place=3)
    node.bind(rejected, first, second)
    node.record.show(rejected)
    node.admit(first)
    node.admit(second)
    assert node.decision_log.refs("allocate") == ["a/main", "a/main", "b/main", "b/main"]
    assert node.decision_log.evidence("prefer") == [Evidence.WITNESS] * 4


def test_a_rejected_pod_that_left_the_list_leaves_no_trace(node: Node) -> None:
    rejected, good = make_pod("r", asks(30, 8)), make_pod("g", asks(30, 8))
    node.bind(rejected, good)
    node.record.show(rejected)
    node.serve(rejected, rejected.demand.containers[0], CORE)
    node.record.hide(rejected)
    node.pods.add(replace(rejected, terminal=True))
    node.give_back(rejected)
    node.admit(good)
    assert node.decision_log.refs("allocate") == ["r/main", "g/main", "g/main"]
    assert node.allocator.free(CORE)["GPU-0"] == 70


# --- deleted and recreated pods -------------------------------------------------------


def test_a_pod_recreated_under_its_name_is_another_pod(node: Node) -> None:
    old = admitted(node, make_pod("a", asks(30, 8)))
    node.forget(old)
    new = admitted(node, make_pod("a", asks(40, 4)))
    assert node.writer.of(new)["main"].cores == 40
    assert [each[1].pod.uid for each in node.decision_log.decisions[-4:]] == [new.id.uid] * 4


def test_a_successor_is_told_from_the_old_pod_that_is_still_stopping(node: Node) -> None:
    old = admitted(node, make_pod("a", asks(30, 8)))
    node.pods.cached = {old.id: replace(old, deleting=True)}
    new = admitted(node, make_pod("a", asks(30, 8)))
    assert {each[1].pod.uid for each in node.decision_log.decisions[-4:]} == {new.id.uid}
    assert not set(node.got[old.id, "main", CORE]) & set(node.got[new.id, "main", CORE])
    assert node.decision_log.evidence("prefer")[-2:] == [Evidence.WITNESS] * 2


def test_a_pod_deleted_between_its_two_resources_frees_the_first(node: Node) -> None:
    pod = make_pod("a", asks(100, 32))
    node.bind(pod)
    node.record.show(pod)
    node.serve(pod, pod.demand.containers[0], CORE)
    node.forget(pod)
    last = admitted(node, make_pod("b", asks(200, 64)))
    assert node.cards(last) == ["GPU-0", "GPU-1"]


# --- restarts -------------------------------------------------------------------------


def test_a_reservation_is_dropped_when_the_plugin_registers_again(node: Node) -> None:
    pod, other = make_pod("a", asks(30, 8)), make_pod("b", asks(30, 8))
    node.bind(pod)
    node.record.show(pod)
    chosen = node.prefer(CORE, 30)
    node.allocator.registered()
    node.forget(pod)
    node.bind(other)
    node.record.show(other)
    node.allocator.allocate(CORE, chosen)
    assert node.decision_log.refs("allocate") == ["b/main"]
    assert node.decision_log.evidence("allocate") == [Evidence.WITNESS]


def test_a_new_kubelet_knows_nothing_of_an_init_container_that_was_half_served(node: Node) -> None:
    """It wrote nothing of it into its checkpoint, and ``List`` never shows it (K4)."""
    pod = make_pod("a", init(30, 8), asks(10, 2))
    node.bind(pod)
    node.record.show(pod)
    node.serve(pod, pod.demand.containers[0], CORE)
    node.allocator.registered()
    assert node.allocator.free(CORE) == {"GPU-0": 100, "GPU-1": 100}
    again = node.prefer(MEMORY, 8, among=ids(1, range(32)))
    assert cards_of(again) == ["GPU-1"]
    node.allocator.allocate(MEMORY, again)
    assert node.decision_log.refs("allocate") == ["a/init", "a/init"]


def test_a_successor_of_another_kubelet_forgets_what_was_half_served_too(node: Node) -> None:
    pod = make_pod("a", init(30, 8), asks(10, 2))
    node.bind(pod)
    node.record.show(pod)
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
    node.bind(pod)
    node.record.show(pod)
    node.serve(pod, pod.demand.containers[0], CORE)
    node.restart_agent()
    node.allocator.rebuild()
    for resource in (MEMORY, CORE):
        node.serve(pod, pod.demand.containers[resource is CORE], resource)
    assert node.decision_log.evidence("allocate") == [Evidence.TICKET, Evidence.ORDER]
    node.bind(later)
    node.admit(later)
    assert set(node.decision_log.evidence("prefer")) == {Evidence.WITNESS}


def test_old_reservations_make_room_for_new_ones(node: Node) -> None:
    """Answers that are never taken up must not gather."""
    first = make_pod("first", asks(99, 1))
    node.bind(first)
    node.record.show(first)
    oldest = node.prefer(CORE, 99)
    node.forget(first)
    for size in range(1, 66):
        pod = make_pod(f"p{size}", asks(size, 1))
        node.bind(pod)
        node.record.show(pod)
        node.prefer(CORE, size)
        node.forget(pod)
    again = make_pod("again", asks(99, 1))
    node.bind(again)
    node.record.show(again)
    node.allocator.allocate(CORE, oldest)
    assert node.decision_log.refs("allocate") == ["again/main"]


def test_pods_passed_over_are_tried_anew_after_a_registration(node: Node) -> None:
    """K8 and K11: a kubelet that restarted admits every pod again."""
    waiting, served = make_pod("w", asks(30, 8), place=2), make_pod("s", asks(30, 8), place=3)
    node.bind(waiting, served)
    node.record.show(waiting)
    node.allocator.registered()
    node.record.hide(waiting)
    node.admit(served)
    node.admit(waiting)
    assert node.decision_log.refs("allocate") == ["s/main", "s/main", "w/main", "w/main"]


def test_a_restarted_agent_writes_what_it_finds(node: Node) -> None:
    pod = admitted(node, make_pod("a", asks(30, 8), sidecar(10, 2)))
    done = admitted(node, make_pod("b", asks(10, 2)))
    node.pods.add(replace(done, assigned=True, recorded=node.writer.of(done)))
    node.restart_agent()
    assert node.allocator.rebuild()
    assert [put.id for put, _ in node.writer.puts] == [pod.id]
    assert node.writer.of(pod) == {
        "main": Allocation(("GPU-0",), 30, 8, Evidence.RECORD),
        "side": Allocation(("GPU-0",), 10, 2, Evidence.RECORD),
    }
    assert node.allocator.free(CORE)["GPU-0"] == 50


def test_a_restarted_agent_without_a_record_says_so(node: Node) -> None:
    node.record.away = "PodResources: no socket"
    assert not node.allocator.rebuild()
    assert node.decision_log.blinds == ["PodResources: no socket"]


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


def test_an_agent_restarted_between_two_resources_goes_on(node: Node) -> None:
    pod = make_pod("a", asks(30, 8))
    node.bind(pod)
    node.record.show(pod)
    node.serve(pod, pod.demand.containers[0], CORE)
    node.restart_agent()
    node.allocator.rebuild()
    node.serve(pod, pod.demand.containers[0], MEMORY)
    assert node.cards(pod) == ["GPU-0"]
    node.start(pod)
    assert node.writer.of(pod)["main"].cards == ("GPU-0",)


def test_a_pod_that_has_nothing_or_shows_it_already_is_not_caught_up(node: Node) -> None:
    pod = admitted(node, make_pod("a", asks(30, 8)))
    node.writer.puts.clear()
    shown = {"main": Allocation(("GPU-0",), 30, 8, Evidence.WITNESS)}
    for view in (
        replace(pod, assigned=True),
        replace(pod, terminal=True),
        replace(pod, recorded=shown),
        make_pod("plain"),
        make_pod("waiting", asks(30, 8)),
    ):
        node.allocator.catch_up(view)
    assert not node.writer.puts
    node.allocator.catch_up(pod)
    assert [put for put, _ in node.writer.puts] == [pod]


def test_a_kubelet_that_lists_only_part_of_the_pods_after_its_restart_frees_nothing(
    node: Node,
) -> None:
    """K11: its checkpoint books the devices of all, its list grows pod by pod."""
    held = [admitted(node, make_pod(name, asks(50, 16))) for name in "abc"]
    shown = dict(node.record.entries)
    node.record.entries = {held[0].id: shown[held[0].id]}
    node.allocator.registered()
    new = admitted(node, make_pod("new", asks(50, 16)))
    taken = {each for pod in held for each in node.got[pod.id, "main", CORE]}
    assert not set(node.got[new.id, "main", CORE]) & taken
    node.record.entries.update(shown)
    assert node.allocator.rebuild()
    assert node.allocator.free(CORE) == {"GPU-0": 0, "GPU-1": 0}


def test_places_of_an_unlisted_pod_that_the_kubelet_offers_are_free(node: Node) -> None:
    """The API still shows it live; the kubelet, who decides, has given its places back."""
    first = admitted(node, make_pod("a", asks(100, 32)))
    admitted(node, make_pod("b", asks(100, 32)))
    node.record.hide(first)
    node.give_back(first)
    third = admitted(node, make_pod("c", asks(100, 32)))
    assert node.cards(third) == ["GPU-0"]


def test_an_init_container_recorded_on_its_pod_is_remembered_over_a_restart(node: Node) -> None:
    """K4: the kubelet books its places for the life of the pod and never shows them."""
    pod = admitted(node, make_pod("a", init(80, 20), asks(10, 2)))
    node.pods.add(replace(pod, assigned=True, recorded=node.writer.of(pod)))
    node.restart_agent()
    node.allocator.rebuild()
    assert node.allocator.free(CORE) == {"GPU-0": 20, "GPU-1": 100}
    assert node.allocator.free(MEMORY) == {"GPU-0": 12, "GPU-1": 32}


def test_an_init_container_served_before_a_restart_is_not_asking_again(node: Node) -> None:
    """K4: to a new agent its pod looks as if it waited, but for the record on it."""
    pod = admitted(node, make_pod("a", init(20, 2)))
    node.pods.add(replace(pod, assigned=True, recorded=node.writer.of(pod)))
    node.restart_agent()
    node.allocator.rebuild()
    admitted(node, make_pod("b", asks(20, 2)))
    assert node.decision_log.refs("allocate") == ["b/main", "b/main"]
    assert node.decision_log.evidence("prefer") == [Evidence.WITNESS] * 2


# --- what is owed ---------------------------------------------------------------------


def unwritten(node: Node, view: PodView) -> None:
    """Have the agent start anew after it served a pod and before it wrote so, kubelet away."""
    admitted(node, view)
    node.record.away = "PodResources: no socket"
    node.restart_agent()
    assert not node.allocator.rebuild()
    node.record.away = ""


@pytest.mark.parametrize("again", ["refresh", "registered"])
def test_a_record_that_a_dead_agent_owes_is_written_though_no_call_comes(
    node: Node, again: str
) -> None:
    done = admitted(node, make_pod("done", asks(10, 2)))
    node.pods.add(replace(done, assigned=True, recorded=node.writer.of(done)))
    pod = make_pod("a", asks(30, 8), sidecar(10, 2))
    unwritten(node, pod)
    getattr(node.allocator, again)()
    assert node.writer.of(pod) == {
        "main": Allocation(("GPU-0",), 30, 8, Evidence.RECORD),
        "side": Allocation(("GPU-0",), 10, 2, Evidence.RECORD),
    }
    assert [view.id for view, _ in node.writer.puts] == [pod.id]
    assert node.allocator.free(CORE) == {"GPU-0": 50, "GPU-1": 100}


def test_where_nothing_is_owed_the_kubelet_is_not_asked(node: Node) -> None:
    done = admitted(node, make_pod("a", asks(30, 8)))
    node.pods.add(replace(done, assigned=True, recorded=node.writer.of(done)))
    node.pods.add(make_pod("plain"))
    node.pods.add(make_pod("ended", asks(30, 8), terminal=True))
    asked = node.record.asked
    node.allocator.refresh()
    assert node.record.asked == asked


def test_a_record_that_cannot_be_had_is_owed_on(node: Node) -> None:
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


def test_looking_after_what_is_owed_takes_nothing_away(node: Node) -> None:
    """Calls of the kubelet may be under way, which its record does not show yet."""
    behind, asking = make_pod("behind", asks(30, 8)), make_pod("a", asks(20, 4))
    unwritten(node, behind)
    node.bind(asking)
    node.record.show(asking)
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
    pod, stays = (admitted(node, make_pod(name, asks(30, 8))) for name in ("a", "stays"))
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
    pod = admitted(node, make_pod("a", *containers))
    node.pods.add(replace(pod, terminal=True))
    assert not node.allocator.refresh(owed=False)
    assert node.allocator.free(CORE)["GPU-0"] < 100, "the record shows it holding these"
    node.record.show(pod)
    assert node.allocator.refresh(owed=False)
    assert node.allocator.free(CORE) == {"GPU-0": 100, "GPU-1": 100}
    assert not node.allocator.refresh(owed=False)


def test_what_a_pod_deleted_by_force_held_is_free_once_the_record_shows_it_without(
    node: Node,
) -> None:
    """It is listed until its containers have ended (K20); the API has forgotten it."""
    pod = admitted(node, make_pod("a", asks(30, 8)))
    node.start(pod)
    node.pods.remove(pod)
    assert not node.allocator.refresh(owed=False)
    node.record.show(pod)
    assert node.allocator.refresh(owed=False)
    assert node.allocator.free(CORE) == {"GPU-0": 100, "GPU-1": 100}


def test_a_pod_that_only_the_kubelet_shows_keeps_what_it_holds(node: Node) -> None:
    """The watch may be behind, and a static pod may have no mirror."""
    pod = admitted(node, make_pod("a", asks(30, 8)))
    node.pods.remove(pod)
    node.allocator.refresh()
    assert node.allocator.free(CORE) == {"GPU-0": 70, "GPU-1": 100}


def test_an_ended_pod_keeps_what_it_held_while_the_record_cannot_be_had(node: Node) -> None:
    pod = admitted(node, make_pod("a", asks(30, 8)))
    node.pods.remove(pod)
    node.record.hide(pod)
    node.record.away = "PodResources: no socket"
    node.allocator.refresh()
    assert node.allocator.free(CORE) == {"GPU-0": 70, "GPU-1": 100}


def test_a_pod_that_is_half_served_is_not_written_yet(node: Node) -> None:
    pod = make_pod("a", asks(30, 8))
    node.bind(pod)
    node.record.show(pod)
    node.serve(pod, pod.demand.containers[0], CORE)
    node.restart_agent()
    node.allocator.refresh()
    assert not node.writer.puts
    assert node.allocator.free(CORE)["GPU-0"] == 70


@ORDERS
def test_what_an_init_container_got_is_written_before_its_pod_is_complete(
    node: Node, order: tuple[Resource, ...]
) -> None:
    """Nobody else knows (K4): an agent killed before the pod is complete would forget it."""
    pod = make_pod("a", init(40, 8, "i0"), init(10, 2, "i1"), asks(30, 8))
    node.bind(pod)
    node.record.show(pod)
    written: list[set[str]] = []
    for container in pod.demand.containers:
        for resource in order:
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


def test_an_agent_that_starts_between_goes_by_what_was_written_of_init_containers(
    node: Node,
) -> None:
    pod = make_pod("a", init(40, 8), asks(30, 8))
    node.bind(pod)
    node.record.show(pod)
    for resource in CORE_FIRST:
        node.serve(pod, pod.demand.containers[0], resource)
    node.pods.add(replace(pod, recorded=node.writer.of(pod)))
    node.restart_agent()
    node.allocator.rebuild()
    assert node.allocator.free(CORE)["GPU-0"] == 60
    for resource in CORE_FIRST:
        node.serve(pod, pod.demand.containers[1], resource)
    assert node.decision_log.refs("allocate") == ["a/main", "a/main"]
    assert set(node.writer.of(pod)) == {"init", "main"}


# --- bursts ---------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), restarts=st.booleans())
def test_in_a_burst_of_any_shape_nobody_is_named_wrongly_and_no_place_is_given_twice(
    seed: int, restarts: bool
) -> None:
    dice = random.Random(seed)
    node = Node(cards=4, blocks=64)
    kinds = {"i": init, "s": sidecar, "c": asks}
    pods = []
    for number in range(12):
        containers = [
            kinds[kind](dice.choice([10, 20, 20]), dice.choice([2, 4, 6]), f"{kind}{index}")
            for index, kind in enumerate(
                sorted(dice.choices("isccc", k=dice.randint(1, 4)), key="isc".index)
            )
        ]
        pods.append(make_pod(f"p{number}", *containers))
    node.bind(*dice.sample(pods, len(pods)))
    for pod in dice.sample(pods, len(pods)):
        node.record.show(pod)
        served: list[str] = []
        try:
            for container in pod.demand.containers:
                for resource in dice.sample(CORE_FIRST, 2):
                    node.serve(pod, container, resource)
                    served.append(f"{pod.id.name}/{container.name}")
        except PlacementError:  # full: the pod is rejected
            node.forget(pod)
            continue
        except GrantError:
            if not node.forced:
                raise
            node.forget(pod)  # nothing but a senseless rest was left
            continue
        assert node.decision_log.refs("allocate")[-len(served) :] == served
        node.pods.add(replace(pod, assigned=True, recorded=node.writer.of(pod)))
        if dice.random() < 0.3:
            node.forget(pod)
        elif restarts and dice.random() < 0.3:
            node.restart_agent()
            node.allocator.rebuild()
            node.decision_log.decisions.clear()
    holders = [
        each
        for (pod_id, name, resource), held in node.got.items()
        if not name.startswith("i") and resource is CORE
        for each in held
    ]
    assert len(holders) == len(set(holders))
    assert not node.decision_log.corrections


# --- an agent that starts while the API is away -------------------------------------------


def test_containers_are_entitled_and_counted_once_as_soon_as_the_api_is_back(node: Node) -> None:
    """Served and recorded by the agent before: no call of the kubelet will come for them."""
    pod = admitted(node, make_pod("a", asks(30, 8)), CORE_FIRST)
    recorded = replace(pod, assigned=True, recorded=node.writer.of(pod), running=True)
    node.pods.remove(pod)
    node.restart_agent()
    node.allocator.rebuild()
    assert node.allocator.entitled(pod.id.uid, "main") is None
    free = sum(node.allocator.free(CORE).values())
    node.pods.add(recorded)
    node.allocator.catch_up(recorded)
    assert node.allocator.entitled(pod.id.uid, "main") is not None
    assert sum(node.allocator.free(CORE).values()) == free == 170


def test_what_a_force_deleted_pod_holds_is_taken_until_it_has_left_the_list(node: Node) -> None:
    pod = admitted(node, make_pod("a", init(40, 8), asks(30, 8)), CORE_FIRST)
    node.pods.remove(pod)
    node.allocator.refresh()
    free = sum(node.allocator.free(CORE).values())
    assert free <= 170
    node.record.hide(pod)
    node.allocator.refresh()
    assert sum(node.allocator.free(CORE).values()) == 200


def test_an_agent_that_could_not_read_the_record_when_it_started_books_what_runs_on_a_quiet_node(
    node: Node,
) -> None:
    """An agent before it has written the pods' records, so that none is owed."""
    record = {"main": Allocation(("GPU-0",), 30, 8, Evidence.WITNESS)}
    pod = make_pod("a", asks(30, 8), recorded=record, assigned=True)
    node.bind(pod)
    node.record.show(pod)
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
