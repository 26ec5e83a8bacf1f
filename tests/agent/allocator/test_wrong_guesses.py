"""After a wrong guess the next call is not guessed wrongly for its sake."""

import pytest

from contract.allocation import Evidence
from contract.resource import Resource
from placement.pods import PodInfo
from tests.agent.builders import CORE, MEMORY
from tests.agent.fakes import Node, asks, init, make_pod


@pytest.fixture
def node() -> Node:
    return Node()


def last(node: Node) -> str:
    """Which pod and container the last call was taken to be for."""
    _, ref, _, _, _ = node.decision_log.decisions[-1]
    return f"{ref.pod.name}/{ref.container}"


def call(node: Node, resource: Resource, size: int) -> list[str]:
    """Make both calls for a container whose pod nobody names; return its places."""
    chosen = node.prefer(resource, size)
    node.allocator.allocate(resource, chosen)
    return chosen


def without_list(node: Node, *pods: PodInfo) -> None:
    node.bind(*pods)
    node.record.away = "rate limited"


def test_the_turn_before_counts_again_and_the_pod_that_was_guessed_is_the_last_to_be_tried(
    node: Node,
) -> None:
    """The newest of two newcomers is the likeliest; ``List`` shows that it was the other one."""
    node.admitted(make_pod("before", asks(10, 2)))
    asking = node.begin(make_pod("asking", asks(30, 8)))
    node.begin(make_pod("newest", asks(30, 8)))
    chosen = call(node, CORE, 30)
    assert last(node) == "newest/main"
    node.took(asking, asking.demand.containers[0], CORE, chosen)
    node.prefer(MEMORY, 8)
    assert last(node) == "asking/main"


def test_a_guess_that_the_checkpoint_disproves_in_mid_admission_is_not_made_again(
    node: Node,
) -> None:
    """K30: the file shows it before ``List`` is asked, which shows it as well."""
    node.admitted(make_pod("before", asks(10, 2)))
    asking = node.begin(make_pod("asking", asks(30, 8)))
    node.begin(make_pod("newest", asks(30, 8)))
    chosen = call(node, CORE, 30)
    assert last(node) == "newest/main"
    node.took(asking, asking.demand.containers[0], CORE, chosen)
    node.checkpoint.write()
    node.prefer(MEMORY, 8)
    assert last(node) == "asking/main"


def test_the_init_container_that_was_guessed_wrongly_is_followed_by_those_of_its_own_pod(
    node: Node,
) -> None:
    """``List`` shows no ordinary init container (K4): only the checkpoint disproves the guess."""
    node.admitted(make_pod("before", asks(10, 2)))
    asking = node.begin(make_pod("asking", init(30, 8), asks(30, 8)))
    node.begin(make_pod("newest", init(30, 8), asks(30, 8)))
    first = asking.demand.containers[0]
    node.took(asking, first, CORE, call(node, CORE, 30))
    node.took(asking, first, MEMORY, call(node, MEMORY, 8))
    assert last(node) == "newest/init"
    for resource in (CORE, MEMORY):
        node.allocator.allocate(resource, node.got[asking.id, "init", resource])
        assert last(node) == "asking/main"


def test_a_pod_that_only_the_kubelet_knows_keeps_its_turn_when_the_checkpoint_names_its_container(
    node: Node,
) -> None:
    """The file has its UID and no name: it may be the pod that was guessed, and here it is."""
    node.admitted(make_pod("before", asks(10, 2)))
    pod = make_pod("unknown", init(30, 8), asks(10, 2))
    node.pods.away = True
    node.record.show(pod)
    node.took(pod, pod.demand.containers[0], MEMORY, call(node, MEMORY, 8))
    assert last(node) == "unknown/main"
    node.checkpoint.write()  # in mid-admission (K30)
    node.allocator.refresh()
    with node.allocator.state as state:
        assert state.last_call.pod is not None
        assert state.last_call.pod.name == "unknown"
    call(node, CORE, 30)
    assert node.decision_log.refusals == []


def test_a_pod_whose_guessed_places_are_offered_again_has_none_of_them(node: Node) -> None:
    """They were another pod's, which the kubelet has rejected since; there is no ``List``."""
    without_list(node, make_pod("first", asks(30, 8)), make_pod("second", asks(30, 8)))
    call(node, CORE, 30)
    node.prefer(CORE, 30)
    assert node.decision_log.refs("prefer") == ["first/main"] * 2


def test_a_guess_is_given_up_where_it_leaves_no_container_that_can_be_asking(node: Node) -> None:
    """The places were a pod's that nobody knew, and are its own still."""
    without_list(node, make_pod("known", asks(30, 8)))
    chosen = call(node, CORE, 30)
    free = [each for each in node.free[CORE] if each not in chosen]
    node.prefer(CORE, 30, among=free)
    assert node.decision_log.refs("prefer") == ["known/main"] * 2


def test_what_was_planned_with_a_wrong_guess_is_planned_anew() -> None:
    """Part of the card that the whole pod was to be on is another's, as it turns out."""
    node = Node(blocks=16)
    guessed = make_pod("guessed", asks(10, 2, "first"), asks(10, 14, "second"))
    right = make_pod("right", asks(10, 2))
    without_list(node, guessed, right)
    for resource, size in ((CORE, 10), (MEMORY, 2)):
        chosen = call(node, resource, size)
        assert last(node) == "guessed/first"
        node.took(right, right.demand.containers[0], resource, chosen)
    node.record.away = ""
    node.admit(guessed)
    assert node.cards(guessed, "second") == ["GPU-1"]


def test_a_guess_that_was_right_is_not_wrong_because_its_pod_is_deleted_by_force(
    node: Node,
) -> None:
    """K20: its name is still listed, with nothing. Another of that name waits; it did not come."""
    node.admitted(make_pod("before", asks(10, 2)))
    deleted, asking = make_pod("a", asks(30, 8)), make_pod("asking", asks(10, 4))
    again = make_pod("a", asks(10, 4))
    node.record.show(deleted)
    node.pods.on_server[deleted.id.key] = deleted  # the watch is behind, then and later
    for resource in (CORE, MEMORY):
        node.serve(deleted, deleted.demand.containers[0], resource)
    assert Evidence.ORDER in node.decision_log.evidence("allocate")
    node.start(deleted)
    node.release(deleted)
    node.record.show(deleted)
    node.pods.on_server[again.id.key] = again
    node.begin(asking)
    node.prefer(CORE, 10)
    assert last(node) == "asking/main"


def test_what_an_agent_reserved_is_free_to_the_next_one_whatever_the_checkpoint_shows() -> None:
    """The kubelet had offered it: whoever had it has ended (R2), though the API shows that pod."""
    node = Node(1)
    ended = node.admitted(make_pod("ended", asks(60, 4)))
    node.restart_agent()
    node.record.hide(ended)
    node.release(ended)
    node.begin(make_pod("a", asks(60, 4)))
    chosen = node.prefer(CORE, 60)
    node.restart_agent()
    node.allocator.refresh()
    node.allocator.allocate(CORE, chosen)
    assert last(node) == "a/main"
