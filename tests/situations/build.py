"""Pods, nodes and checks of the situation tests."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from contract.allocation import Evidence
from contract.names import Names
from contract.stamps import OrderStamp
from simulator.burst import container
from simulator.burst import pod as bare_pod
from simulator.cards import cards_file
from simulator.kubelet.trace import TraceEvent
from simulator.node.judge import Attribution, JudgedCall
from simulator.node.node import SimulatedNode
from simulator.node.options import NodeOptions
from tests.agent.fakes import eventually

Json = dict[str, Any]

NAMES = Names()
CREATED = "2025-01-15T08:00:00Z"
BEGAN_NS = 1_736_928_000_000_000_000
NEVER_ENDS = (3600.0, 3600.0)
"""``grace_s`` of a kubelet whose deleted pods run until the test is over."""


def a_node(*, seed: int = 0, cards: int = 2, memory: str = "8Gi", **options: Any) -> SimulatedNode:
    """A node of small cards (32 blocks each by default) whose ``List`` has no limit."""
    options = {
        "list_rate": 10_000.0,
        "list_burst": 1_000,
        "document": cards_file(cards, memory),
        **options,
    }
    return SimulatedNode(NodeOptions(seed=seed, **options))


def gpu(name: str = "c0", cores: int = 10, memory: int = 4, **fields: Any) -> Json:
    """A container that requests GPUs."""
    return container(name, cores, memory, NAMES, **fields)


def sidecar(name: str = "sidecar", cores: int = 10, memory: int = 4) -> Json:
    """A restartable init container."""
    return gpu(name, cores, memory, restartPolicy="Always")


def plain(name: str = "plain") -> Json:
    """A container that requests no GPU."""
    return {"name": name, "image": "registry.example/log:1", "resources": {}}


def a_pod(
    name: str,
    *containers: Json,
    init: Iterable[Json] = (),
    uid: str = "",
    at: int = 0,
    created: str = CREATED,
    stamped: bool = True,
    annotations: Mapping[str, str] | None = None,
) -> Json:
    """A pod after webhook, scheduler and API server; with one container by default.

    Args:
        name: of the pod.
        containers: its containers.
        init: its init containers and sidecars.
        uid: by default ``uid-<name>``.
        at: its rank by the stamps.
        created: when.
        stamped: whether the webhook has stamped it.
        annotations: more of them, or others.
    """
    spec: Json = {"initContainers": list(init)} if init else {}
    made = bare_pod(name, containers or (gpu(),), **spec)
    stamp = OrderStamp(BEGAN_NS + at * 1_000_000, "test", 0)
    stamps = {
        NAMES.predicate_time: str(stamp.time_ns),
        NAMES.admission_order: stamp.encode(),
        NAMES.bind_order: stamp.encode(),
        NAMES.predicate_node: "node",
        NAMES.gpu_assigned: "false",
    }
    made["metadata"] |= {
        "uid": uid or f"uid-{name}",
        "creationTimestamp": created,
        "annotations": (stamps if stamped else {}) | dict(annotations or {}),
    }
    made["spec"]["nodeName"] = "node"
    made["status"] = {"phase": "Pending"}
    return made


def uid_of(manifest: Json) -> str:
    """A pod's UID."""
    return str(manifest["metadata"]["uid"])


def calls_of(node: SimulatedNode, uid: str) -> list[JudgedCall]:
    """Every ``Allocate`` made for one pod, judged."""
    return [each for each in node.admissions() if each.event.pod_uid == uid]


def evidence_of(node: SimulatedNode, uid: str) -> Counter[Evidence]:
    """Count the evidence in one pod's annotation."""
    return Counter(each.evidence for each in node.recorded(uid).values())


def assert_no_guess(node: SimulatedNode, *uids: str) -> None:
    """Check that the annotations of these pods have no guess."""
    for uid in uids:
        found = evidence_of(node, uid)
        assert found, uid
        assert Evidence.ORDER not in found, uid


def preferred_for(node: SimulatedNode, uid: str) -> list[TraceEvent]:
    """Every preferred call made for one pod."""
    rpcs = node.kubelet.trace.rpcs("GetPreferredAllocation")
    return [each for each in rpcs if each.pod_uid == uid]


def refusal_message(node: SimulatedNode, uid: str) -> str:
    """Return ``status.message`` of a pod; empty if there is none."""
    return str((node.kubelet.status(uid) or {}).get("message", ""))


def assert_right(node: SimulatedNode, *uids: str) -> None:
    """Check that every call of these pods had the right target, and their annotations."""
    calls, held = defaultdict(list), defaultdict(set)
    for each in node.admissions():
        calls[each.event.pod_uid].append(each.verdict)
    for one in node.kubelet.held_devices():
        held[one.pod_uid].add(one.container)
    for uid in uids:
        assert {*calls[uid]} == {Attribution.RIGHT}, f"{uid}: {calls_of(node, uid)}"
        assert {*node.recorded(uid)} == held[uid], f"{uid}: {refusal_message(node, uid)}"


def assert_sound(node: SimulatedNode) -> None:
    """Check invariants: no wrong target, no slot allocated twice, equal annotations."""
    wrong = [each for each in node.admissions() if each.verdict is Attribution.WRONG]
    assert wrong == [], wrong  # pytest explains only assertions of test modules
    assert node.double_grants() == 0
    assert node.differences() == [], node.differences()
    wait_for(lambda: _counts_right(node))


def _counts_right(node: SimulatedNode) -> bool:
    """Return whether the agent's counts equal the kubelet's, after a search for ended pods.

    The agent notices a pod that ended after its last call only by this search.
    """
    if node.miscounts():
        node.notice_ended_pods()
    return node.miscounts() == []


def held_device_ids(node: SimulatedNode, uid: str, container: str = "") -> set[tuple[str, str]]:
    """Return what a pod, or one container of it, holds by the kubelet's state: resource and ID."""
    return {
        (each.resource, device_id)
        for each in node.kubelet.held_devices()
        if each.pod_uid == uid and container in ("", each.container)
        for device_id in each.ids
    }


def cards_of(node: SimulatedNode, uid: str, container: str = "") -> set[str]:
    """Return the cards on which a pod, or one container of it, holds slots."""
    return {each.partition("::")[0] for _, each in held_device_ids(node, uid, container)}


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until *condition* is truthy."""
    eventually(condition, str(condition))
