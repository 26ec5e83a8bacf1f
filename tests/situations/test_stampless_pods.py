"""Situation 5: pods without stamps: static pods, and pods created without the webhook."""

from random import Random

import pytest

from contract.allocation import Evidence
from tests.simulator.kubelet_helpers import FakePlugin
from tests.situations.build import (
    BEGAN_NS,
    NAMES,
    Json,
    Node,
    a_node,
    a_pod,
    gpu,
    plain,
    uid_of,
    wait_for,
)

SEEDS = range(2)
WITNESSED = Evidence.WITNESS


def a_manifest(name: str, *containers: Json, init: tuple[Json, ...] = ()) -> Json:
    made = a_pod(name, *containers, init=init, stamped=False)
    for key in ("uid", "creationTimestamp"):
        del made["metadata"][key]
    del made["spec"]["nodeName"], made["status"]
    return made


def verdicts(node: Node, uid: str) -> list[str]:
    return [each.verdict.value for each in node.calls_of(uid)]


def assert_next_is_right(node: Node, name: str = "next") -> None:
    node.admit([a_pod(name, gpu("c0"), gpu("c1", 5, 2))])
    node.assert_right(f"uid-{name}")
    assert node.evidence_of(f"uid-{name}") == {WITNESSED: 2}
    node.assert_sound()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_static_pod_without_a_mirror_is_found_by_list(seed: int) -> None:
    with a_node(seed=seed) as node:
        uid = node.add_static(a_manifest("etcd", gpu("c0"), gpu("c1", 5, 2)))
        node.settle()
        assert verdicts(node, uid) == ["right"] * 4
        # Its request is unknown: a guess, though no other container can be the target.
        assert node.decision_log.counts["prefer by order"] == 4
        assert node.decision_log.counts["prefer by witness"] == 0
        assert node.decision_log.counts["without_wishes"] == 4
        assert_next_is_right(node)


def test_static_pods_among_others_take_no_slots_from_them() -> None:
    """Equal pods; some with a mirror, some without; known pods are bound in between."""
    with a_node(cards=4) as node:
        static = []
        for number in range(4):
            node.bind(a_pod(f"p-{number}", gpu("c0", 2, 1), gpu("c1", 2, 1)))
            static.append(node.add_static(a_manifest(f"s-{number}", gpu("c0", 2, 1))))
        node.settle()
        mirrors = [node.mirror(uid) for uid in static[::2]]
        assert_next_is_right(node)
        for uid in static:
            assert verdicts(node, uid) == ["right"] * 2
        node.assert_right(*(f"uid-p-{number}" for number in range(4)))
        assert [node.evidence_of(each) for each in mirrors] == [{Evidence.RECORD: 1}] * 2
        assert node.decision_log.counts["prefer by order"] == 2 * len(static)
        assert node.decision_log.counts["corrected"] == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_wrong_guess_within_a_static_pod_is_corrected_before_its_containers_start(
    seed: int,
) -> None:
    """``List`` shows containers without their requests: *log* comes before *c0*."""
    with a_node(seed=seed) as node:
        uid = node.add_static(a_manifest("etcd", plain("log"), gpu("c0"), gpu("c1", 5, 2)))
        node.settle()
        assert verdicts(node, uid)[0] == "wrong"
        assert {name for each, name in node.kubelet.running() if each == uid} == {"log", "c0", "c1"}
        mirror = node.mirror(uid)
        node.notice_ended_pods()
        assert {*node.recorded(mirror)} == {"c0", "c1"}
        node.admit([a_pod("next")])
        node.assert_right("uid-next")
        node.assert_counted()


@pytest.mark.parametrize("large", [(95, 4), (4, 30)], ids=["cores", "memory"])
def test_a_static_pod_is_not_refused_for_a_full_card_while_others_are_empty(
    large: tuple[int, int],
) -> None:
    for seed in SEEDS:
        with a_node(seed=seed, cards=4) as node:
            node.admit([a_pod("large", gpu("c0", *large))])
            uid = node.add_static(a_manifest("etcd", gpu("c0", 10, 4)))
            node.settle()
            assert node.refusal_message(uid) == ""
            assert verdicts(node, uid) == ["right"] * 2


def test_an_init_container_of_a_static_pod_without_a_mirror_is_served_under_another_name() -> None:
    """No source shows it (K4): the agent takes the first container.

    The slots are the same pod's, and no other pod gets them.
    """
    with a_node() as node:
        manifest = a_manifest("etcd", gpu("c0", 10, 4), init=(gpu("init", 20, 8),))
        uid = node.add_static(manifest)
        node.settle()
        assert node.refusal_message(uid) == ""
        assert verdicts(node, uid) == ["wrong", "wrong", "right", "right"]
        node.admit([a_pod(f"next-{each}", gpu("c0", 60, 20)) for each in range(2)])
        node.assert_right("uid-next-0", "uid-next-1")
        assert node.double_grants() == 0


def stamped(name: str, at: int, *containers: Json) -> Json:
    return a_pod(name, *containers, at=at)


def bound_by_its_author(name: str, at: int, *containers: Json) -> Json:
    """``spec.nodeName`` was set at creation: the webhook stamped it then, without a Binding."""
    made = a_pod(name, *containers, at=at)
    for key in (NAMES.bind_order, NAMES.predicate_node):
        del made["metadata"]["annotations"][key]
    return made


def stamped_by_gpu_manager(name: str, at: int, *containers: Json) -> Json:
    """A pod of its scheduler extender: a time, a node, cards of its own choice."""
    stamps = {
        NAMES.predicate_time: str(BEGAN_NS + at),
        NAMES.predicate_node: "node",
        NAMES.predicate_gpu_idx(0): "1",
        NAMES.gpu_assigned: "false",
    }
    return a_pod(name, *containers, stamped=False, annotations=stamps)


def unstamped(name: str, at: int, *containers: Json) -> Json:
    created = f"2025-01-15T07:{at % 60:02}:00Z"
    return a_pod(name, *containers, created=created, stamped=False)


def test_pods_with_and_without_stamps_in_one_batch_are_attributed_correctly() -> None:
    random = Random(0)
    kinds = (stamped, bound_by_its_author, unstamped, stamped_by_gpu_manager)
    pods = [
        kinds[number % 4](
            f"p-{number}",
            random.randrange(100),
            *(gpu(f"c{each}", 2, random.choice((1, 2))) for each in range(random.randint(1, 3))),
        )
        for number in range(16)
    ]
    with a_node(cards=4) as node:
        node.bind(*pods)
        node.settle()
        node.assert_right(*map(uid_of, pods))
        node.assert_sound()
        recorded = [{*node.evidence_of(uid_of(each))} for each in pods]
        assert recorded == [{WITNESSED}] * 16
        counts = node.decision_log.counts
        assert counts["prefer by order"] == counts["corrected"] == 0


def test_a_pod_with_devices_of_another_plugin_is_ignored() -> None:
    """It holds devices that are none of ours; the next pods get right calls.

    Its devices cannot be proven, so its containers are not started again.
    """
    with a_node(boot=False) as node:
        node.start_kubelet()
        folder = node.kubelet.settings.plugin_dir
        others = [FakePlugin(folder, each, 200).serve() for each in (NAMES.core, NAMES.memory)]
        for each in others:
            each.register()
        node.wait_until_offered()
        node.admit([unstamped("old", 0)])
        for each in others:
            each.stop()
        wait_for(lambda: not any(node.kubelet.capacity()[1].values()))
        node.start_agent()
        node.wait_until_offered()
        node.admit([a_pod("next")])
        node.assert_right("uid-next")
        assert node.recorded("uid-old") == {}
        node.kubelet.restart_container("default", "old", "c0")
        wait_for(lambda: node.decision_log.refusals)
        refusal = node.decision_log.refusals[0]
        assert refusal.call == "prestart"
        assert refusal.reason.startswith('device ID "vcuda-')
        assert refusal.reason.endswith(
            "is not <card uuid>::<number>: it does not come from this agent"
        )
        node.admit([a_pod("second")])
        node.assert_right("uid-second")
        assert node.miscounts() == []
        assert node.double_grants() == 0
