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


def gpu(name: str = "c0", cores: int = 10, memory: int = 4, **fields: Any) -> Json:
    return container(name, cores, memory, NAMES, **fields)


def sidecar(name: str = "sidecar", cores: int = 10, memory: int = 4) -> Json:
    return gpu(name, cores, memory, restartPolicy="Always")


def plain(name: str = "plain") -> Json:
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
    """Return a pod after webhook, scheduler and API server; with one container by default.

    *init* has sidecars, too; *at* is its rank by the stamps; *stamped*: by the webhook.
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
    return str(manifest["metadata"]["uid"])


class Node(SimulatedNode):
    """A simulated node, and what a test checks of it."""

    def calls_of(self, uid: str) -> list[JudgedCall]:
        """Return every ``Allocate`` made for one pod, judged."""
        return [each for each in self.admissions() if each.event.pod_uid == uid]

    def evidence_of(self, uid: str) -> Counter[Evidence]:
        """Count the evidence in one pod's annotation."""
        return Counter(each.evidence for each in self.recorded(uid).values())

    def preferred_for(self, uid: str) -> list[TraceEvent]:
        rpcs = self.kubelet.trace.rpcs("GetPreferredAllocation")
        return [each for each in rpcs if each.pod_uid == uid]

    def refusal_message(self, uid: str) -> str:
        """Return ``status.message`` of a pod; empty if there is none."""
        return str((self.kubelet.status(uid) or {}).get("message", ""))

    def held_device_ids(self, uid: str, container: str = "") -> set[tuple[str, str]]:
        """Return resource and ID of what a pod, or one container of it, holds in the kubelet."""
        return {
            (each.resource, device_id)
            for each in self.kubelet.held_devices()
            if each.pod_uid == uid and container in ("", each.container)
            for device_id in each.ids
        }

    def cards_of(self, uid: str, container: str = "") -> set[str]:
        return {each.partition("::")[0] for _, each in self.held_device_ids(uid, container)}

    def assert_no_guess(self, *uids: str) -> None:
        for uid in uids:
            found = self.evidence_of(uid)
            assert found, uid
            assert Evidence.ORDER not in found, uid

    def assert_right(self, *uids: str) -> None:
        """Check that every call of these pods had the right target, and their annotations."""
        calls, held = defaultdict(list), defaultdict(set)
        for each in self.admissions():
            calls[each.event.pod_uid].append(each.verdict)
        for one in self.kubelet.held_devices():
            held[one.pod_uid].add(one.container)
        for uid in uids:
            assert {*calls[uid]} == {Attribution.RIGHT}, f"{uid}: {self.calls_of(uid)}"
            assert {*self.recorded(uid)} == held[uid], f"{uid}: {self.refusal_message(uid)}"

    def assert_recorded(self) -> None:
        """Check that no slot was allocated twice, and that annotations are right."""
        assert self.double_grants() == 0
        assert self.differences() == [], self.differences()

    def assert_counted(self) -> None:
        """Check counts as well."""
        self.assert_recorded()
        assert self.miscounts() == [], self.miscounts()

    def assert_sound(self) -> None:
        """Check invariants: no wrong target, no slot allocated twice, equal annotations."""
        wrong = [each for each in self.admissions() if each.verdict is Attribution.WRONG]
        assert wrong == [], wrong  # pytest explains only assertions of test modules
        self.assert_recorded()
        wait_for(self._counts_right)

    def _counts_right(self) -> bool:
        """Search for ended pods first: what ended after the last call is noticed only so."""
        if self.miscounts():
            self.notice_ended_pods()
        return self.miscounts() == []


def wait_for(condition: Callable[[], object]) -> None:
    eventually(condition, str(condition))


def a_node(*, seed: int = 0, cards: int = 2, memory: str = "8Gi", **options: Any) -> Node:
    """Return a node of small cards (32 blocks each by default) whose ``List`` has no limit."""
    options = {
        "list_rate": 10_000.0,
        "list_burst": 1_000,
        "document": cards_file(cards, memory),
        **options,
    }
    return Node(NodeOptions(seed=seed, **options))
