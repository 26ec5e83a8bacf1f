"""Shares of several cards: targets of calls, slots, and starts."""

from collections import Counter
from collections.abc import Sequence

import pytest

from agent.errors import Refusal
from contract.allocation import Evidence
from contract.resource import Resource
from tests.agent.builders import CORE, MEMORY, cases
from tests.in_memory.node import CORE_FIRST, MEMORY_FIRST, Node
from tests.in_memory.pods import Pod, card_of, gpu, init, make_pod, static_pod


def parts(node: Node, pod: Pod, container: str = "main") -> dict[Resource, dict[str, int]]:
    """Return how many slots of each card a container holds."""
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


# --- the target -------------------------------------------------------------------------------


@cases(
    "ids, name",
    {
        "halves": ((("GPU-0", 50), ("GPU-1", 50)), "halves"),
        "a whole card": ((("GPU-0", 100),), "whole"),
    },
)
def test_without_list_device_ids_in_allocate_distinguish_halves_from_a_whole_card(
    ids: Sequence[tuple[str, int]], name: str
) -> None:
    """There was no preferred call; both pods are as likely."""
    node = Node(2)
    pods = {"halves": halves("halves", at=1), "whole": whole("whole", at=2)}
    node.list_error = "hanging"
    node.bind(*pods.values())
    node.begin(pods[name])
    node.allocator.allocate(CORE, [f"{card}::{n}" for card, count in ids for n in range(count)])
    assert node.decision_log.refs("allocate") == [f"{name}/main"]
    assert node.decision_log.evidence("allocate") == [Evidence.ORDER]


def test_a_whole_card_guessed_for_halves_is_refused_when_its_memory_is_requested() -> None:
    """Without ``List`` the older pod is guessed; the refused pod's successor gets its halves."""
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


def test_after_a_restart_slots_are_kept_for_a_pod_on_each_card_of_its_init_container() -> None:
    """30 cores of each card are reusable (K7, K11), so it needs 20 more of each, not 70."""
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
