"""Situation 2: pods that the kubelet rejects, and the next pod's calls.

The rejected pod has the same requests as the next one, so an agent finds the right target only if
it knows that the pod has ended. Where that is hard, its rank is lower as well as higher.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from contract.allocation import Evidence
from simulator.node.api import PodObject
from simulator.node.judge import Attribution
from tests.situations.build import Json, Node, a_node, a_pod, gpu, uid_of, wait_for

Make = Callable[[str, int], Json]


@dataclass(frozen=True)
class Rejected:
    """A kind of rejection: its pod, the calls that succeed, and the message's beginning."""

    make: Make
    calls: int
    message: str


def two(name: str, at: int, **annotations: str) -> Json:
    dashed = {key.replace("_", "-"): value for key, value in annotations.items()}
    named = {f"simulator/{key}": value for key, value in dashed.items()}
    return a_pod(name, gpu("c0"), gpu("c1"), at=at, annotations=named)


AFFINITY = (
    "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node "
    "affinity/selector"
)
OTHER_PLUGIN = (
    "Pod was rejected: Allocate failed due to rpc error: code = Unknown desc = simulated "
    "failure of another device plugin, which is unexpected"
)
OURS = (
    "Pod was rejected: Allocate failed due to device plugin GetPreferredAllocation rpc failed "
    "with err: rpc error: code = FailedPrecondition desc = gpu-turnstile: "
)

WITHOUT_CALL = Rejected(lambda n, at: two(n, at, reject="NodeAffinity"), 0, AFFINITY)
"""The kubelet makes no call for it."""
CALLED = {
    "after all calls": Rejected(lambda n, at: two(n, at, reject_after="NodeAffinity"), 4, AFFINITY),
    "another plugin after our first call": Rejected(
        lambda n, at: two(n, at, fail_after="1"), 1, OTHER_PLUGIN
    ),
    "another plugin after a container": Rejected(
        lambda n, at: two(n, at, fail_after="2"), 2, OTHER_PLUGIN
    ),
    "our refusal for its second container": Rejected(
        lambda n, at: a_pod(n, gpu("c0"), gpu("c1", 10, 40), at=at),
        0,
        OURS + "no card fits 10 cores and 40 memory blocks of container c1, with c0 placed: ",
    ),
    "our refusal at once": Rejected(
        lambda n, at: a_pod(n, gpu("c0", 10, 40), gpu("c1"), at=at),
        0,
        OURS + "no card fits 10 cores and 40 memory blocks: ",
    ),
    "a request that no webhook has denied": Rejected(
        lambda n, at: a_pod(n, gpu("c0"), gpu("c1", 150, 4), at=at),
        0,
        OURS + "container c1: 150 cores and 4 memory blocks fit no card: a share of one card is "
        "1 to 99 cores, whole cards are a multiple of 100, which is unexpected",
    ),
}
EVERY = {"node affinity": WITHOUT_CALL} | CALLED

RANKS = (0, 2_000)
"""Before and after the next pod."""


def node_with(*, keeps_rejected: bool, seed: int = 0) -> Node:
    return a_node(seed=seed, kubelet={"active_pods_only": not keeps_rejected})


def reject(
    node: Node, how: Rejected, name: str = "bad", at: int = 0, *, published: bool = True
) -> str:
    """Reject a pod; *published*: whether the watch delivers its failure, not only its binding."""
    bad = how.make(name, at)
    node.bind(bad)
    if not published:
        node.api.hanging = True
    node.settle()
    uid = uid_of(bad)
    assert len([each for each in node.calls_of(uid) if not each.event.error]) == how.calls
    assert node.refusal_message(uid).startswith(how.message)
    assert node.recorded(uid) == {} or how.calls == 4
    return uid


def assert_next_is_right(node: Node, *, seen: bool = True) -> None:
    """Check the calls from the first one on; *seen*: no other container could be the target."""
    good = a_pod("good", gpu("c0"), gpu("c1"), at=1_000)
    node.admit([good])
    assert node.refusal_message(uid_of(good)) == ""
    node.catch_up()
    node.assert_right(uid_of(good))
    node.assert_sound()
    if seen:
        node.assert_no_guess(uid_of(good))


@pytest.mark.parametrize("how", CALLED.values(), ids=CALLED)
def test_a_rejected_pod_counts_as_ended_though_list_keeps_it_and_the_watch_is_late(
    how: Rejected,
) -> None:
    for seed, at in enumerate(RANKS):  # which resource comes first depends on the seed
        with node_with(keeps_rejected=True, seed=seed) as node:
            reject(node, how, at=at, published=False)
            assert_next_is_right(node, seen=False)


def test_a_pod_rejected_without_a_call_misleads_one_call_at_most() -> None:
    """The worst case: several of them, listed, and still pending in a late watch."""
    with node_with(keeps_rejected=True) as node:
        node.bind(*(WITHOUT_CALL.make(f"bad-{each}", each) for each in range(5)))
        node.api.hanging = True
        node.settle()
        for number in range(3):
            good = a_pod(f"good-{number}", gpu("c0"), gpu("c1"), at=100 + number)
            node.admit([good])
            verdicts = [each.verdict.value for each in node.calls_of(uid_of(good))]
            assert verdicts[1:] == ["right"] * 3
            if number:  # the rejected ones lacked devices in the calls of others
                assert verdicts[0] == "right"
        node.catch_up()
        node.admit([a_pod("probe")])
        node.assert_right("uid-good-1", "uid-good-2", "uid-probe")
        node.assert_counted()
        # The wrong guess was corrected before the container started.
        assert {*node.recorded("uid-good-0")} == {"c0", "c1"}


@pytest.mark.parametrize("failed", [5, 9], ids=["some", "more than are read one by one"])
def test_failed_pods_that_list_keeps_do_not_hide_the_target(failed: int) -> None:
    """The watch has delivered the failed ones, but not the new one."""
    with node_with(keeps_rejected=True) as node:
        for number in range(failed):
            reject(node, WITHOUT_CALL, f"bad-{number}", number)
        node.api.hanging = True
        assert_next_is_right(node)


def test_a_pod_that_only_the_kubelet_knows_is_not_taken_for_an_admitted_one() -> None:
    with node_with(keeps_rejected=True) as node:
        node.bind(WITHOUT_CALL.make("bad", 0))
        node.bind(a_pod("good", gpu("c0"), gpu("c1"), at=1))
        node.api.hanging = True
        node.settle()  # the last three calls for good have shown that bad has ended
        static = a_pod("static", gpu("c0"), gpu("c1"), stamped=False)
        uid = node.add_static(static)
        node.settle()
        assert [each.verdict for each in node.calls_of(uid)] == [Attribution.RIGHT] * 4


@pytest.mark.parametrize("keeps_rejected", [False, True], ids=["1.34", "1.33"])
def test_after_every_kind_of_rejection_the_next_pod_is_attributed_correctly(
    keeps_rejected: bool,
) -> None:
    """Every kind of rejection, one after the other, the watch up to date."""
    with node_with(keeps_rejected=keeps_rejected, seed=keeps_rejected) as node:
        for number, how in enumerate(EVERY.values()):
            reject(node, how, f"bad-{number}", number)
            good = a_pod(f"good-{number}", gpu("c0"), gpu("c1"), at=number)
            node.admit([good])
            node.assert_right(uid_of(good))
            assert node.evidence_of(uid_of(good)) == {Evidence.WITNESS: 2}
            node.remove(uid_of(good))
            wait_for(lambda: not node.kubelet.held_devices())
            node.sweep()
        node.admit([a_pod("probe")])
        node.assert_sound()
        assert node.decision_log.counts["corrected"] == 0


def test_a_burst_among_rejected_pods_in_one_batch_is_attributed_correctly() -> None:
    """No rejection is known yet in the next pod's calls; ``List`` is enough."""
    kinds = list(EVERY.values())
    bad = [kinds[each % len(kinds)].make(f"bad-{each}", 2 * each) for each in range(14)]
    good = [a_pod(f"good-{each}", gpu("c0", 2, 1), at=2 * each + 1) for each in range(14)]
    with node_with(keeps_rejected=False) as node:
        node.bind(*bad, *good)
        node.settle()
        node.admit([a_pod("probe", gpu("c0", 1, 1))])
        node.assert_right(*map(uid_of, good))
        assert node.double_grants() == 0
        assert {node.refusal_message(uid_of(each)) for each in bad}.isdisjoint({""})
        counts = node.decision_log.counts
        assert counts["prefer by order"] == counts["corrected"] == 0


@pytest.mark.parametrize("memory", [8, 0], ids=["with memory", "without"])
@pytest.mark.parametrize("seed", range(4))
def test_slots_that_are_freed_later_than_listed_are_not_used_first(seed: int, memory: int) -> None:
    """Nothing is freed before the first batch after a restart is admitted (K21)."""
    with node_with(keeps_rejected=seed > 1, seed=seed) as node:
        node.kubelet.kill()
        cores = 60 if memory else 100
        bad = a_pod(
            "bad", gpu("c0", cores, memory), annotations={"simulator/reject-after": "NodeAffinity"}
        )
        good = [
            a_pod(f"p{number}", gpu("c0", 50, 4), created=f"2025-01-15T08:00:{number + 1:02}Z")
            for number in range(2)
        ]
        for each in (bad, *good):
            node.manifests[uid_of(each)] = each
            node.api.add(PodObject(each))
        node.start_kubelet()
        node.settle()
        assert node.refusal_message(uid_of(bad)) == AFFINITY
        assert [node.refusal_message(uid_of(each)) for each in good] == ["", ""]
        node.assert_right(*map(uid_of, good))
        assert node.double_grants() == 0
