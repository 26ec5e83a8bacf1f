"""``List`` is unavailable for a while: what it has shown to have ended has ended (R2)."""

from contract.demand import ContainerKind
from tests.agent.builders import CORE, MEMORY, cases
from tests.in_memory.node import MEMORY_FIRST, Node
from tests.in_memory.pods import OTHER_PLUGIN, failing, gpu, init, make_pod


def reject(node: Node, *resources: str, written: bool = False, known: bool = True) -> None:
    """Have another vendor's plugin fail after these calls for a pod; the API is not told."""
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
        "that nobody but the kubelet knew": ([MEMORY], False, False, False),
        "that an old List still shows": ([MEMORY], False, True, True),
    },
)
def test_what_a_rejected_pod_had_can_be_handed_on_by_the_next_one_when_list_goes_away(
    resources: list[str], *, written: bool, known: bool, old: bool
) -> None:
    """The next pod's init container has got it, and its main container is to keep it (K7)."""
    node = Node(1, active_only=not old)
    reject(node, *resources, written=written, known=known)
    pod = node.begin(make_pod("next", init(10, 2), gpu(30, 8)))
    node.serve(pod, "init")
    node.list_error = "rate limited"
    node.admit(pod)
    assert node.decision_log.refusals == []


def test_a_pod_is_not_refused_because_the_call_of_another_was_taken_for_its_own() -> None:
    """Without ``List`` the first in the queue is guessed; the file shows whose places they are."""
    node = Node()
    guessed, asking = make_pod("guessed", gpu(30, 8)), make_pod("asking", gpu(10, 8))
    node.bind(guessed, asking)
    node.list_error = "rate limited"
    node.admit(asking, MEMORY_FIRST)
    node.admit(guessed, MEMORY_FIRST)
    assert node.decision_log.refusals == []


def test_a_restarted_kubelet_tries_a_pod_anew_that_the_one_before_had_rejected() -> None:
    """It has taken the entry back (K31), so the pod holds until ``List`` shows otherwise."""
    node = Node(1)
    reject(node, CORE, MEMORY, written=True)
    node.begin(make_pod("next", gpu(10, 2)))
    node.call()
    node.restart_kubelet()
    node.list_error = "not up yet"
    node.allocator.refresh()
    assert node.allocator.free(CORE) == {"GPU-0": 90}
