"""The allocator plans for whole pods, and follows what authors and schedulers want."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.allocator.slots import per_card
from agent.errors import PlacementError, Refusal
from contract.allocation import Evidence
from contract.demand import ContainerDemand
from contract.resource import Resource, count_of
from contract.wishes import Wishes
from placement.pods import PodInfo
from placement.scoring import Policy
from tests.agent.brute_force import can_be_placed
from tests.agent.builders import CORE, INIT, MAIN, MEMORY, SIDECAR, patient
from tests.agent.fakes import (
    CORE_FIRST,
    MEMORY_FIRST,
    Node,
    asks,
    cards_of,
    init,
    make_pod,
    sidecar,
)
from tests.examples import share


def refusal(node: Node, view: PodInfo) -> str:
    with pytest.raises(PlacementError) as caught:
        node.admitted(view)
    return str(caught.value)


# --- the whole pod --------------------------------------------------------------------


def test_what_a_refused_pod_had_got_counts_until_the_kubelet_has_freed_it() -> None:
    """K21: a kubelet that has just restarted frees nothing, and the file lacks half of it."""
    node = Node(blocks=16)
    refused = node.begin(make_pod("refused", asks(50, 4, "first"), asks(20, 8, "second")))
    first, second = refused.demand.containers
    for each, resource in ((first, CORE), (first, MEMORY), (second, MEMORY)):
        node.serve(refused, each, resource)
    assert node.cards(refused, "second") == ["GPU-0"]
    with pytest.raises(PlacementError):
        node.prefer(CORE, 20, among=[each for each in node.free[CORE] if "GPU-1" in each])
    node.record.hide(refused)
    node.pods.add(replace(refused, terminal=True))
    other = node.admitted(make_pod("other", asks(10, 8)))
    assert node.cards(other) == ["GPU-1"]


def test_a_pod_is_refused_at_once_for_a_container_that_will_find_no_place() -> None:
    node = Node(1)
    pod = make_pod("p", asks(60, 4, "first"), asks(50, 4, "second"))
    assert refusal(node, pod) == (
        "no card fits 50 cores and 4 memory blocks of container second, with first placed: "
        "0 of 1 cards found; GPU-0: 40 of 50 cores free"
    )
    assert node.got == {}


def test_a_broken_container_later_in_the_pod_is_named() -> None:
    text = refusal(Node(), make_pod("p", asks(60, 4, "first"), asks(150, 4, "second")))
    assert text.startswith("container second: 150 cores and 4 memory blocks fit no card: ")


def test_one_of_several_that_may_be_asking_is_not_refused_for_a_later_container() -> None:
    """Nor is another served in its stead: it was the likeliest."""
    node = Node(1)
    node.record.away = "hanging"
    pod = make_pod("p", asks(60, 4, "first"), asks(50, 4, "second"))
    node.bind(pod, make_pod("q", asks(60, 4)))
    assert len(node.prefer(CORE, 60)) == 60
    assert node.decision_log.refs("prefer") == ["p/first"]
    assert node.decision_log.evidence("prefer") == [Evidence.ORDER]


def test_what_was_planned_for_a_pod_is_free_once_it_is_gone() -> None:
    node = Node(1)
    begun = node.begin(make_pod("a", asks(30, 4, "first"), asks(60, 4, "second")))
    node.serve(begun, begun.demand.containers[0], CORE)
    node.forget(begun)
    other = node.admitted(make_pod("b", asks(90, 4)))
    assert node.cards(other) == ["GPU-0"]


def test_a_kubelet_that_offers_something_else_than_planned_is_planned_for_anew() -> None:
    node = Node()
    pod = node.begin(make_pod("p", asks(30, 4, "first"), asks(50, 4, "second")))
    for resource in (CORE, MEMORY):
        node.serve(pod, pod.demand.containers[0], resource)
    assert node.cards(pod, "first") == ["GPU-0"]
    on_other = [each for each in node.free[CORE] if each.startswith("GPU-1")]
    assert set(cards_of(node.prefer(CORE, 50, among=on_other))) == {"GPU-1"}


# --- what others want -----------------------------------------------------------------


def test_wishes_and_health_are_followed_or_named() -> None:
    node = Node(3)
    node.ill["GPU-1"] = "Xid 79"
    wish = Wishes(nouse_uuids=("GPU-0",))
    pod = node.admitted(make_pod("a", asks(50, 4), wishes=wish))
    assert node.cards(pod) == ["GPU-2"]
    assert refusal(node, make_pod("b", asks(60, 4), wishes=wish)) == (
        "no card fits 60 cores and 4 memory blocks: 0 of 1 cards found; GPU-0: excluded by "
        "nouse-gpu-uuid; GPU-1: unhealthy (Xid 79); GPU-2: 50 of 60 cores free"
    )


def test_the_policy_that_a_pod_wishes_goes_before_the_nodes() -> None:
    node = Node()
    node.admitted(make_pod("x", asks(20, 4)))
    spread = node.admitted(make_pod("a", asks(20, 4), wishes=Wishes(policy="spread")))
    packed = node.admitted(make_pod("b", asks(20, 4)))
    assert (node.cards(spread), node.cards(packed)) == (["GPU-1"], ["GPU-0"])


def test_a_schedulers_choice_is_followed_where_it_fits_and_else_replaced_and_told() -> None:
    node = Node(3)
    chosen = node.admitted(make_pod("a", asks(50, 4), chosen={"main": (2,)}))
    assert node.cards(chosen) == ["GPU-2"]
    assert node.decision_log.replacements == []
    other = node.admitted(make_pod("b", asks(60, 4), chosen={"main": (2,)}))
    assert node.cards(other) == ["GPU-0"]
    assert node.decision_log.replacements == [("main", ("GPU-2",), ("GPU-0",))]


@pytest.mark.parametrize(("before", "card"), [(init(70, 4), 2), (sidecar(70, 4), 0)])
def test_what_runs_before_a_container_leaves_it_the_card_that_a_scheduler_chose(
    before: ContainerDemand, card: int
) -> None:
    """By itself it would go to GPU-0, and what follows an init container must follow it there."""
    node = Node(3)
    node.admitted(make_pod("x", asks(20, 4)))
    pod = node.admitted(make_pod("p", before, asks(70, 4), chosen={"main": (card,)}))
    assert node.cards(pod) == [f"GPU-{card}"]
    assert node.decision_log.replacements == []


def test_a_choice_that_does_not_fit_binds_nothing_that_runs_before_it() -> None:
    node = Node(3)
    node.admitted(make_pod("x", asks(60, 4), chosen={"main": (2,)}))
    pod = make_pod("p", init(50, 4), asks(50, 4), chosen={"main": (2,)})
    node.admitted(pod)
    assert (node.cards(pod, "init"), node.cards(pod)) == (["GPU-0"], ["GPU-0"])


def test_where_a_choice_is_strict_one_that_does_not_fit_is_refused() -> None:
    node = Node(strict=True)
    node.admitted(make_pod("x", asks(60, 4)))
    for number, name in ((0, "GPU-0"), (9, "card 9")):
        pod = make_pod(f"p{number}", asks(50, 4), chosen={"main": (number,)})
        with pytest.raises(Refusal, match=f"a scheduler chose {name} by predicate-gpu-idx-0"):
            node.admitted(pod)
        node.record.hide(pod)


# --- whatever pods come -----------------------------------------------------------------

_demands = st.tuples(st.sampled_from([1, 10, 33, 50, 80, 99]), st.integers(1, 6)) | st.tuples(
    st.sampled_from([100, 200]), st.integers(0, 7)
)
_kinds = st.sampled_from([INIT, SIDECAR, MAIN])
_containers = st.lists(st.tuples(_kinds, _demands), min_size=1, max_size=3)
_orders = st.sampled_from([CORE_FIRST, MEMORY_FIRST])


@settings(patient, max_examples=share(30))
@given(st.lists(st.tuples(_containers, _orders), max_size=8), st.sampled_from(Policy))
def test_a_node_is_filled_with_all_that_fits_and_a_pod_is_refused_at_once_or_served_to_its_end(
    pods: list[tuple[list[Any], tuple[Resource, ...]]], policy: Policy
) -> None:
    """Nothing is handed on, and nothing is given back."""
    node = Node(3, blocks=10, policy=policy)
    for number, (containers, order) in enumerate(pods):
        named = [
            asks(cores, memory, f"c{index}", SIDECAR if kind is INIT else kind)
            for index, (kind, (cores, memory)) in enumerate(containers)
        ]
        left = {each: node.table.count(each, {*node.free[each]}) for each in Resource}
        cards = [card.uuid for card in node.table.inventory.cards]
        free = {card: {each: left[each].get(card, 0) for each in Resource} for card in cards}
        possible = can_be_placed(named, free, {card: dict.fromkeys(Resource, 0) for card in free})
        pod = node.begin(make_pod(f"p{number}", *named))
        try:
            for asked, each in ((asked, each) for asked in named for each in order):
                if size := count_of(asked.demand, each):
                    chosen = node.prefer(each, size)
                    assert len({*chosen} & {*node.free[each]}) == size
                    node.allocator.allocate(each, chosen)
                    node.took(pod, asked, each, chosen)
        except PlacementError:
            assert not possible
            assert not any(key[0] == pod.id for key in node.got), "refused at its first call"
            node.refuse(pod)
            continue
        assert possible
        for asked in named:
            memory = node.table.read(MEMORY, node.got.get((pod.id, asked.name, MEMORY), ()))
            shares = filter(None, asked.demand.per_card(MEMORY))
            assert sorted(per_card(memory).values()) == sorted(shares)


@settings(patient, max_examples=share(50))
@given(_containers, st.lists(_orders, min_size=3, max_size=3))
def test_looking_ahead_a_pod_of_shares_that_starts_is_never_stuck_on_handed_on_places(
    containers: list[Any], orders: list[tuple[Resource, ...]]
) -> None:
    """Three empty cards have room for three shares; no init container may spoil that (K7)."""
    node = Node(3, blocks=10)
    named = [
        asks(min(cores, 33), min(max(memory, 1), 3), f"c{index}", kind)
        for index, (kind, (cores, memory)) in enumerate(containers)
    ]
    pod = node.begin(make_pod("p", *named))
    for asked, order in zip(named, orders, strict=False):
        for resource in order:
            assert len(node.serve(pod, asked, resource)) == count_of(asked.demand, resource)
        assert len(node.cards(pod, asked.name)) == 1
