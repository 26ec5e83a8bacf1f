"""The allocator plans for whole pods, and follows wishes and schedulers' choices."""

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agent.allocator.slots import per_card
from agent.errors import PlacementError, Refusal
from contract.allocation import Evidence
from contract.demand import ContainerKind
from contract.resource import Resource
from placement.scoring import Policy
from tests.adversary.oracle import Task, fits
from tests.agent.builders import CORE, INIT, MAIN, MEMORY, SIDECAR, device_table, patient
from tests.examples import share
from tests.in_memory.node import CORE_FIRST, MEMORY_FIRST, Node
from tests.in_memory.pods import (
    NAMES,
    Container,
    Pod,
    card_of,
    gpu,
    init,
    make_pod,
    sidecar,
)


def refusal(node: Node, pod: Pod) -> str:
    with pytest.raises(PlacementError) as caught:
        node.admit(pod)
    return str(caught.value)


# --- the whole pod --------------------------------------------------------------------


def test_a_pod_is_refused_at_once_for_a_later_container_that_will_not_fit() -> None:
    node = Node(1)
    pod = make_pod("p", gpu(60, 4, "first"), gpu(50, 4, "second"))
    assert refusal(node, pod) == (
        "no card fits 50 cores and 4 memory blocks of container second, with first placed: "
        "GPU-0: 40 of 50 cores free"
    )
    assert node.kubelet.holdings == {}


def test_a_broken_container_later_in_the_pod_is_named() -> None:
    text = refusal(Node(), make_pod("p", gpu(60, 4, "first"), gpu(150, 4, "second")))
    assert text.startswith("container second: 150 cores and 4 memory blocks fit no card: ")


def test_one_of_several_possible_targets_is_not_refused_for_a_later_container() -> None:
    """It is the likeliest, so the call is not resolved to the other one either."""
    node = Node(1)
    node.list_error = "hanging"
    node.bind(make_pod("p", gpu(60, 4, "first"), gpu(50, 4, "second"), at=1))
    node.begin(make_pod("q", gpu(60, 4), at=2))
    assert len(node.call()) == 60
    assert node.decision_log.refs("prefer") == ["p/first"]
    assert node.decision_log.evidence("prefer") == [Evidence.ORDER]


def test_a_plan_is_made_again_if_the_kubelet_does_not_offer_its_slots() -> None:
    """A card has become unhealthy, and the kubelet knows that first."""
    node = Node()
    pod = node.begin(make_pod("p", gpu(30, 4, "first"), gpu(50, 4, "second")))
    node.serve(pod, "first", CORE)
    for _ in ("preferred", "allocated"):
        node.call()
    assert node.cards(pod, "first") == ["GPU-0"]
    node.kubelet.unhealthy = {each for r in Resource for each in node.table.by_card(r)["GPU-0"]}
    node.kubelet.advertise()
    node.admit(pod)
    assert node.cards(pod, "second") == ["GPU-1"]


# --- wishes and choices ---------------------------------------------------------------


def _chosen(pod: Pod, card: int) -> Pod:
    """Have a scheduler choose a card for the first main container."""
    pod.annotations[NAMES.predicate_gpu_idx(0)] = str(card)
    return pod


def test_a_refusal_names_wishes_and_health_that_exclude_cards() -> None:
    node = Node(3)
    node.unhealthy["GPU-1"] = "Xid 79"
    pod = node.admit(make_pod("a", gpu(50, 4), nouse_gpu_uuid="GPU-0"))
    assert node.cards(pod) == ["GPU-2"]
    assert refusal(node, make_pod("b", gpu(60, 4), nouse_gpu_uuid="GPU-0")) == (
        "no card fits 60 cores and 4 memory blocks: GPU-0: excluded by "
        "nouse-gpu-uuid; GPU-1: unhealthy (Xid 79); GPU-2: 50 of 60 cores free"
    )


def test_the_policy_in_a_pods_wish_comes_before_the_nodes() -> None:
    node = Node()
    node.admit(make_pod("x", gpu(20, 4)))
    spread = node.admit(make_pod("a", gpu(20, 4), gpu_policy="spread"))
    packed = node.admit(make_pod("b", gpu(20, 4)))
    assert (node.cards(spread), node.cards(packed)) == (["GPU-1"], ["GPU-0"])


def test_a_schedulers_choice_is_used_if_it_fits_and_otherwise_replaced_and_logged() -> None:
    node = Node(3)
    chosen = node.admit(_chosen(make_pod("a", gpu(50, 4)), 2))
    assert node.cards(chosen) == ["GPU-2"]
    assert node.decision_log.of("replaced") == []
    other = node.admit(_chosen(make_pod("b", gpu(60, 4)), 2))
    assert node.cards(other) == ["GPU-0"]
    (replaced,) = node.decision_log.of("replaced")
    assert replaced.ref is not None
    assert (replaced.ref.container, replaced.reason) == ("main", "GPU-2 by GPU-0")


@pytest.mark.parametrize(("before", "card"), [(init(70, 4), 2), (sidecar(70, 4), 0)])
def test_earlier_containers_leave_a_container_the_card_that_a_scheduler_chose(
    before: Container, card: int
) -> None:
    """It would be placed on GPU-0, and the container after an init container must follow it."""
    node = Node(3)
    node.admit(make_pod("x", gpu(20, 4)))
    pod = node.admit(_chosen(make_pod("p", before, gpu(70, 4)), card))
    assert node.cards(pod) == [f"GPU-{card}"]
    assert node.decision_log.of("replaced") == []


def test_a_strict_choice_that_does_not_fit_is_refused() -> None:
    node = Node(strict=True)
    node.admit(make_pod("x", gpu(60, 4)))
    for number, name in ((0, "GPU-0"), (9, "card 9")):
        pod = _chosen(make_pod(f"p{number}", gpu(50, 4)), number)
        with pytest.raises(Refusal, match=f"a scheduler chose {name} by predicate-gpu-idx-0"):
            node.admit(pod)


# --- any pods -------------------------------------------------------------------------

_shares = st.tuples(st.sampled_from([1, 10, 33, 50, 80, 99]), st.integers(1, 6))
_demands = _shares | st.tuples(st.sampled_from([100, 200]), st.integers(0, 7))
_divided = st.tuples(_demands, st.just(1)) | st.tuples(_shares, st.sampled_from([2, 3]))
_kinds = st.sampled_from([INIT, SIDECAR, MAIN])
_mixed = st.lists(st.tuples(_kinds, _divided), min_size=1, max_size=3)
_orders = st.sampled_from([CORE_FIRST, MEMORY_FIRST])
_NINE_CARDS = device_table(9, blocks=30)


@settings(patient, max_examples=share(30))
@given(st.lists(st.tuples(_mixed, _orders), max_size=8), st.sampled_from(Policy))
def test_every_pod_that_fits_is_served_to_its_end_and_any_other_is_refused_at_once(
    pods: list[tuple[list[Any], tuple[Resource, ...]]], policy: Policy
) -> None:
    """No slots are reusable, and no pod ends."""
    node = Node(3, blocks=10, policy=policy)
    cards = [card.uuid for card in node.table.inventory.cards]
    for number, (containers, order) in enumerate(pods):
        named = [
            _asks(f"c{index}", SIDECAR if kind is INIT else kind, *demand)
            for index, (kind, demand) in enumerate(containers)
        ]
        named.sort(key=lambda each: each.kind is MAIN)
        left = {each: node.table.count(each, node.kubelet.free(each)) for each in Resource}
        free = {card: {each: left[each].get(card, 0) for each in Resource} for card in cards}
        tasks = [Task(each, frozenset(r for r in Resource if each.count(r))) for each in named]
        possible = fits(tasks, free, {})
        pod = make_pod(f"p{number}", *named)
        with suppress(PlacementError):
            node.admit(pod, order)
        assert possible is not node.kubelet.state.pods[pod.uid].rejected
        if not possible:
            assert pod.uid not in node.kubelet.holdings, "refused at its first call"
            continue
        for each in named:
            memory = node.table.read(MEMORY, node.held(pod, each.name).get(MEMORY, ()))
            shares = filter(None, each.demand.per_card(MEMORY))
            assert sorted(per_card(memory).values()) == sorted(shares)
            assert each.is_divided(CORE, node.held(pod, each.name)[CORE])


def _asks(name: str, kind: ContainerKind, demand: tuple[int, int], split: int) -> Container:
    cores, memory = demand
    return gpu(cores * split, memory * split, name, kind, split=split)


@settings(patient, max_examples=share(60))
@given(_mixed, _orders)
def test_reusable_slots_on_several_cards_prevent_no_pod_that_the_rules_permit(
    containers: list[Any], order: tuple[Resource, ...]
) -> None:
    """Nine empty cards are enough for three containers; the kubelet chooses what is reused (K7)."""
    named = [_asks(f"c{at}", kind, *demand) for at, (kind, demand) in enumerate(containers)]
    named.sort(key=lambda each: each.kind is MAIN)
    pod = make_pod("p", *named)
    assume(not pod.invalid)
    node = Node(table=_NINE_CARDS)
    node.admit(pod, order)
    for container in named:
        held = node.held(pod, container.name)
        assert {*held} == {each for each in Resource if container.count(each)}
        assert all(container.is_divided(*each) for each in held.items())
        node.start(pod, container.name)


def test_a_whole_card_guessed_for_halves_is_refused_when_its_memory_is_requested() -> None:
    """Without ``List`` the older pod is guessed; the refused pod's successor gets its halves."""
    node = Node(3)
    halves = gpu(100, 8, split=2)  # 50 cores of each of two cards
    older, pod = make_pod("older", gpu(100, 8), at=1), make_pod("p", halves, at=2)
    node.list_error = "hanging"
    node.bind(older)
    node.begin(pod)
    node.serve(pod, "main", CORE)
    assert node.decision_log.refs("prefer") == ["older/main"]
    node.list_error = ""
    with pytest.raises(Refusal, match="is divided over 2 cards, but it holds devices of only 1"):
        node.call()
    node.delete(pod)
    again = node.admit(make_pod("p", halves))
    assert Counter(map(card_of, node.held(again)[CORE])) == {"GPU-0": 50, "GPU-1": 50}
