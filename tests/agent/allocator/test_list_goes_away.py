"""``List`` is unavailable for a while: what it has shown to have ended has ended (R2)."""

from collections.abc import Callable, Sequence
from functools import partial

from contract.resource import Resource
from tests.agent.builders import CORE, MEMORY, cases
from tests.agent.fakes import CORE_FIRST, Node, asks, init, make_pod

BAD = make_pod("bad", init(10, 2), asks(30, 8))


def gone(node: Node) -> None:
    node.record.hide(BAD)


def still_there(node: Node) -> None:
    """Before 1.34, without its devices (K8)."""
    node.record.show(BAD)


def rejected(node: Node, *, resources: Sequence[Resource], listed: Callable[[Node], None]) -> None:
    """Have the kubelet reject a pod after so many calls; the API has not shown that yet."""
    node.begin(BAD)
    for each in resources:
        node.serve(BAD, BAD.demand.containers[0], each)
    node.release(BAD)
    listed(node)


def rejected_unknown(node: Node) -> None:
    """Have one rejected that the API could not show, after its first call."""
    node.pods.away = True
    node.record.show(BAD)
    node.allocator.allocate(MEMORY, node.prefer(MEMORY, 2))
    gone(node)
    node.pods.away = False


@cases(
    "reject",
    {
        "between its two resources": partial(rejected, resources=[MEMORY], listed=gone),
        "after the checkpoint had it": partial(rejected, resources=[CORE, MEMORY], listed=gone),
        "that nobody but the kubelet knew": rejected_unknown,
        "that an old List still shows": partial(rejected, resources=[MEMORY], listed=still_there),
    },
)
def test_what_a_rejected_pod_had_can_be_handed_on_by_the_next_one_when_list_goes_away(
    reject: Callable[[Node], None],
) -> None:
    """The next pod's init container has got it, and its main container is to keep it (K7)."""
    node = Node(1)
    reject(node)
    pod = node.begin(make_pod("next", init(10, 2), asks(30, 8)))
    for each in CORE_FIRST:
        node.serve(pod, pod.demand.containers[0], each)
    node.record.away = "rate limited"
    node.admit(pod)
    assert node.decision_log.refusals == []


def test_a_restarted_kubelet_tries_a_pod_anew_that_the_one_before_had_rejected() -> None:
    """It has taken the entry back (K31), so the pod holds until ``List`` shows otherwise."""
    node = Node(1)
    rejected(node, resources=[CORE, MEMORY], listed=gone)
    node.begin(make_pod("next", asks(10, 2)))
    node.prefer(CORE, 10)
    node.restart_kubelet()
    node.record.away = "not up yet"
    node.allocator.refresh()
    assert node.allocator.free(CORE) == {"GPU-0": 90}
