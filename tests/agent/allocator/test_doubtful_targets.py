"""What the agent says, and what it lets start, while its sources are late, old or unavailable."""

from dataclasses import replace

import pytest

from agent.errors import GrantError, PlacementError
from contract.allocation import Evidence
from contract.demand import ContainerKind
from placement.scoring import Policy
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


def forgotten(node: Node, *containers: Container) -> Pod:
    """Return a running pod whose devices a new kubelet does not know (K33); it admits the pod."""
    pod = make_pod("running", *containers)
    pod.phase = "Running"
    node.bind(pod)
    node.restart_kubelet()
    return pod


def test_a_name_that_may_be_reused_is_a_guess_while_the_api_server_cannot_be_read(
    node: Node,
) -> None:
    """The watch may be late: only a reading of the API rules out a newer pod of the name."""
    node.now += 60  # pods that were deleted before the agent's list are not on the node any more
    deleted = make_pod("a", gpu(10, 2))
    node.bind(deleted)
    node.admit(make_pod("before", gpu(10, 4)))
    node.api.remove(deleted)
    node.kubelet.deleted_by_force(deleted)
    again = make_pod("a", gpu(10, 2))
    node.bind(again, seen=False)
    node.api.away = True
    node.decision_log.take()
    node.admit(again)
    assert set(node.decision_log.evidence("prefer")) == {Evidence.ORDER}


def test_a_running_pod_does_not_start_on_the_cards_of_a_guess(node: Node) -> None:
    """Its annotations may be edited, but the cards were not chosen by any of its own."""
    pod = forgotten(node, gpu(20, 2))
    node.bind(make_pod("other", gpu(20, 8, split=2)))
    node.list_error = "down"
    node.admit(pod)
    assert node.cards(pod) == ["GPU-0", "GPU-1"]
    node.list_error = ""
    with pytest.raises(GrantError, match="a share of 20 cores is split over cards"):
        node.start(pod)


def test_a_start_without_proof_is_vetoed_if_its_halves_are_on_different_cards(
    node: Node,
) -> None:
    pod = forgotten(node, gpu(10, 4))
    node.bind(make_pod("other", gpu(20, 4, split=2)))
    node.list_error = node.checkpoint_error = "down"
    node.admit(pod)
    assert node.cards(pod) == ["GPU-0", "GPU-1"]
    with pytest.raises(GrantError, match="memory on GPU-1, but the container's cores are on GPU-0"):
        node.start(pod)


def test_a_start_that_the_checkpoint_cannot_prove_is_checked_by_list(old_node: Node) -> None:
    node = old_node
    current = make_pod("current", gpu(100, 0), use_gpu_uuid="GPU-0")
    node.rejected(make_pod("newer", gpu(100, 0)))
    node.begin(current)
    node.serve(current)
    assert node.decision_log.last.target == "newer/main"
    node.checkpoint_error = "down"
    with pytest.raises(GrantError, match="cards that the pod's annotations rule out: GPU-1"):
        node.start(current)


def test_a_start_is_proven_though_the_slots_seemed_to_be_those_of_a_deleted_pod(
    node: Node,
) -> None:
    """A new agent had seen only an older checkpoint, with an ended pod's entry (K29, K33)."""
    deleted = node.admit(make_pod("deleted", gpu(30, 8)))
    node.start(deleted)
    node.delete(deleted)
    older = node.kubelet.state.checkpoint
    pod = node.admit(make_pod("a", gpu(30, 8)))
    for name in ("b", "c"):  # the saved state has the last two pods
        node.admit(make_pod(name, gpu(10, 4)))
    newer, node.kubelet.state.checkpoint = node.kubelet.state.checkpoint, older
    node.restart_agent()
    node.allocator.refresh()
    node.kubelet.state.checkpoint = newer
    node.start(pod)
    assert node.decision_log.refs("prestart") == ["a/main"] * 2


def test_slots_of_an_unknown_deleted_pod_do_not_hide_the_next_target(old_node: Node) -> None:
    """The checkpoint keeps its entry, and gives its slots to the target (K29)."""
    node = old_node
    deleted = node.admit(make_pod("deleted", gpu(30, 8)))
    node.start(deleted)
    node.delete(deleted)
    node.restart_agent()
    node.allocator.refresh()
    current = make_pod("current", gpu(30, 8))
    node.rejected(make_pod("newer", gpu(30, 8)))
    node.begin(current)
    node.serve(current, "main", CORE)
    assert node.decision_log.last.target == "newer/main"
    node.serve(current, "main", MEMORY)
    assert node.decision_log.last.target == "current/main"


def test_after_a_correction_the_next_call_is_for_the_proven_pod(old_node: Node) -> None:
    """Even if the API does not show it, and shows others with this request."""
    node = old_node
    current = make_pod("current", gpu(10, 2))
    node.rejected(make_pod("second", gpu(10, 4)))
    node.rejected(make_pod("first", gpu(10, 2)))
    node.bind(current, seen=False)
    node.api.away = True
    node.begin(current, MEMORY_FIRST)
    node.serve(current, "main", MEMORY)
    assert node.decision_log.last.target == "first/main"
    node.serve(current, "main", CORE)
    assert node.decision_log.last.target == "current/main"


def test_a_refusal_names_no_pod_if_a_running_one_may_be_meant(old_node: Node) -> None:
    node = old_node
    pod = forgotten(node, gpu(10, 4))
    node.rejected(make_pod("rejected", gpu(10, 4), use_gpu_uuid="GPU-elsewhere"))
    node.begin(pod)
    with pytest.raises(PlacementError):
        node.call()
    assert node.decision_log.refusals[-1].ref is None


@pytest.mark.parametrize("old_list", [False, True], ids=["init", "main"])
def test_a_guess_is_moved_to_the_init_container_that_must_have_it(old_list: bool) -> None:
    """``List`` does not show the container (K4), and the next one is called for (K1).

    If it shows the guessed container without the slots, the guess was wrong in any case.
    """
    node = Node(active_only=not old_list)
    first = gpu(10, 2) if old_list else init(10, 2)
    rejected = failing(make_pod("rejected", replace(first, other=True), gpu(10, 2, name="next")))
    current = make_pod("current", init(10, 2), gpu(30, 8))
    node.begin(rejected, (MEMORY, OTHER_PLUGIN))
    node.serve(rejected, first.name, MEMORY)
    node.kubelet.step()
    node.begin(current)
    node.list_error = "down"
    node.serve(current, "init", CORE)
    assert node.decision_log.last.target == f"rejected/{first.name}"
    node.list_error, node.checkpoint_error = "", "down"
    node.serve(current, "init", MEMORY)
    node.serve(current)
    assert node.decision_log.refs("prefer")[-2:] == ["current/main"] * 2
    assert "corrected" in [each.word for each in node.decision_log.everything]


# --- slots that the kubelet still counts ------------------------------------------------------


def first_batch(node: Node, *pods: Pod) -> None:
    """Let a restarted kubelet have *pods* in its first batch: it frees nothing before its end."""
    node.bind(*pods)
    node.restart_kubelet()


def refused_elsewhere(name: str, cores: int, blocks: int) -> Pod:
    """Return a pod that another vendor's plugin refuses once it has all its GPU devices."""
    return failing(make_pod(name, replace(gpu(cores, blocks), other=True)))


def test_a_refusal_names_no_pod_if_the_calls_before_were_for_a_guess(old_node: Node) -> None:
    """``List`` does not show the init container that proves the pod (K4)."""
    for name in ("on-one", "on-another"):
        old_node.admit(make_pod(name, gpu(60, 17)))
    pods = [make_pod(name, init(20, 2), gpu(20, 16)) for name in ("a", "b")]
    old_node.kubelet.overtake()
    old_node.bind(*pods)
    old_node.rejected(pods[1])
    old_node.begin(pods[0])
    old_node.serve(pods[0], "init")
    assert old_node.decision_log.last.target == "b/init"
    with pytest.raises(PlacementError):
        old_node.admit(pods[0])
    assert old_node.decision_log.refusals[-1].ref is None


def test_slots_of_pods_that_another_plugin_refused_stay_counted() -> None:
    """The checkpoint lacks them (K28), and the new ``List`` does not show the pods (K21)."""
    node = Node(policy=Policy.SPREAD)
    pods = [refused_elsewhere("full", 10, 32), refused_elsewhere("b", 30, 2)]
    pods += [refused_elsewhere("c", 30, 2), make_pod("last", gpu(10, 2))]
    first_batch(node, *pods)
    for each in pods:
        node.admit(each)
    assert node.cards(pods[-1]) == ["GPU-1"]


def test_slots_of_a_guess_stay_counted_after_its_pod_was_refused() -> None:
    """They are an init container's, but the pod is unknown, and its main container was guessed."""
    node = Node(policy=Policy.SPREAD, active_only=False)
    refused = static_pod("refused", init(150, 32), gpu(100, 0))
    pods = [make_pod("b", gpu(30, 2)), make_pod("last", gpu(10, 2))]
    first_batch(node, *pods)
    node.begin(refused, MEMORY_FIRST)
    node.serve(refused, "init", MEMORY)
    with pytest.raises(PlacementError, match="150 cores fit no card"):
        node.serve(refused, "init", CORE)
    for each in pods:
        node.admit(each)
    assert node.cards(pods[-1]) == ["GPU-1"]


# --- which pod a start is for -----------------------------------------------------------------


def test_a_start_is_not_reported_with_the_name_of_a_guess(old_node: Node) -> None:
    """A new agent knows neither pod, as the API server is away, and ``List`` is unavailable."""
    node = old_node
    guessed, pod = make_pod("guessed", gpu(10, 2), at=1), make_pod("a", gpu(10, 2), at=2)
    node.bind(guessed, pod)
    node.list_error = "down"
    node.kubelet.overtake()
    node.admit(pod)
    assert node.decision_log.last.target == "guessed/main"
    node.api.away = True
    node.restart_agent()
    node.allocator.refresh()
    node.kubelet.advertise()  # the checkpoint is written again
    node.start(pod)
    assert node.decision_log.refs("prestart") == []


def test_a_start_is_not_compared_with_an_earlier_pod_of_its_name(node: Node) -> None:
    """An entry with other containers is not that pod's."""
    deleted = node.admit(make_pod("a", gpu(20, 2)))
    node.start(deleted)
    node.api.away = True
    node.kubelet.deleted_by_force(deleted)
    node.kubelet.end(deleted)
    again = make_pod("a", gpu(90, 12), Container("plain", ContainerKind.MAIN))
    node.bind(again, seen=False)
    node.admit(again)
    node.checkpoint_error = "down"
    node.start(again)
    assert node.held(again)


def test_a_late_checkpoint_with_a_rejected_pod_vetoes_no_start(old_node: Node) -> None:
    """It has the rejected pod's cores (K30, K33). ``List`` shows whose they are now."""
    node = old_node
    rejected = refused_elsewhere("rejected", 10, 2)
    node.begin(rejected, (CORE, MEMORY, OTHER_PLUGIN))
    node.serve(rejected, "main", CORE)
    node.kubelet.overtake()
    node.admit(rejected)
    pod = make_pod("a", gpu(10, 2))
    node.bind(pod, seen=False)
    node.admit(pod)
    node.start(pod)
    assert node.decision_log.refusals == []


def test_slots_of_a_refused_container_stay_counted_beside_its_pods_others() -> None:
    """The checkpoint has only the first container (K28), the new ``List`` none of the pod (K8)."""
    node = Node(policy=Policy.SPREAD)
    refused = make_pod("refused", gpu(10, 4), gpu(10, 28, name="second"))
    last = make_pod("last", gpu(10, 8))
    first_batch(node, refused, last)
    node.begin(refused)
    node.serve(refused)
    node.serve(refused, "second", MEMORY)
    node.unhealthy.update({"GPU-0": "xid", "GPU-1": "xid"})
    with pytest.raises(PlacementError):
        node.serve(refused, "second", CORE)
    node.unhealthy.clear()
    node.admit(last)
    assert node.cards(last) == ["GPU-0"]


def test_a_name_that_was_listed_at_a_wrong_guess_is_not_confirmed(old_node: Node) -> None:
    """The pod that the API shows was created when the name was listed already: a guess remains."""
    node = old_node
    first, second = (make_pod("a", init(10, 2), gpu(10, 2)) for _ in range(2))
    node.bind(first, seen=False)
    node.begin(first)
    node.api.remove(first)
    node.kubelet.deleted_by_force(first)
    node.bind(second, seen=False)
    node.decision_log.take()
    node.serve(first, "init")
    node.serve(first)
    assert node.decision_log.refs("allocate") == ["a/init"] * 4
    found = {each.evidence for each in node.decision_log.everything}
    assert Evidence.WITNESS not in found


def test_slots_that_stay_counted_are_kept_once_and_not_those_that_a_container_holds(
    node: Node,
) -> None:
    """However often the node is observed before the kubelet frees them."""
    admitted = [make_pod("runs", gpu(10, 4)), refused_elsewhere("refused", 10, 2)]
    first_batch(node, *admitted, make_pod("later", gpu(10, 4)))
    for pod in admitted:
        node.admit(pod)
    for _ in range(20):
        node.now += 60
        node.allocator.refresh()
    assert len(node.allocator.state.snapshot.refused) == 1
