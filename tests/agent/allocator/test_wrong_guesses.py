"""After a wrong guess the next call is not guessed wrongly for its sake."""

import pytest

from tests.agent.builders import CORE, MEMORY
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


def last(node: Node) -> str:
    """Which pod and container the last call was taken to be for."""
    ref = [each for each in node.decision_log.everything if each.evidence][-1].ref
    assert ref is not None
    return f"{ref.pod.name}/{ref.container}"


def asking_beside_a_newer_one(node: Node, *containers: Container) -> Pod:
    """Two pods are new to ``List``: the newest is the likeliest, and here it is the other."""
    asking = make_pod("asking", *containers)
    node.rejected(make_pod("newest", *containers))
    return node.begin(asking)


def test_the_previous_last_call_is_restored_and_the_guessed_pod_is_tried_last(
    node: Node,
) -> None:
    asking = asking_beside_a_newer_one(node, gpu(30, 8))
    node.serve(asking, "main", CORE)
    assert last(node) == "newest/main"
    node.serve(asking, "main", MEMORY)
    assert last(node) == "asking/main"


def test_a_guess_that_the_checkpoint_disproves_in_mid_admission_is_not_made_again(
    node: Node,
) -> None:
    """K30: the file shows it before ``List`` is asked, which shows it as well."""
    asking = asking_beside_a_newer_one(node, gpu(30, 8))
    node.serve(asking, "main", CORE)
    node.kubelet.state.write()
    node.serve(asking, "main", MEMORY)
    assert last(node) == "asking/main"


def test_the_init_container_that_was_guessed_wrongly_is_followed_by_those_of_its_own_pod(
    node: Node,
) -> None:
    """``List`` shows no ordinary init container (K4): only the checkpoint disproves the guess."""
    asking = asking_beside_a_newer_one(node, init(30, 8), gpu(30, 8))
    node.serve(asking, "init")
    assert last(node) == "newest/init"
    for resource in MEMORY_FIRST:
        node.serve(asking, "main", resource)
        assert last(node) == "asking/main"


def test_a_pod_that_only_the_kubelet_knows_stays_current_when_the_checkpoint_has_its_container(
    node: Node,
) -> None:
    """The file has its UID and no name: it may be the pod that was guessed, and here it is."""
    pod = node.begin(static_pod("unknown", init(30, 8), gpu(10, 2)), MEMORY_FIRST)
    node.serve(pod, "init", MEMORY)
    assert last(node) == "unknown/main"
    node.kubelet.state.write()  # in mid-admission (K30)
    node.allocator.refresh()
    with node.allocator.state as state:
        assert state.last_call.pod is not None
        assert state.last_call.pod.name == "unknown"
    node.serve(pod, "init", CORE)
    assert node.decision_log.refusals == []


def test_a_pod_with_unknown_request_stays_current_if_list_shows_nothing(
    node: Node,
) -> None:
    """Its ordinary init container may have got it, which is not listed (K4)."""
    node.rejected(static_pod("another", gpu(30, 8)))
    asking = node.begin(static_pod("asking", init(30, 8), gpu(10, 2)))
    for resource in MEMORY_FIRST:
        node.serve(asking, "init", resource)
        assert last(node) == "asking/main"


def test_a_pod_whose_guessed_slots_are_offered_again_has_none_of_them(node: Node) -> None:
    """They were another pod's, which the kubelet has rejected since; there is no ``List``."""
    node.list_error = "rate limited"
    first, second = make_pod("first", gpu(30, 8), at=1), make_pod("second", gpu(30, 8), at=2)
    node.bind(first, second)
    node.serve(node.begin(second), "main", CORE)
    assert last(node) == "first/main"
    node.restart_kubelet()  # it has never written down what the second one got
    node.begin(first)
    node.call()
    assert last(node) == "first/main"


def test_a_guess_whose_slots_are_offered_again_leaves_pods_listed_beside_it_rejected(
    node: Node,
) -> None:
    """Whichever of them had got the places was rejected since; of the others none was asking."""
    node.rejected(make_pod("first", gpu(30, 8), at=2))
    node.begin(failing(make_pod("second", gpu(30, 8, other=True), at=3)), (CORE, OTHER_PLUGIN))
    while node.kubelet.admitting is not None:
        node.call()
    assert last(node) == "second/main"
    node.begin(make_pod("asking", gpu(30, 8), at=1))
    node.call()
    assert last(node) == "asking/main"


def test_what_was_planned_with_a_wrong_guess_is_planned_anew() -> None:
    """Part of the card that the whole pod was to be on is another's, as it turns out."""
    node = Node(blocks=16)
    guessed = make_pod("guessed", gpu(10, 2, "first"), gpu(10, 14, "second"), at=1)
    right = make_pod("right", gpu(10, 2), at=2)
    node.bind(guessed, right)
    node.list_error = "rate limited"
    node.admit(right)
    assert last(node) == "guessed/first"
    node.list_error = ""
    node.admit(guessed)
    assert node.cards(guessed, "second") == ["GPU-1"]


def test_a_guess_that_was_right_is_not_wrong_because_its_pod_is_deleted_by_force(
    node: Node,
) -> None:
    """K20: its name is still listed, with nothing. Another of that name waits; it did not come."""
    deleted, asking = make_pod("a", gpu(30, 8)), make_pod("asking", gpu(10, 4))
    node.bind(deleted, seen=False)  # the watch is behind, then and later
    node.admit(deleted)
    node.start(deleted)
    node.api.remove(deleted)
    node.kubelet.deleted_by_force(deleted, keeps=False)
    node.api.add(make_pod("a", gpu(10, 4)))
    node.bind(asking, seen=False)
    node.begin(asking)
    node.call()
    assert last(node) == "asking/main"


@pytest.mark.parametrize("list_error", ["", "rate limited"])
def test_what_an_agent_reserved_is_free_to_the_next_one_whatever_the_checkpoint_shows(
    list_error: str,
) -> None:
    """The kubelet had offered it: whoever had it has ended (R2), though the API shows that pod."""
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
    assert last(node) == "a/main"


def test_the_pod_of_a_call_without_list_is_not_passed_over_for_one_that_was_rejected_before_it(
    node: Node,
) -> None:
    """A namesake is listed as well, until it has ended (K20)."""
    gone = node.admit(make_pod("a", gpu(10, 2)))
    node.start(gone)
    node.delete(gone, ends=False)
    asking, rejected = make_pod("a", gpu(30, 8), at=1), make_pod("rejected", gpu(30, 8), at=2)
    node.bind(asking, rejected)
    node.admit(make_pod("between", gpu(10, 4)))
    node.list_error = "rate limited"
    node.rejected(rejected)
    node.begin(asking)
    node.serve(asking, "main", CORE)
    node.list_error = ""
    node.serve(asking, "main", MEMORY)
    assert last(node) == "a/main"


def test_a_guess_that_was_wrong_does_not_bring_back_the_pod_of_a_name_that_has_left_list() -> None:
    """It was served while ``List`` was away; its name is another pod's now."""
    node = Node()
    node.admit(make_pod("before", gpu(10, 4)))
    node.list_error = "rate limited"
    left = node.admit(failing(make_pod("a", gpu(30, 8, other=True))), (MEMORY, OTHER_PLUGIN))
    node.list_error = ""
    unknown = failing(static_pod("unknown", gpu(10, 2, other=True)))
    node.admit(unknown, (CORE, MEMORY, OTHER_PLUGIN))
    node.api.remove(left)
    node.kubelet.removed(left)
    asking = make_pod("a", gpu(30, 8))
    node.bind(asking, seen=False)
    node.begin(asking, MEMORY_FIRST)
    node.call()
    named = node.decision_log.everything[-1].ref
    assert named is not None
    assert named.pod == asking.id


def test_a_pod_that_was_guessed_before_it_was_listed_has_not_ended(node: Node) -> None:
    guessed, asking = make_pod("guessed", gpu(20, 2), at=1), make_pod("asking", gpu(20, 2), at=2)
    node.bind(guessed, asking)
    node.list_error = "rate limited"
    node.begin(asking, MEMORY_FIRST)
    node.serve(asking, "main", MEMORY)
    assert last(node) == "guessed/main"
    node.list_error = ""
    node.serve(asking, "main", CORE)
    node.list_error = "rate limited"
    node.admit(guessed)
    assert node.decision_log.refusals == []
