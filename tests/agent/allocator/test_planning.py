"""The allocator plans for whole pods, and follows what authors and schedulers want."""

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
from tests.agent.builders import CORE, INIT, MAIN, MEMORY, SIDECAR, patient
from tests.examples import share
from tests.in_memory.node import CORE_FIRST, MEMORY_FIRST, Node
from tests.in_memory.pods import (
    NAMES,
    OTHER_PLUGIN,
    Container,
    Pod,
    failing,
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


def test_what_a_refused_pod_had_got_counts_until_the_kubelet_has_freed_it() -> None:
    """K21: a kubelet that has just restarted frees nothing, and the file lacks half of it."""
    node = Node(blocks=16)
    second = gpu(20, 8, "second", other=True)
    refused = failing(make_pod("refused", gpu(50, 4, "first"), second))
    other = make_pod("other", gpu(10, 8))
    node.bind(refused, other)
    node.restart_kubelet()
    node.begin(refused)
    node.serve(refused, "first")
    node.kubelet.first = (MEMORY, OTHER_PLUGIN)
    node.call()
    node.admit(refused, (MEMORY, OTHER_PLUGIN))
    node.publish_statuses()
    node.admit(other)
    assert node.cards(other) == ["GPU-1"]


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
    """Nor is another served in its stead: it was the likeliest."""
    node = Node(1)
    node.list_error = "hanging"
    node.bind(make_pod("p", gpu(60, 4, "first"), gpu(50, 4, "second"), at=1))
    node.begin(make_pod("q", gpu(60, 4), at=2))
    assert len(node.call()) == 60
    assert node.decision_log.refs("prefer") == ["p/first"]
    assert node.decision_log.evidence("prefer") == [Evidence.ORDER]


def test_what_was_planned_for_a_pod_is_free_once_it_is_gone() -> None:
    node = Node(1)
    begun = make_pod("a", gpu(30, 4, "first", other=True), gpu(60, 4, "second"))
    node.admit(failing(begun), (CORE, OTHER_PLUGIN))
    other = node.admit(make_pod("b", gpu(90, 4)))
    assert node.cards(other) == ["GPU-0"]


def test_a_kubelet_that_offers_something_else_than_planned_is_planned_for_anew() -> None:
    """A card has fallen ill, and the kubelet was told first."""
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


# --- what others want -----------------------------------------------------------------


def _chosen(pod: Pod, card: int) -> Pod:
    """Have a scheduler choose a card for the first main container."""
    pod.annotations[NAMES.predicate_gpu_idx(0)] = str(card)
    return pod


def test_wishes_and_health_are_followed_or_named() -> None:
    node = Node(3)
    node.unhealthy["GPU-1"] = "Xid 79"
    pod = node.admit(make_pod("a", gpu(50, 4), nouse_gpu_uuid="GPU-0"))
    assert node.cards(pod) == ["GPU-2"]
    assert refusal(node, make_pod("b", gpu(60, 4), nouse_gpu_uuid="GPU-0")) == (
        "no card fits 60 cores and 4 memory blocks: GPU-0: excluded by "
        "nouse-gpu-uuid; GPU-1: unhealthy (Xid 79); GPU-2: 50 of 60 cores free"
    )


def test_the_policy_that_a_pod_wishes_goes_before_the_nodes() -> None:
    node = Node()
    node.admit(make_pod("x", gpu(20, 4)))
    spread = node.admit(make_pod("a", gpu(20, 4), gpu_policy="spread"))
    packed = node.admit(make_pod("b", gpu(20, 4)))
    assert (node.cards(spread), node.cards(packed)) == (["GPU-1"], ["GPU-0"])


def test_a_schedulers_choice_is_used_if_it_fits_and_else_replaced_and_reported() -> None:
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
def test_what_runs_before_a_container_leaves_it_the_card_that_a_scheduler_chose(
    before: Container, card: int
) -> None:
    """By itself it would go to GPU-0, and what follows an init container must follow it there."""
    node = Node(3)
    node.admit(make_pod("x", gpu(20, 4)))
    pod = node.admit(_chosen(make_pod("p", before, gpu(70, 4)), card))
    assert node.cards(pod) == [f"GPU-{card}"]
    assert node.decision_log.of("replaced") == []


def test_a_choice_that_does_not_fit_binds_nothing_that_runs_before_it() -> None:
    node = Node(3)
    node.admit(_chosen(make_pod("x", gpu(60, 4)), 2))
    pod = _chosen(make_pod("p", init(50, 4), gpu(50, 4)), 2)
    node.admit(pod)
    assert (node.cards(pod, "init"), node.cards(pod)) == (["GPU-0"], ["GPU-0"])


def test_where_a_choice_is_strict_one_that_does_not_fit_is_refused() -> None:
    node = Node(strict=True)
    node.admit(make_pod("x", gpu(60, 4)))
    for number, name in ((0, "GPU-0"), (9, "card 9")):
        pod = _chosen(make_pod(f"p{number}", gpu(50, 4)), number)
        with pytest.raises(Refusal, match=f"a scheduler chose {name} by predicate-gpu-idx-0"):
            node.admit(pod)


# --- whatever pods come -----------------------------------------------------------------

_shares = st.tuples(st.sampled_from([1, 10, 33, 50, 80, 99]), st.integers(1, 6))
_demands = _shares | st.tuples(st.sampled_from([100, 200]), st.integers(0, 7))
_divided = st.tuples(_demands, st.just(1)) | st.tuples(_shares, st.sampled_from([2, 3]))
_kinds = st.sampled_from([INIT, SIDECAR, MAIN])
_containers = st.lists(st.tuples(_kinds, _demands), min_size=1, max_size=3)
_mixed = st.lists(st.tuples(_kinds, _divided), min_size=1, max_size=3)
_orders = st.sampled_from([CORE_FIRST, MEMORY_FIRST])


@settings(patient, max_examples=share(30))
@given(st.lists(st.tuples(_mixed, _orders), max_size=8), st.sampled_from(Policy))
def test_a_node_is_filled_with_all_that_fits_and_a_pod_is_refused_at_once_or_served_to_its_end(
    pods: list[tuple[list[Any], tuple[Resource, ...]]], policy: Policy
) -> None:
    """Nothing is handed on, and nothing is given back."""
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
        for asked in named:
            memory = node.table.read(MEMORY, node.held(pod, asked.name).get(MEMORY, ()))
            shares = filter(None, asked.demand.per_card(MEMORY))
            assert sorted(per_card(memory).values()) == sorted(shares)
            assert asked.is_divided(CORE, node.held(pod, asked.name)[CORE])


def _asks(name: str, kind: ContainerKind, demand: tuple[int, int], split: int) -> Container:
    """Return a container that requests so much of each of *split* cards."""
    cores, memory = demand
    return gpu(cores * split, memory * split, name, kind, split=split)


@settings(patient, max_examples=share(60))
@given(_mixed, _orders)
def test_what_is_left_on_several_cards_spoils_no_pod_that_the_rules_permit(
    containers: list[Any], order: tuple[Resource, ...]
) -> None:
    """Nine empty cards are enough for three containers; the kubelet chooses what is reused (K7)."""
    named = [_asks(f"c{at}", kind, *demand) for at, (kind, demand) in enumerate(containers)]
    named.sort(key=lambda each: each.kind is MAIN)
    pod = make_pod("p", *named)
    assume(not pod.invalid)
    node = Node(9, blocks=30)
    node.admit(pod, order)
    for asked in named:
        held = node.held(pod, asked.name)
        assert {*held} == {each for each in Resource if asked.count(each)}
        assert all(asked.is_divided(*each) for each in held.items())
        node.start(pod, asked.name)


@settings(patient, max_examples=share(50))
@given(_containers, _orders)
def test_a_pod_of_shares_planned_ahead_never_fails_on_reusable_slots(
    containers: list[Any], order: tuple[Resource, ...]
) -> None:
    """Three empty cards have room for three shares; no init container may spoil that (K7)."""
    node = Node(3, blocks=10)
    named = [
        gpu(min(cores, 33), min(max(memory, 1), 3), f"c{index}", kind)
        for index, (kind, (cores, memory)) in enumerate(containers)
    ]
    named.sort(key=lambda each: each.kind is MAIN)
    pod = node.admit(make_pod("p", *named), order)
    for asked in named:
        assert {each: len(ids) for each, ids in node.held(pod, asked.name).items()} == {
            each: asked.count(each) for each in Resource
        }
        assert len(node.cards(pod, asked.name)) == 1


def test_a_plan_with_withheld_slots_gives_way_to_a_card_that_is_healthy_again() -> None:
    """A restarted kubelet counts an ended pod's devices until its first batch is admitted (K31)."""
    node = Node(3)
    ended = node.admit(make_pod("ended", gpu(50, 28)))
    node.admit(make_pod("cores", gpu(100, 0), use_gpu_uuid="GPU-1"))
    pod = make_pod("a", gpu(10, 2, "first"), gpu(20, 4, "second"))
    node.bind(pod)
    node.delete(ended)
    set_health(node, "GPU-2", healthy=False)
    node.restart_kubelet()
    node.serve(node.begin(pod), "first", CORE)
    set_health(node, "GPU-2", healthy=True)
    node.admit(pod)
    assert node.cards(pod, "first") == ["GPU-0"]
    assert node.cards(pod, "second") == ["GPU-2"]


def set_health(node: Node, card: str, *, healthy: bool) -> None:
    """Make a card healthy or unhealthy, for the agent and in the plugin's device list."""
    node.unhealthy = {} if healthy else {card: "xid"}
    ids = {each for one in Resource for each in node.table.by_card(one)[card]}
    node.kubelet.unhealthy = set() if healthy else ids
    node.kubelet.advertise()
