"""Two pods with one name, pods that only the kubelet knows, and pods that outlive a kubelet."""

from contract.allocation import Evidence
from contract.demand import ContainerKind
from tests.agent.builders import CORE, MEMORY
from tests.in_memory.node import Node
from tests.in_memory.pods import Container, Pod, failing, gpu, init, make_pod, static_pod

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
    for container in ("init", "main"):
        node.start(current, container)
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


# --- pods that outlive a kubelet ----------------------------------------------------------
