"""Situation 1: bursts. Many pods at once, equal in cores and different in memory."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from random import Random

from contract.allocation import Evidence
from tests.situations.build import Json, Node, a_node, a_pod, gpu, uid_of, wait_for


def crowd(count: int, *, seed: int, containers: Sequence[int] = (1, 1, 1, 2, 5)) -> list[Json]:
    """Pods of some containers, most equal in cores; stamps in another order than creation."""
    random = Random(seed)
    ranks = random.sample(range(count), count)
    return [
        a_pod(
            f"p-{number}",
            *(
                gpu(f"c{each}", random.choice((1, 1, 1, 2)), random.choice((1, 2, 3)))
                for each in range(random.choice(containers))
            ),
            at=ranks[number],
        )
        for number in range(count)
    ]


def assert_no_pod_was_refused(node: Node) -> None:
    assert node.decision_log.refusals == []
    assert [each.error for each in node.kubelet.trace.events if each.event == "reject"] == []


def assert_all_seen(node: Node, pods: list[Json]) -> None:
    """Check that every call had the right target, by ``List``.

    Each new pod is read once from the API: no other pod of its name can be the target.
    """
    assert node.api.gets == len(pods)
    assert_no_pod_was_refused(node)
    node.assert_right(*map(uid_of, pods))
    node.assert_sound()
    assert {each.evidence for each in node.admissions()} == {Evidence.TICKET}
    assert node.decision_log.counts["prefer by witness"] == len(node.admissions())
    recorded = [r for each in pods for r in node.recorded(uid_of(each)).values()]
    assert {each.evidence for each in recorded} == {Evidence.WITNESS}
    # Every container was proven before it started, by both its resources, and no guess was wrong.
    assert node.decision_log.counts["prestart by record"] == len(node.admissions())
    assert node.decision_log.counts["unproven"] == node.decision_log.counts["corrected"] == 0


def test_a_hundred_pods_in_one_batch_are_all_attributed_correctly() -> None:
    pods = crowd(100, seed=1, containers=(1, 1, 1, 2))
    with a_node(seed=1, cards=10, memory="32Gi") as node:
        node.bind(*pods)
        node.settle()
        assert_all_seen(node, pods)
        # The burst is as wanted: both resources come first, and neither the order of stamps nor
        # the size identifies the target.
        first = defaultdict(list)
        for each in node.admissions():
            first[each.event.pod_uid, each.event.container].append(each.resource)
        orders = Counter(tuple(each) for each in first.values())
        assert len(orders) == 2
        assert min(orders.values()) > len(first) / 3
        turns = {each.event.pod_uid: None for each in node.admissions()}
        assert list(turns) != list(map(uid_of, pods))


def test_unwatched_pods_are_attributed_correctly_with_one_get_each() -> None:
    """A pod that the API shows only after ``List`` is a guess."""
    pods = crowd(10, seed=5)
    with a_node(seed=5, cards=4, memory="32Gi") as node:
        node.api.hanging = True
        node.bind(*pods)
        node.settle()
        assert_no_pod_was_refused(node)
        node.assert_right(*map(uid_of, pods))
        node.assert_no_guess(*map(uid_of, pods))
        assert node.api.gets == len(pods)
        assert node.decision_log.counts["corrected"] == 0


def test_pods_that_end_during_a_burst_free_slots_and_cause_no_wrong_target() -> None:
    random = Random(6)
    pods = crowd(30, seed=6)
    brief, lasting = pods[:20], pods[20:]
    for each in brief:
        each["metadata"]["annotations"]["simulator/run-seconds"] = f"{random.random() / 5:.3f}"
    with a_node(seed=6, cards=5, memory="32Gi") as node:
        node.bind(*pods)
        node.settle()
        assert_no_pod_was_refused(node)
        assert any(each.event == "end" for each in node.kubelet.trace.events)
        wait_for(lambda: {uid for uid, _ in node.kubelet.running()} == {*map(uid_of, lasting)})
        node.sweep()
        probe = a_pod("probe")
        node.admit([probe])
        node.assert_right(uid_of(probe), *map(uid_of, lasting))
        node.assert_sound()


def test_a_burst_that_does_not_fit_is_refused_in_part_and_the_rest_attributed_correctly() -> None:
    """Of 30 pods of 20 cores two cards hold ten; the others are refused, by kubelet or agent."""
    pods = [a_pod(f"p-{each}", gpu("c0", 20, 2 + each % 2)) for each in range(30)]
    with a_node(seed=7, cards=2) as node:
        node.bind(*pods)
        node.settle()
        served = [uid_of(each) for each in pods if not node.refusal_message(uid_of(each))]
        assert len(served) == 10
        node.assert_right(*served)
        node.assert_sound()
        refused = {
            node.refusal_message(uid_of(each)) for each in pods if uid_of(each) not in served
        }
        # No core is free: the kubelet rejects the pod itself, unless memory comes first.
        assert any("requested number of devices unavailable" in each for each in refused)
        ours = {each.reason for each in node.decision_log.refusals}
        assert {each.partition(":")[0] for each in ours} == {
            "no card fits 20 cores and 2 memory blocks",
            "no card fits 20 cores and 3 memory blocks",
        }
        assert all("0 of 20 cores free" in each for each in ours)
