"""Agent and kubelet die at any moment; names come back; the checkpoint is late."""

from collections.abc import Callable

import pytest

from agent.allocator.model.pod_view import PodView
from agent.errors import ResolutionError
from contract.allocation import Evidence
from contract.resource import Resource
from tests.agent.builders import CORE, MEMORY
from tests.agent.fakes import CORE_FIRST, MEMORY_FIRST, Node, asks, init, make_pod

ORDER, TICKET, WITNESS = Evidence.ORDER, Evidence.TICKET, Evidence.WITNESS

Step = Callable[[Node], None]


@pytest.fixture
def node() -> Node:
    return Node()


def nothing(_node: Node) -> None:
    """Have nobody die."""


def agent_dies(node: Node) -> None:
    node.restart_agent()
    node.allocator.refresh()


def kubelet_dies(node: Node) -> None:
    node.restart_kubelet()


def both_die(node: Node) -> None:
    node.restart_kubelet()
    agent_dies(node)


def agent_dies_unseen(node: Node) -> None:
    """The next agent is called before it has looked."""
    node.restart_agent()


ANY = pytest.mark.parametrize("dies", [nothing, agent_dies, kubelet_dies, both_die])
AGENT = pytest.mark.parametrize("dies", [agent_dies, agent_dies_unseen])


def serve(node: Node, pod: PodView, name: str, *resources: Resource) -> None:
    """Make the calls for a container, of both resources unless told."""
    for each in resources or (CORE, MEMORY):
        node.serve(pod, next(one for one in pod.demand.containers if one.name == name), each)


def last(node: Node) -> tuple[str, Evidence]:
    """Whom the last call was for, and by which evidence."""
    _, ref, _, evidence, _ = node.decision_log.decisions[-1]
    return f"{ref.pod.name}/{ref.container}", evidence


def free(node: Node) -> dict[str, int]:
    node.allocator.refresh()
    return node.allocator.free(CORE)


def is_true(node: Node) -> None:
    """Assert that the record is what the kubelet has given."""
    node.allocator.refresh()
    node.allocator.refresh()
    for resource in Resource:
        given = {each for key, held in node.got.items() if key[2] is resource for each in held}
        with node.allocator.state as state:
            assert state.snapshot.held[resource] == given


# --- the agent dies -----------------------------------------------------------------------


@AGENT
@pytest.mark.parametrize(("cores", "evidence"), [(40, TICKET), (30, ORDER)])
def test_an_agent_that_dies_after_a_preferred_call_has_its_promise_kept(
    node: Node, dies: Step, cores: int, evidence: Evidence
) -> None:
    """One that was a guess stays one."""
    node.begin(make_pod("a", asks(30, 8)))
    node.begin(make_pod("b", asks(cores, 8)))
    chosen = node.prefer(CORE, cores)
    dies(node)
    node.allocator.allocate(CORE, chosen)
    assert last(node) == ("b/main", evidence)


@pytest.mark.parametrize("dies", [nothing, agent_dies, agent_dies_unseen])
@pytest.mark.parametrize("late", [False, True])
def test_places_handed_on_are_told_from_a_repeated_call(
    node: Node, dies: Step, *, late: bool
) -> None:
    """K7: the next container gets the very same places, and the file has the one before.

    If that is late (K33) either may be asking, but for an agent that lives: no call is repeated.
    """
    pod = node.begin(make_pod("a", init(30, 8, "i0"), init(30, 8), asks(30, 8)))
    for name, resource in (("i0", CORE), ("i0", MEMORY), ("init", CORE), ("init", MEMORY)):
        node.checkpoint.late = late and (name, resource) == ("init", MEMORY)
        serve(node, pod, name, resource)
        dies(node)
    serve(node, pod, "main", MEMORY)
    assert last(node)[1] is ORDER if late and dies is not nothing else last(node)[0] == "a/main"
    dies(node)
    serve(node, pod, "main", CORE)
    node.start(pod)
    assert not node.decision_log.unproven_starts
    is_true(node)


def test_an_answer_to_a_pod_that_is_refused_is_not_kept_for_the_next_agent(node: Node) -> None:
    node.begin(make_pod("a", asks(30, 8)))
    node.prefer(CORE, 30)
    kept = node.store.text
    with pytest.raises(ResolutionError):
        node.prefer(CORE, 77)
    assert "GPU-0::0" in kept
    assert "GPU-0::0" not in node.store.text


@pytest.mark.parametrize("checkpointed", [False, True])
def test_the_wrong_container_of_the_right_pod_leaves_it_its_turn(
    node: Node, *, checkpointed: bool
) -> None:
    """Nobody has told its spec: its first container was taken, and ``List`` shows the second."""
    node.begin(make_pod("a", asks(30, 8)))
    node.prefer(CORE, 30)
    pod = make_pod("b", asks(0, 0, "plain"), asks(30, 8))
    node.pods.away = True
    node.record.show(pod)
    chosen = node.prefer(CORE, 30)
    node.allocator.allocate(CORE, chosen)
    assert last(node)[0] == "b/plain"
    node.took(pod, pod.demand.containers[1], CORE, chosen)
    if checkpointed:  # in mid-admission (K30)
        node.checkpoint.write()
    node.prefer(MEMORY, 8)
    assert last(node)[0] == "b/main"


def test_a_name_that_left_list_is_not_sure_when_it_comes_back(node: Node) -> None:
    """The watch is behind, and the API server away: the pod that it shows is the one before."""
    pod = node.begin(make_pod("a", asks(30, 8)))
    node.prefer(CORE, 30)
    assert last(node)[1] is WITNESS
    node.record.hide(pod)
    node.allocator.refresh()
    node.pods.away = True
    node.record.show(pod)
    node.prefer(CORE, 30)
    assert last(node)[1] is ORDER


# --- static pods ------------------------------------------------------------------------------


@ANY
@pytest.mark.parametrize("mirror", ["before", "between", "never"])
def test_a_static_pod_is_served_and_proven_whenever_its_mirror_comes(
    node: Node, dies: Step, mirror: str
) -> None:
    """K34: the kubelet knows it by the hash of its configuration."""
    pod = make_pod("static", asks(30, 8), asks(10, 2, "second"), runtime_uid="hash")
    if mirror == "before":
        node.bind(pod)
    node.show(pod)
    node.serve(pod, pod.demand.containers[0], CORE)
    if mirror == "between":
        node.bind(pod)
    dies(node)
    node.admit(pod)
    node.start(pod, "main")
    node.start(pod, "second")
    assert not node.decision_log.refusals
    assert not node.decision_log.unproven_starts
    assert set(node.decision_log.refs("prestart")) <= {"static/main", "static/second"}
    is_true(node)


# --- without any witness -----------------------------------------------------------------------


def test_another_pod_leaves_room_to_one_that_a_restarted_kubelet_is_yet_to_come_to() -> None:
    """What its init container left over ties its next container to that card (K7)."""
    node = Node(2)
    node.admitted(make_pod("fills", asks(85, 4)))
    half = node.begin(make_pod("half", init(5, 4), asks(10, 8)))
    first, main = half.demand.containers
    for resource in CORE_FIRST:
        node.serve(half, first, resource)
    assert node.cards(half, first.name) == ["GPU-0"]
    node.restart_kubelet()
    other = node.admitted(make_pod("other", asks(10, 4)), MEMORY_FIRST)
    assert node.cards(other) == ["GPU-1"]
    node.admit(half, MEMORY_FIRST)
    assert node.cards(half, main.name) == ["GPU-0"]
