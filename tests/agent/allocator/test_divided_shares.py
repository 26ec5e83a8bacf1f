"""Shares of several cards: whose a call is, what is given, and what may start."""

from collections import Counter
from collections.abc import Sequence

import pytest

from agent.errors import GrantError, PlacementError, Refusal
from contract.allocation import Evidence
from contract.resource import Resource
from tests.agent.builders import CORE, MEMORY, cases
from tests.in_memory.node import CORE_FIRST, MEMORY_FIRST, Node
from tests.in_memory.pods import Pod, card_of, gpu, init, make_pod, static_pod


def parts(node: Node, pod: Pod, container: str = "main") -> dict[Resource, dict[str, int]]:
    """Return what a container holds of each card."""
    held = node.held(pod, container)
    return {each: dict(sorted(Counter(map(card_of, ids)).items())) for each, ids in held.items()}


def halves(name: str, memory: int = 8, *, at: int = 0) -> Pod:
    """A pod with 50 cores of each of two cards: as many as one with a whole card."""
    return make_pod(name, gpu(100, memory, split=2), at=at)


def whole(name: str, memory: int = 8, *, at: int = 0) -> Pod:
    """A pod with 100 cores of one card."""
    return make_pod(name, gpu(100, memory), at=at)


@pytest.mark.parametrize("order", [CORE_FIRST, MEMORY_FIRST])
def test_a_share_gets_the_same_part_of_different_cards_whichever_resource_comes_first(
    order: tuple[Resource, ...],
) -> None:
    node = Node(3)
    node.admit(make_pod("x", gpu(60, 2)))
    pod = node.admit(halves("p"), order)
    both = {"GPU-1": 50, "GPU-2": 50}, {"GPU-1": 4, "GPU-2": 4}
    assert parts(node, pod) == dict(zip((CORE, MEMORY), both, strict=True))
    node.start(pod)
    (written,) = node.written(pod).values()
    assert (written.cards, written.cores, written.memory_blocks) == (("GPU-1", "GPU-2"), 100, 8)


def test_a_node_without_enough_cards_refuses_with_the_cards_that_fit() -> None:
    node = Node(2)
    node.admit(make_pod("x", gpu(60, 2)))
    with pytest.raises(PlacementError) as refused:
        node.admit(halves("p"))
    assert str(refused.value) == (
        "no card fits 100 cores and 8 memory blocks over 2 cards: 2 cards needed, 1 found; "
        "GPU-0: 40 of 50 cores free; GPU-1: fits"
    )


# --- whose a call is ------------------------------------------------------------------------


@cases(
    "ids, name",
    {
        "halves": ((("GPU-0", 50), ("GPU-1", 50)), "halves"),
        "a whole card": ((("GPU-0", 100),), "whole"),
    },
)
def test_without_list_the_ids_of_allocate_tell_halves_from_a_whole_card(
    ids: Sequence[tuple[str, int]], name: str
) -> None:
    """No preferred call came before; both pods are as likely."""
    node = Node(2)
    pods = {"halves": halves("halves", at=1), "whole": whole("whole", at=2)}
    node.list_error = "hanging"
    node.bind(*pods.values())
    node.begin(pods[name])
    node.allocator.allocate(CORE, [f"{card}::{n}" for card, count in ids for n in range(count)])
    assert node.decision_log.refs("allocate") == [f"{name}/main"]
    assert node.decision_log.evidence("allocate") == [Evidence.ORDER]


def test_ids_that_are_neither_fit_nobody() -> None:
    node = Node(2)
    node.begin(whole("whole"))
    with pytest.raises(GrantError) as refused:
        node.allocator.allocate(CORE, [f"GPU-{n % 2}::{n}" for n in range(100)])
    assert str(refused.value) == (
        "100 cores must be whole cards, but they are not: 50 on GPU-0, 50 on GPU-1"
    )


def test_a_whole_card_guessed_for_halves_is_refused_when_its_memory_is_requested() -> None:
    """Without ``List`` the older pod is taken; the refused pod's successor gets its halves."""
    node = Node(3)
    older, pod = whole("older", at=1), halves("p", at=2)
    node.list_error = "hanging"
    node.bind(older)
    node.begin(pod)
    node.serve(pod, "main", CORE)
    assert node.decision_log.refs("prefer") == ["older/main"]
    node.list_error = ""
    with pytest.raises(Refusal, match="is divided over 2 cards, but it holds devices of only 1"):
        node.call()
    node.delete(pod)
    again = node.admit(halves("p"))
    assert parts(node, again)[CORE] == {"GPU-0": 50, "GPU-1": 50}


def test_halves_guessed_for_a_whole_card_without_memory_do_not_start() -> None:
    node = Node(3)
    older, pod = halves("older", at=1), whole("p", 0, at=2)
    node.list_error = "hanging"
    node.bind(older)
    node.admit(pod)
    assert parts(node, pod)[CORE] == {"GPU-0": 50, "GPU-1": 50}
    node.list_error = ""
    with pytest.raises(Exception, match="100 cores must be whole cards, but they are not: 50 on "):
        node.start(pod)
    (corrected,) = node.decision_log.of("corrected")
    assert corrected.resource is CORE


# --- pods that the agent cannot read ----------------------------------------------------------


def test_a_static_pod_without_a_mirror_gets_a_whole_card_because_its_annotations_are_unknown() -> (
    None
):
    node = Node(3)
    pod = node.admit(static_pod("s", gpu(100, 8, split=2)))
    assert parts(node, pod)[CORE] == {"GPU-0": 100}


# --- init containers --------------------------------------------------------------------------


def test_after_a_restart_a_pod_keeps_what_it_needs_of_each_card_of_its_init_container() -> None:
    """30 cores of either card are left to it (K7, K11), so it needs 20 more of either, not 70."""
    node = Node(3)
    main = gpu(100, 8, other=True, split=2)
    pod = node.begin(make_pod("p", init(60, 4, split=2), main))
    node.serve(pod, "init")
    node.restart_kubelet()
    first, second = make_pod("q", gpu(50, 2)), make_pod("r", gpu(10, 2))
    node.bind(first, second)
    for each in (first, second):
        node.admit(each, MEMORY_FIRST)
    assert (node.cards(first), node.cards(second)) == (["GPU-0"], ["GPU-1"])
    node.admit(pod)
    assert parts(node, pod)[CORE] == {"GPU-0": 50, "GPU-1": 50}
