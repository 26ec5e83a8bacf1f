"""Wrong guesses, two pods with one name, and pods that only the kubelet knows."""

import pytest

from agent.allocator.corrections import correct_by_checkpoint, with_uid
from agent.allocator.current_pod import Assignment, CurrentPod
from agent.allocator.interfaces import Checkpoint
from agent.errors import GrantError, PlacementError
from contract.allocation import Evidence
from contract.demand import ContainerKind
from tests.agent.builders import (
    CORE,
    INIT,
    MEMORY,
    checkpoint_of,
    container,
    ids,
    listed,
    pods_of,
    view,
)
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


def begin_beside_a_newer_one(node: Node, *containers: Container) -> Pod:
    """Two pods are new to ``List``: the newer is the likelier, and here it was rejected."""
    current = make_pod("current", *containers)
    node.rejected(make_pod("newer", *containers))
    return node.begin(current)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_the_previous_last_call_is_restored_and_the_guessed_pod_is_tried_last(
    old_node: Node, *, checkpointed: bool
) -> None:
    """Also if the checkpoint shows the true target first, in mid-admission (K30)."""
    current = begin_beside_a_newer_one(old_node, gpu(30, 8))
    old_node.serve(current, "main", CORE)
    assert old_node.decision_log.last.target == "newer/main"
    if checkpointed:
        old_node.kubelet.state.write()
    old_node.serve(current, "main", MEMORY)
    assert old_node.decision_log.last.target == "current/main"


def test_after_a_wrong_guess_of_an_init_container_the_next_call_is_for_the_true_pod(
    old_node: Node,
) -> None:
    """``List`` shows no ordinary init container (K4): only the checkpoint disproves the guess."""
    current = begin_beside_a_newer_one(old_node, init(30, 8), gpu(30, 8))
    old_node.serve(current, "init")
    assert old_node.decision_log.last.target == "newer/init"
    for resource in MEMORY_FIRST:
        old_node.serve(current, "main", resource)
        assert old_node.decision_log.last.target == "current/main"


def test_a_pod_that_was_perhaps_refused_comes_before_one_with_an_unknown_request(
    old_node: Node,
) -> None:
    """The refusal without ``List`` was for the static pod, which that shows now."""
    pod = make_pod("a", gpu(20, 2), *(gpu(100, 0, f"c{each}") for each in range(3)))
    old_node.bind(pod)
    old_node.restart_agent()
    old_node.list_error = "rate limited"
    with pytest.raises(PlacementError):
        old_node.admit(static_pod("static", PLAIN, gpu(20, 2)), MEMORY_FIRST)
    old_node.list_error = ""
    with pytest.raises(PlacementError):
        old_node.admit(pod, MEMORY_FIRST)
    assert old_node.decision_log.refs("prefer") == []


def test_a_guess_is_kept_while_list_cannot_contradict_it(node: Node) -> None:
    """The checkpoint is late (K33), and no known pod waits for what the next one requests."""
    first, second = make_pod("a", gpu(20, 2)), make_pod("b", gpu(20, 4))
    node.bind(first, seen=False)
    node.kubelet.overtake()
    node.admit(first)
    node.list_error = "rate limited"
    node.bind(second, seen=False)
    node.begin(second, MEMORY_FIRST)
    node.call()
    held = node.allocator.state.snapshot.containers(first.id)["main"]
    assert held == node.held(first)


def test_a_guess_before_the_current_pod_is_corrected_too(node: Node) -> None:
    """Without ``List`` the checkpoint shows that it was the current pod's."""
    guessed, current = make_pod("guessed", gpu(10, 4), at=1), make_pod("current", gpu(10, 2), at=2)
    node.bind(guessed, current)
    node.list_error = "rate limited"
    node.admit(current)
    assert node.decision_log.refs("allocate") == ["guessed/main", "current/main"]
    node.admit(guessed)
    assert node.decision_log.refs("allocate")[2:] == ["guessed/main"] * 2


def test_a_pod_is_a_witness_after_a_wrong_guess_while_list_was_available(old_node: Node) -> None:
    current = begin_beside_a_newer_one(old_node, gpu(20, 2))
    old_node.kubelet.overtake()
    old_node.admit(current)
    assert old_node.decision_log.evidence("prefer")[-2:] == [Evidence.ORDER, Evidence.WITNESS]


def test_all_that_was_given_to_a_wrong_guess_is_the_proven_pods(old_node: Node) -> None:
    """``List`` does not show its init container (K4), and the checkpoint is late (K33)."""
    current = begin_beside_a_newer_one(old_node, init(20, 2), gpu(10, 2))
    old_node.kubelet.overtake()
    old_node.serve(current, "init")
    assert old_node.decision_log.last.target == "newer/init"
    old_node.admit(current)
    assert old_node.decision_log.last.target == "current/main"


def test_a_dropped_guess_is_the_init_containers_whose_slots_are_reused(old_node: Node) -> None:
    """Its memory was guessed for another pod, and no source shows it (K4, K33)."""
    current = make_pod("current", init(20, 2), gpu(20, 2))
    old_node.rejected(make_pod("newer", init(10, 2)))
    old_node.kubelet.overtake()
    old_node.begin(current, MEMORY_FIRST)
    old_node.serve(current, "init", *MEMORY_FIRST)
    old_node.serve(current, "main", CORE)
    assert old_node.decision_log.last.target == "current/main"


def test_a_pod_that_may_have_been_served_without_list_is_no_witness(node: Node) -> None:
    """Its init container got what was guessed for a pod that ``List`` does not show."""
    guessed = make_pod("guessed", gpu(10, 4), at=1)
    current = make_pod("current", init(10, 4), init(10, 4, "second"), gpu(20, 2), at=2)
    node.bind(guessed, current)
    node.list_error = "rate limited"
    node.kubelet.overtake()
    node.begin(current)
    node.serve(current, "init")
    assert node.decision_log.last.target == "guessed/main"
    node.list_error = ""
    node.call()
    assert node.decision_log.last.evidence is Evidence.ORDER


def test_a_pod_with_unknown_request_stays_current_if_list_shows_nothing(old_node: Node) -> None:
    """Its ordinary init container may have got the slots, and is not listed (K4)."""
    old_node.rejected(static_pod("another", gpu(30, 8)))
    current = old_node.begin(static_pod("current", init(30, 8), gpu(10, 2)))
    for resource in MEMORY_FIRST:
        old_node.serve(current, "init", resource)
        assert old_node.decision_log.last.target == "current/main"


def test_pods_listed_beside_a_guess_whose_slots_are_offered_again_have_ended(
    old_node: Node,
) -> None:
    """One of them got the slots and was rejected since; no call was for the others."""
    old_node.rejected(make_pod("first", gpu(30, 8), at=2))
    old_node.begin(failing(make_pod("second", gpu(30, 8, other=True), at=3)), (CORE, OTHER_PLUGIN))
    while old_node.kubelet.admitting is not None:
        old_node.call()
    assert old_node.decision_log.last.target == "second/main"
    old_node.begin(make_pod("current", gpu(30, 8), at=1))
    old_node.call()
    assert old_node.decision_log.last.target == "current/main"


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


def test_slots_reserved_by_an_agent_are_free_for_the_next_one_at_a_pod_that_seems_another(
    node: Node,
) -> None:
    """The checkpoint lacks a new pod (K33), and has an ended one with some of the same slots."""
    ended = node.admit(make_pod("ended", gpu(10, 2), gpu(10, 2, name="second")))
    before = node.held(ended)
    node.delete(ended)
    node.kubelet.overtake()
    pod = node.admit(make_pod("a", gpu(10, 2)))
    assert node.held(pod) == before
    node.begin(make_pod("b", gpu(10, 2)), MEMORY_FIRST)
    node.call()
    node.api.away = True
    node.restart_agent()
    node.allocator.refresh()
    node.call()
    assert node.decision_log.last.target == "b/main"


@pytest.mark.parametrize(
    ("before", "after"),
    [("rate limited", ""), ("rate limited", "rate limited"), ("", "rate limited")],
)
def test_a_refused_pod_is_the_least_likely_target(old_node: Node, before: str, after: str) -> None:
    """The old ``List`` still shows it, and without ``List`` it seems to be that of the last call.

    The watch has not shown the target yet.
    """
    later = [gpu(90, 12), gpu(100, 0, "b"), gpu(100, 0, "c")]
    refused = make_pod("refused", init(20, 2), *later, at=2)
    old_node.restart_agent()
    old_node.list_error = before
    with pytest.raises(PlacementError):
        old_node.admit(refused)
    pod = make_pod("a", gpu(20, 2), at=1)
    old_node.bind(pod, seen=False)
    old_node.list_error = after
    old_node.admit(pod)
    assert old_node.decision_log.refs("allocate")[-2:] == ["a/main"] * 2


def test_the_pod_of_a_call_without_list_comes_before_one_that_was_rejected_earlier(
    old_node: Node,
) -> None:
    """A namesake is listed as well, until it has ended (K20)."""
    deleted = old_node.admit(make_pod("a", gpu(10, 2)))
    old_node.start(deleted)
    old_node.delete(deleted, ends=False)
    current, rejected = make_pod("a", gpu(30, 8), at=1), make_pod("rejected", gpu(30, 8), at=2)
    old_node.bind(current, rejected)
    old_node.admit(make_pod("between", gpu(10, 4)))
    old_node.list_error = "rate limited"
    old_node.rejected(rejected)
    old_node.begin(current)
    old_node.serve(current, "main", CORE)
    old_node.list_error = ""
    old_node.serve(current, "main", MEMORY)
    assert old_node.decision_log.last.target == "a/main"


def test_a_pod_that_was_guessed_before_it_was_listed_has_not_ended(old_node: Node) -> None:
    guessed = make_pod("guessed", gpu(20, 2), at=1)
    current = make_pod("current", gpu(20, 2), at=2)
    old_node.bind(guessed, current)
    old_node.list_error = "rate limited"
    old_node.begin(current, MEMORY_FIRST)
    old_node.serve(current, "main", MEMORY)
    assert old_node.decision_log.last.target == "guessed/main"
    old_node.list_error = ""
    old_node.serve(current, "main", CORE)
    old_node.list_error = "rate limited"
    old_node.admit(guessed)
    assert old_node.decision_log.refusals == []


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


def test_the_uid_of_a_rejected_pod_is_replaced_once_the_checkpoint_has_the_right_one() -> None:
    """The rejected pod's entry was newly written, by a write that came late (K33)."""
    slots = ids("GPU-0", range(50))
    guess = Assignment("c0", CORE, slots, Evidence.ORDER, allocated=True)
    taken = CurrentPod(view("p").id, "rejected", assignments=(guess,))
    right = {"right": {"c0": {CORE: slots}}}
    entries = [listed("p", c0={CORE: slots})]

    def uid(now: Checkpoint) -> str:
        return with_uid(
            taken, Checkpoint(), now, entries=entries, pods=pods_of(), identified=frozenset()
        ).uid

    assert uid(Checkpoint(right)) == "right"
    assert uid(Checkpoint({**right, "rejected": right["right"]})) == "rejected"


PLAIN = Container("plain", ContainerKind.MAIN)


def last(node: Node) -> str:
    """Return the target that the agent found for the last call, with its pod's UID."""
    ref = node.decision_log.last.ref
    assert ref is not None
    return f"{ref.pod.uid}/{ref.container}"


def delete_by_force(node: Node, pod: Pod) -> None:
    """Delete a running pod: its devices are free, but ``List`` still shows it (K20)."""
    node.start(pod)
    node.api.remove(pod)
    node.kubelet.deleted_by_force(pod, keeps=False)


# --- two pods with one name ---------------------------------------------------------------


def test_a_pod_that_the_api_has_not_shown_is_no_listed_one_of_its_name(node: Node) -> None:
    """Otherwise the next call has evidence ``witness`` for the listed pod."""
    node.admit(make_pod("before", gpu(10, 4)))
    first = node.admit(make_pod("a", init(50, 8), gpu(10, 4)))
    node.start(first, "init")
    delete_by_force(node, first)
    second = make_pod("a", gpu(50, 8))
    node.bind(second, seen=False)
    node.api.away = True
    node.begin(second)
    node.call()
    node.kubelet.advertise()  # a write without either pod (K28)
    node.call()
    node.decision_log.take()
    node.serve(second, "main", MEMORY)
    assert Evidence.WITNESS not in {each.evidence for each in node.decision_log.everything}


def test_a_start_is_proven_though_its_calls_were_resolved_to_the_predecessor(node: Node) -> None:
    """``List`` showed the name with some of the devices, and the guess is corrected by now."""
    before = node.admit(make_pod("before", gpu(10, 4)))
    first, second = make_pod("a", gpu(20, 2)), make_pod("a", gpu(20, 2))
    node.bind(first)
    node.api.remove(first)
    node.kubelet.deleted_by_force(first)
    node.bind(second, seen=False)
    node.api.away = True
    node.admit(second)
    node.start(before)
    node.start(second)
    assert node.decision_log.counts["corrected"] == 2
    assert node.decision_log.counts["unproven"] == 0


def test_a_pod_is_served_though_its_predecessor_was_deleted_in_its_admission(node: Node) -> None:
    """``List`` shows an entry of this name, as in the last call, but of the other pod."""
    failed = gpu(10, 2, "second", ContainerKind.INIT, other=True)
    first = failing(make_pod("a", init(50, 8), failed, gpu(10, 4)))
    node.serve(node.begin(first), "init")
    node.serve(first, "second", MEMORY)
    second = make_pod("a", init(50, 8), gpu(10, 4))
    node.delete(first)
    node.bind(second, seen=False)
    while node.kubelet.admitting is first:  # the other plugin fails
        node.call()
    node.admit(second)
    assert node.decision_log.refusals == []
    assert last(node) == f"{second.uid}/main"


def test_a_deleted_pod_keeps_its_later_calls_when_the_checkpoint_names_it(node: Node) -> None:
    """Its successor was guessed, and requests the same."""
    containers = init(10, 2), init(10, 4, "second"), gpu(10, 4)
    unknown = make_pod("unknown", PLAIN)
    node.kubelet.bind(unknown)
    node.admit(unknown)
    node.admit(make_pod("before", gpu(10, 2)))
    first, second = make_pod("a", *containers), make_pod("a", *containers)
    node.bind(first)
    node.api.remove(first)
    node.api.add(second)
    node.serve(node.begin(first), "init")
    assert last(node) == f"{second.uid}/init"
    node.serve(first, "second", MEMORY)
    assert last(node) == f"{first.uid}/second"


def test_a_pod_is_still_admitted_though_its_predecessor_was_taken_for_it(old_node: Node) -> None:
    """The checkpoint proves that its predecessor got the slots that ``List`` shows at the name."""
    node = old_node
    containers = gpu(30, 8), PLAIN
    first, second = make_pod("a", *containers), make_pod("a", *containers)
    node.bind(first, seen=False)
    node.begin(first)
    node.api.remove(first)
    node.kubelet.deleted_by_force(first)
    node.bind(second, seen=False)
    node.admit(first)
    assert last(node) == f"{second.uid}/main"
    node.admit(second)
    assert last(node) == f"{second.uid}/main"
    assert node.decision_log.refs("prefer")[-2:] == ["a/main"] * 2


def test_a_share_of_a_deleted_pod_is_not_split_though_its_successor_is_shown(
    old_node: Node,
) -> None:
    """It requests something else; the deleted one is still being admitted (K20)."""
    node = old_node
    first = make_pod("a", gpu(30, 6, split=2))
    node.bind(first, seen=False)
    node.begin(first, MEMORY_FIRST)
    node.api.remove(first)
    node.kubelet.deleted_by_force(first)
    node.serve(first, "main", MEMORY)
    node.api.add(make_pod("a", gpu(50, 8)))
    node.watch.deliver(1)
    assert node.allocator.may_have_changed()
    node.watch.deliver()
    with pytest.raises(PlacementError, match="divided over 2 cards, but it holds devices of only"):
        node.serve(first, "main", CORE)


# --- pods that only the kubelet knows -----------------------------------------------------


def test_the_container_of_an_unknown_pod_is_corrected_by_its_own_entry() -> None:
    """An ended pod had the same devices in a container of the same name (K29)."""
    node = Node(1)
    node.ends(node.admit(static_pod("ended", gpu(10, 2))))
    current = static_pod("current", PLAIN, gpu(10, 2))
    node.begin(current)
    node.serve(current, "main", CORE)
    assert last(node).endswith("/plain")
    node.serve(current, "main", MEMORY)
    node.start(current)
    assert node.decision_log.counts["unproven"] == 0


def test_a_new_checkpoint_entry_proves_a_start_though_its_pod_seems_to_have_ended(
    node: Node,
) -> None:
    """The API has not shown the pod, and ``List`` does not show its init container (K4)."""
    for name in ("x", "y", "z"):
        node.admit(static_pod(name, PLAIN))
    current = node.admit(static_pod("current", init(20, 2), gpu(10, 4)))
    for name in ("init", "main"):
        node.start(current, name)
    assert node.decision_log.counts["unproven"] == 0


def test_a_pod_that_the_checkpoint_lacks_is_known_as_soon_as_the_api_shows_it(node: Node) -> None:
    """K33: its entry in ``List`` has the devices that it was given, and the next pod is served."""
    first, second = make_pod("a", gpu(10, 4)), make_pod("b", gpu(10, 2))
    node.bind(first, second, seen=False)
    node.api.away = True
    node.begin(first)
    node.kubelet.overtake()
    node.admit(first)
    node.begin(second)
    node.serve(second, "main", CORE)
    node.api.away = False
    node.watch.deliver()
    node.allocator.refresh()
    assert node.allocator.entitled(first.uid, "main") is not None


def test_a_pod_that_ran_before_does_not_start_on_a_card_chosen_for_another_pod() -> None:
    """It ended unreported, so a restarted kubelet admits it again; the API shows it as running."""
    node = Node()
    pod = node.admit(make_pod("a", gpu(10, 2), use_gpu_uuid="GPU-1", at=2))
    node.start(pod)
    node.publish_statuses()
    node.ends(pod)
    node.admit(make_pod("between", gpu(10, 4)))
    node.bind(make_pod("another", gpu(10, 2), at=1))
    node.restart_kubelet()
    node.list_error = "rate limited"
    node.admit(pod)
    assert node.cards(pod) == ["GPU-0"]
    node.list_error = ""
    with pytest.raises(GrantError, match="use-gpu-uuid"):
        node.start(pod)
