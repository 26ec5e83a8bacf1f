"""Agent and kubelet restart at any moment; names are used again; sources are late or fail."""

from collections.abc import Callable

import pytest

from agent.allocator.interfaces import ListedPod
from agent.allocator.saved_state import decode
from agent.allocator.slot_holdings import key_of
from agent.allocator.slots import DeviceTable
from agent.cards.inventory import reserve_memory
from agent.errors import KubeletReplaced, Refusal
from contract.allocation import Evidence
from contract.demand import ContainerKind
from contract.resource import Resource
from tests.agent.builders import BLOCK, CORE, MEMORY, cases
from tests.in_memory.node import CORE_FIRST, MEMORY_FIRST, Node
from tests.in_memory.pods import OTHER_PLUGIN, failing, gpu, init, make_pod, static_pod

ORDER, TICKET = Evidence.ORDER, Evidence.TICKET

Step = Callable[[Node], None]


def nothing(_node: Node) -> None:
    """Restart no process."""


def agent(node: Node) -> None:
    node.restart_agent()
    node.allocator.refresh()


def kubelet(node: Node) -> None:
    node.restart_kubelet()


def both(node: Node) -> None:
    node.restart_kubelet()
    agent(node)


def agent_without_observation(node: Node) -> None:
    node.restart_agent()


ANY = pytest.mark.parametrize("restart", [nothing, agent, kubelet, both])
AGENT = pytest.mark.parametrize("restart", [agent, agent_without_observation])


def last(node: Node) -> tuple[str, Evidence | None]:
    return node.decision_log.last.target, node.decision_log.last.evidence


def assert_snapshot_is_true(node: Node) -> None:
    node.allocator.refresh()
    node.allocator.refresh()
    for resource in Resource:
        with node.allocator.state as state:
            assert state.snapshot.held[resource] == node.kubelet.held(resource)


# --- the agent restarts -----------------------------------------------------------------------


@AGENT
@pytest.mark.parametrize(("cores", "evidence"), [(40, TICKET), (30, ORDER)])
def test_a_reservation_outlives_an_agent_killed_after_a_preferred_call(
    restart: Step, cores: int, evidence: Evidence
) -> None:
    """One that was a guess stays one."""
    node = Node(active_only=False)
    node.rejected(make_pod("a", gpu(30, 8)))
    node.begin(make_pod("b", gpu(cores, 8)))
    node.call()
    restart(node)
    node.call()
    assert last(node) == ("b/main", evidence)


@AGENT
def test_a_container_with_blocks_that_the_next_agent_does_not_offer_starts_again(
    restart: Step,
) -> None:
    """The driver keeps more than before, or the agent now has ``--reserved-memory``."""
    node = Node(cards=1, blocks=4)
    pod = node.begin(make_pod("a", gpu(60, 4)))
    node.admit(pod)
    node.start(pod)
    node.table = DeviceTable(reserve_memory(node.table.inventory, BLOCK), BLOCK)
    restart(node)
    node.start(pod)
    node.allocator.refresh()
    assert node.allocator.free(MEMORY) == {"GPU-0": 0}


@pytest.mark.parametrize("restart", [nothing, agent, agent_without_observation])
@pytest.mark.parametrize("late", [False, True])
def test_reused_slots_are_distinguished_from_a_repeated_call(
    node: Node, restart: Step, *, late: bool
) -> None:
    """K7: the next container gets the very same slots, and the checkpoint has the one before.

    If that is late (K33), an agent that has restarted cannot know whether the call is repeated.
    """
    pod = node.begin(make_pod("a", init(30, 8, "i0"), init(30, 8), gpu(30, 8)))
    for name, resource in (("i0", CORE), ("i0", MEMORY), ("init", MEMORY), ("init", CORE)):
        if late and (name, resource) == ("init", CORE):
            node.kubelet.overtake()
        node.serve(pod, name, resource)
        restart(node)
    node.serve(pod, "main", CORE)
    assert last(node)[1] is ORDER if late and restart is not nothing else last(node)[0] == "a/main"
    restart(node)
    node.admit(pod)
    node.start(pod)
    assert not node.decision_log.of("corrected")
    assert not node.decision_log.of("unproven")
    assert_snapshot_is_true(node)


def test_an_assignment_to_a_refused_pod_is_not_saved_for_the_next_agent(node: Node) -> None:
    pod = node.begin(make_pod("a", gpu(60, 8), gpu(60, 8, "second")))
    node.call()
    kept = node.store.text
    node.unhealthy = dict.fromkeys(("GPU-0", "GPU-1"), "Xid 79")
    with pytest.raises(Refusal):
        node.admit(pod)
    assert "GPU-0::0" in kept
    assert "GPU-0::0" not in node.store.text


# --- while the API server is unreachable ------------------------------------------------------


@pytest.mark.parametrize("restart", [nothing, agent])
@pytest.mark.parametrize("late", [False, True])
def test_a_pod_that_only_the_kubelet_knew_is_known_by_its_uid_once_the_checkpoint_has_it(
    node: Node, restart: Step, *, late: bool
) -> None:
    """Also if the file was late (K33), and shows it only when the next pod has been served."""
    node.api.away = True
    pod, following = make_pod("a", gpu(30, 8)), make_pod("b", gpu(20, 2))
    for each, then in ((pod, restart), (following, nothing)):
        node.begin(each)
        if late and each is pod:
            node.kubelet.overtake()
        node.admit(each)
        then(node)
    node.api.away = False
    node.watch.deliver()
    node.allocator.refresh()
    for each in (pod, following):
        entitled = node.allocator.entitled(each.uid, "main")
        assert entitled is not None
        assert entitled.key == key_of(node.held(each)[CORE])
        assert {*node.written(each)} == {"main"}


def test_the_entry_of_an_ended_pod_is_not_that_of_a_pod_that_only_the_kubelet_knows(
    node: Node,
) -> None:
    """K29: it shows the same slots until the container has got all."""
    ended = node.admit(make_pod("ended", gpu(30, 8)))
    before = node.held(ended)[CORE]
    node.delete(ended)
    node.api.away = True
    pod = node.begin(make_pod("a", gpu(30, 8)))
    node.serve(pod, "main", CORE)
    assert node.held(pod)[CORE] == before
    agent(node)
    node.serve(pod, "main", MEMORY)
    assert last(node)[0] == "a/main"
    assert_snapshot_is_true(node)


@ANY
@pytest.mark.parametrize("mirror", ["before", "between", "never"])
def test_a_static_pod_is_served_and_proven_whenever_its_mirror_comes(
    node: Node, restart: Step, mirror: str
) -> None:
    """K34: the kubelet knows it by the hash of its configuration."""
    pod = static_pod("static", gpu(30, 8), gpu(10, 2, "second"))
    pod.mirror_uid = "mirror" if mirror == "before" else ""
    node.begin(pod)
    node.serve(pod, "main", CORE)
    if mirror == "between":
        pod.mirror_uid = "mirror"
        node.api.add(pod)
        node.watch.deliver()
    restart(node)
    node.admit(pod)
    node.start(pod, "main")
    node.start(pod, "second")
    assert not node.decision_log.refusals
    assert not node.decision_log.of("unproven")
    assert set(node.decision_log.refs("prestart")) <= {"static/main", "static/second"}
    assert_snapshot_is_true(node)


# --- without any witness ----------------------------------------------------------------------


@pytest.mark.parametrize("order", [CORE_FIRST, MEMORY_FIRST])
def test_another_pod_leaves_slots_to_one_that_a_restarted_kubelet_has_yet_to_admit(
    order: tuple[Resource, ...],
) -> None:
    """The reusable slots of its init container tie its next container to that card (K7)."""
    node = Node(2)
    node.admit(make_pod("fills", gpu(85, 4)))
    half = node.begin(make_pod("half", init(5, 4), gpu(10, 8)))
    node.serve(half, "init")
    assert node.cards(half, "init") == ["GPU-0"]
    node.restart_kubelet()
    other = node.admit(make_pod("other", gpu(10, 4)), order)
    assert node.cards(other) == ["GPU-1"]
    node.admit(half, order)
    assert node.cards(half) == ["GPU-0"]


@pytest.mark.parametrize("what", ["call", "observation"])
def test_an_observation_of_a_killed_kubelet_is_not_applied_to_the_next_one(
    node: Node, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ``List`` comes when the next kubelet has admitted half an init container."""
    node.admit(make_pod("runs", gpu(20, 4), use_gpu_uuid="GPU-1"))
    pod = make_pod("a", init(10, 8), gpu(10, 8))
    killed = node.begin(make_pod("killed", gpu(10, 8)))
    look = node.look

    def then_restart() -> tuple[ListedPod, ...]:
        monkeypatch.setattr(node, "look", look)
        found = node.look()
        node.delete(killed)
        node.restart_kubelet()
        node.serve(node.begin(pod), "init", CORE)
        return found

    monkeypatch.setattr(node, "look", then_restart)
    if what == "call":
        with pytest.raises(KubeletReplaced):
            node.allocator.prefer(CORE, sorted(node.kubelet.free(CORE)), [], 10)
    else:
        node.allocator.refresh()
    node.serve(pod, "init", MEMORY)
    assert node.allocator.free(CORE) == {"GPU-0": 100, "GPU-1": 100 - 20 - 10}
    assert node.decision_log.refs("prefer") == ["runs/main", "runs/main", "a/init", "a/init"]
    assert node.decision_log.refusals == []


def reject(node: Node, *resources: str, written: bool = False, known: bool = True) -> None:
    """Have another vendor's plugin fail after these calls for a pod; the API does not show it."""
    first = gpu(10, 2, "init", ContainerKind.INIT, other=True)
    bad = failing(make_pod("bad", first, gpu(30, 8)))
    node.api.away = not known
    node.begin(bad, (*resources, OTHER_PLUGIN))
    while node.kubelet.admitting is bad:
        node.call()
        if written:
            node.kubelet.state.write()  # in mid-admission (K30)
    node.api.away = False


@cases(
    "resources, written, known, old",
    {
        "between its two resources": ([MEMORY], False, True, False),
        "after the checkpoint had it": ([CORE, MEMORY], True, True, False),
        "that only the kubelet knew": ([MEMORY], False, False, False),
        "that an old List still shows": ([MEMORY], False, True, True),
    },
)
def test_slots_of_a_rejected_pod_are_reusable_in_the_next_pod_without_list(
    resources: list[str], *, written: bool, known: bool, old: bool
) -> None:
    """The next pod's init container has got them, and its main container is to keep them (K7)."""
    node = Node(1, active_only=not old)
    reject(node, *resources, written=written, known=known)
    pod = node.begin(make_pod("next", init(10, 2), gpu(30, 8)))
    node.serve(pod, "init")
    node.list_error = "rate limited"
    node.admit(pod)
    assert node.decision_log.refusals == []


def test_a_list_that_the_next_kubelet_has_sent_changes_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That kubelet has not admitted the pods again."""
    node.admit(make_pod("a", gpu(30, 8)))
    held = node.allocator.holdings().held

    def look() -> tuple[ListedPod, ...]:
        node.restart_kubelet()
        return ()

    monkeypatch.setattr(node, "look", look)
    node.allocator.observe()
    assert node.allocator.holdings().held == held


@cases("active_only", {"upgraded to 1.34": True, "and back": False})
def test_a_kubelet_with_the_other_form_of_list_needs_no_new_agent(active_only: bool) -> None:
    """Rejected pods with the same request leave its ``List``, or are in it again (K8)."""
    node = Node(active_only=not active_only)
    stays = node.admit(make_pod("stays", gpu(20, 4)))
    node.start(stays)
    held = node.held(stays)
    for name in ("rejected-1", "rejected-2"):
        node.rejected(make_pod(name, gpu(20, 4)))
    node.publish_statuses()
    node.admit(make_pod("before", gpu(20, 4)))
    node.kubelet.active_only = active_only
    node.restart_kubelet()
    node.allocator.refresh()
    while node.kubelet.queue:
        node.kubelet.admit_next()
    for name in ("after-1", "after-2"):
        node.admit(make_pod(name, gpu(20, 4)))
        assert last(node) == (f"{name}/main", TICKET)
        assert not node.decision_log.counts["corrected"]
    assert node.held(stays) == held
    assert_snapshot_is_true(node)


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_pod_that_started_unproven_is_no_target_of_the_next_kubelet(
    node: Node, restarts: int
) -> None:
    """It runs, though the checkpoint lacks its devices (K33), and no status says so yet."""
    node.kubelet.overtake()
    running = node.admit(make_pod("running", gpu(40, 4), at=1))
    node.start(running)
    pod = make_pod("a", gpu(40, 4), at=2)
    node.bind(pod)
    for _ in range(restarts):
        node.restart_agent()
    node.restart_kubelet()
    for _ in range(restarts):
        node.allocator.refresh()
        node.restart_agent()
    node.list_error = "down"
    node.decision_log.take()
    node.admit(pod)
    assert set(node.decision_log.refs("allocate")) == {"a/main"}


@pytest.mark.parametrize("list_error", ["", "down"])
def test_a_restarted_kubelet_admits_its_first_pods_in_the_order_of_their_creation(
    old_node: Node, list_error: str
) -> None:
    """Not in the order of their binding, as before (K1); and another plugin refuses one."""
    first = make_pod("created-first", gpu(10, 2), at=2)
    second = make_pod("created-second", gpu(20, 2), at=1)
    old_node.bind(first, second)
    old_node.restart_kubelet()
    old_node.list_error = list_error
    if not list_error:
        old_node.rejected(first)
        first = second
    old_node.begin(first, (MEMORY, CORE))
    old_node.call()
    assert old_node.decision_log.last.target == f"{first.name}/main"


def test_pods_that_started_unproven_are_forgotten_once_they_are_deleted(node: Node) -> None:
    """A kubelet runs for months, and each call saves the state."""
    node.checkpoint_error = "down"
    for number in range(3):
        pod = node.admit(make_pod(f"p{number}", gpu(10, 2)))
        node.start(pod)
        node.delete(pod)
    assert decode(node.store.load()).unproven == {pod.uid}
