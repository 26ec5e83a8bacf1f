"""While ``List`` is unavailable, pods that it showed as ended stay ended (R2)."""

from contract.demand import ContainerKind
from tests.agent.builders import CORE, MEMORY, cases
from tests.in_memory.node import Node
from tests.in_memory.pods import OTHER_PLUGIN, failing, gpu, init, make_pod


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
