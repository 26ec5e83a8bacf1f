"""After a wrong guess the next call is not guessed wrongly for its sake."""

import pytest

from agent.allocator.corrections import correct_by_checkpoint
from agent.allocator.current_pod import Assignment, CurrentPod
from agent.allocator.interfaces import Checkpoint
from contract.allocation import Evidence
from tests.agent.builders import CORE, INIT, MEMORY, checkpoint_of, container, ids, pods_of, view
from tests.in_memory.node import MEMORY_FIRST, Node
from tests.in_memory.pods import (
    OTHER_PLUGIN,
    Container,
    Pod,
    failing,
    gpu,
    init,
    make_pod,
    static_pod,
)


@pytest.fixture
def node() -> Node:
    """A node whose ``List`` keeps rejected pods, which look like pods being admitted (K8)."""
    made = Node(active_only=False)
    made.admit(make_pod("before", gpu(10, 2)))
    return made


def begin_beside_a_newer_one(node: Node, *containers: Container) -> Pod:
    """Two pods are new to ``List``: the newer is the likelier, and here it was rejected."""
    current = make_pod("current", *containers)
    node.rejected(make_pod("newer", *containers))
    return node.begin(current)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_the_previous_last_call_is_restored_and_the_guessed_pod_is_tried_last(
    node: Node, *, checkpointed: bool
) -> None:
    """Also if the checkpoint shows the true target first, in mid-admission (K30)."""
    current = begin_beside_a_newer_one(node, gpu(30, 8))
    node.serve(current, "main", CORE)
    assert node.decision_log.last.target == "newer/main"
    if checkpointed:
        node.kubelet.state.write()
    node.serve(current, "main", MEMORY)
    assert node.decision_log.last.target == "current/main"


def test_after_a_wrong_guess_of_an_init_container_the_next_call_is_for_the_true_pod(
    node: Node,
) -> None:
    """``List`` shows no ordinary init container (K4): only the checkpoint disproves the guess."""
    current = begin_beside_a_newer_one(node, init(30, 8), gpu(30, 8))
    node.serve(current, "init")
    assert node.decision_log.last.target == "newer/init"
    for resource in MEMORY_FIRST:
        node.serve(current, "main", resource)
        assert node.decision_log.last.target == "current/main"


def test_a_pod_with_unknown_request_stays_current_if_list_shows_nothing(node: Node) -> None:
    """Its ordinary init container may have got the slots, and is not listed (K4)."""
    node.rejected(static_pod("another", gpu(30, 8)))
    current = node.begin(static_pod("current", init(30, 8), gpu(10, 2)))
    for resource in MEMORY_FIRST:
        node.serve(current, "init", resource)
        assert node.decision_log.last.target == "current/main"


def test_pods_listed_beside_a_guess_whose_slots_are_offered_again_have_ended(node: Node) -> None:
    """One of them got the slots and was rejected since; no call was for the others."""
    node.rejected(make_pod("first", gpu(30, 8), at=2))
    node.begin(failing(make_pod("second", gpu(30, 8, other=True), at=3)), (CORE, OTHER_PLUGIN))
    while node.kubelet.admitting is not None:
        node.call()
    assert node.decision_log.last.target == "second/main"
    node.begin(make_pod("current", gpu(30, 8), at=1))
    node.call()
    assert node.decision_log.last.target == "current/main"


def test_a_plan_made_with_a_wrong_guess_is_made_again() -> None:
    """Part of the card that the whole pod was to be on is another's, as it turns out."""
    node = Node(blocks=16)
    guessed = make_pod("guessed", gpu(10, 2, "first"), gpu(10, 14, "second"), at=1)
    right = make_pod("right", gpu(10, 2), at=2)
    node.bind(guessed, right)
    node.list_error = "rate limited"
    node.admit(right)
    assert node.decision_log.last.target == "guessed/first"
    node.list_error = ""
    node.admit(guessed)
    assert node.cards(guessed, "second") == ["GPU-1"]


def test_a_guess_that_was_right_is_not_wrong_because_its_pod_is_deleted_by_force(
    node: Node,
) -> None:
    """K20: its name is still listed, with nothing; another pod of that name is not admitted yet."""
    deleted, current = make_pod("a", gpu(30, 8)), make_pod("current", gpu(10, 4))
    node.bind(deleted, seen=False)  # the watch is behind, then and later
    node.admit(deleted)
    node.start(deleted)
    node.api.remove(deleted)
    node.kubelet.deleted_by_force(deleted, keeps=False)
    node.api.add(make_pod("a", gpu(10, 4)))
    node.bind(current, seen=False)
    node.begin(current)
    node.call()
    assert node.decision_log.last.target == "current/main"


@pytest.mark.parametrize("list_error", ["", "rate limited"])
def test_slots_reserved_by_an_agent_are_free_for_the_next_one_whatever_the_checkpoint_shows(
    list_error: str,
) -> None:
    """The kubelet had offered them: their holder has ended (R2), though the API shows that pod."""
    node = Node(1)
    ended = node.admit(make_pod("ended", gpu(60, 4)))
    node.restart_agent()
    node.ends(ended)
    node.kubelet.first = (CORE, MEMORY)
    node.begin(make_pod("a", gpu(60, 4)))
    node.call()
    node.list_error = list_error
    node.restart_agent()
    node.allocator.refresh()
    node.call()
    assert node.decision_log.last.target == "a/main"


def test_the_pod_of_a_call_without_list_comes_before_one_that_was_rejected_earlier(
    node: Node,
) -> None:
    """A namesake is listed as well, until it has ended (K20)."""
    deleted = node.admit(make_pod("a", gpu(10, 2)))
    node.start(deleted)
    node.delete(deleted, ends=False)
    current, rejected = make_pod("a", gpu(30, 8), at=1), make_pod("rejected", gpu(30, 8), at=2)
    node.bind(current, rejected)
    node.admit(make_pod("between", gpu(10, 4)))
    node.list_error = "rate limited"
    node.rejected(rejected)
    node.begin(current)
    node.serve(current, "main", CORE)
    node.list_error = ""
    node.serve(current, "main", MEMORY)
    assert node.decision_log.last.target == "a/main"


def test_a_guess_whose_slots_are_reused_from_an_init_container_is_not_corrected() -> None:
    """K7: the checkpoint, which was late (K33), has them at the container before."""
    pod, slots = view("p", container("i", kind=INIT), container("c0")), ids("GPU-0", range(50))
    guess = Assignment("c0", CORE, slots, Evidence.ORDER, allocated=True)
    current = CurrentPod(pod.id, pod.id.uid, assignments=(guess,))
    found = correct_by_checkpoint(
        current,
        Checkpoint(),
        checkpoint_of(p={"i": {CORE: slots}}),
        may_be_new=lambda *_entry: True,
        pods=pods_of(pod),
    )
    assert found == (current, [])
