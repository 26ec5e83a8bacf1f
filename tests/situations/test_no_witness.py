"""Situation 6: ``List`` or the checkpoint is unavailable; order decides, and is reported."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import agent.allocator.observer
from contract.allocation import Evidence
from simulator.node.node import deny
from simulator.node.recording_log import RecordingLog
from tests.agent.fakes import eventually
from tests.situations.build import Json, Node, a_node, a_pod, gpu, sidecar, uid_of


@contextmanager
def denied(node: Node) -> Iterator[None]:
    at = node.kubelet.settings.misbehavior.at
    at["List"] = deny
    yield
    del at["List"]


def some_pods() -> list[Json]:
    """Pods of many forms, in the order of their stamps."""
    return [
        a_pod("two", gpu("c0", 10, 4), gpu("c1", 10, 8), at=1),
        a_pod("twins", gpu("c0", 10, 4), gpu("c1", 10, 4), at=2),
        a_pod("init", gpu("c0", 10, 4), init=[gpu("init", 20, 2)], at=3),
        a_pod("side", gpu("c0", 10, 8), init=[sidecar("side", 5, 1)], at=4),
        a_pod("card", gpu("c0", 100, 32), at=5),
    ]


def test_evidence_order_is_used_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the agent's start on."""
    monkeypatch.setattr(agent.allocator.observer, "LIST_WITHIN", 0.02)
    reasons: list[str] = []
    monkeypatch.setattr(
        RecordingLog, "podresources_unavailable", lambda _log, reason: reasons.append(reason)
    )
    pods = some_pods()[2:]
    uids = [uid_of(each) for each in pods]
    with a_node(boot=False, cards=4) as node:
        node.start_kubelet()
        with denied(node):
            node.start_agent()
            node.wait_until_offered()
            for each in pods:
                node.admit([each])
        node.assert_right(*uids)
        node.assert_sound()
        counts = node.decision_log.counts
        assert {key for key in counts if key.startswith("prefer")} == {"prefer by order"}
        for uid in uids:
            assert {*node.evidence_of(uid)} == {Evidence.RECORD}  # since its start
        starts = len(node.kubelet.trace.rpcs("PreStartContainer"))
        assert counts["prestart by record"] == starts
        assert len(reasons) >= counts["prefer by order"]
        assert {each.partition(":")[0] for each in reasons} == {"PodResources"}


def test_a_pod_unknown_to_every_source_is_refused_and_the_next_is_served() -> None:
    """Neither the API nor ``List`` shows it."""
    with a_node() as node, denied(node):
        node.add_static(a_pod("static", uid="uid-static"))
        eventually(node.kubelet.idle, "the kubelet has handled every pod")
        assert node.refusal_message("uid-static") == (
            "Pod was rejected: Allocate failed due to device plugin GetPreferredAllocation rpc "
            "failed with err: rpc error: code = FailedPrecondition desc = gpu-turnstile: "
            f"no container waits for {first_request(node)}; waiting: none, "
            "which is unexpected"
        )
        node.admit([a_pod("next")])
        node.assert_right("uid-next")
        node.assert_sound()


def first_request(node: Node) -> str:
    """Return the request of the first call, which the kubelet chooses at random."""
    resource = node.kubelet.trace.rpcs("GetPreferredAllocation")[0].resource
    return {"core": "10 cores", "memory": "4 memory blocks"}[resource.rpartition("-")[2]]


def test_without_the_checkpoint_everything_starts_unproven() -> None:
    """The folder of the kubelet is not mounted."""
    pods = some_pods()
    with a_node(cards=4, checkpoint=False) as node:
        for each in pods:
            node.admit([each])
        node.assert_right(*map(uid_of, pods))
        node.assert_recorded()
        starts = len(node.kubelet.trace.rpcs("PreStartContainer"))
        counts = node.decision_log.counts
        assert counts["unproven"] == starts
        assert counts["corrected"] == 0
