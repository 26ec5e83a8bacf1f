"""Kueue and an extender in memory: what the controller reads and writes, and what follows."""

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any

from common.apiserver.errors import Rejected
from gates.checker import Checker
from gates.cluster import GateApi
from gates.state import GateState
from placement.cluster.nominations import timestamp
from placement.cluster.workloads import CONTROLLER
from tests.placement.cluster.builders import NAMES, Json, make_node, make_pod
from tests.scheduler.test_groups import Cluster

START = 1_800_000_000.0
MODEL = "tencent.com/gpu-model"


def template(*limits: tuple[int, int], **more: Any) -> Json:
    pod = make_pod("", *limits, uid="", **more)
    return {"metadata": {"annotations": pod["metadata"]["annotations"]}, "spec": pod["spec"]}


CHECK: Json = {"metadata": {"name": "cards"}, "spec": {"controllerName": CONTROLLER}}


def make_workload(
    name: str,
    *limits: tuple[int, int],
    count: int = 1,
    priority: int = 0,
    admitted: int | None = None,
    flavors: tuple[str, ...] = (),
    at: float = START,
    **more: Any,
) -> Json:
    """A Workload for which quota is reserved."""
    assignment: Json = {"name": "main", "count": count if admitted is None else admitted}
    assignment["flavors"] = {f"r{number}": each for number, each in enumerate(flavors)}
    since = {"status": "True", "lastTransitionTime": timestamp(at)}
    waits = {"state": "Pending", "message": "", "lastTransitionTime": timestamp(at)}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"w-{name}",
            "resourceVersion": "1",
        },
        "spec": {
            "priority": priority,
            "podSets": [{"name": "main", "count": count, "template": template(*limits, **more)}],
        },
        "status": {
            "admission": {"clusterQueue": "q", "podSetAssignments": [assignment]},
            "conditions": [{"type": "QuotaReserved", **since}],
            "admissionChecks": [{"name": "cards", **waits}],
        },
    }


class KueueApi(GateApi):
    """The API server's Workloads.

    Attributes:
        failing: errors of the next writes, each before it is done, or ``None`` for none.
    """

    def __init__(self) -> None:
        self.workloads: dict[str, Json] = {}
        self.checks: dict[str, Json] = {}
        self.failing: list[Exception | None] = []

    def patch_workload_status(self, _namespace: str, name: str, patch: Json) -> None:
        error = self.failing.pop(0) if self.failing else None
        if error is not None:
            raise error
        obj = self.workloads[name]
        if patch["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            raise Rejected(409, "the object has been modified")
        obj["status"] |= deepcopy(patch["status"])
        obj["metadata"]["resourceVersion"] += "1"

    def patch_check_status(self, name: str, patch: Json) -> None:
        self.checks[name]["status"] = patch["status"]


class Kueue(Cluster):
    """A cluster with an extender that follows workloads, Kueue, and the controller."""

    def __init__(self, *nodes: Json) -> None:
        super().__init__(*nodes)
        self.kueue = KueueApi()
        self.results: list[str] = []
        self.leads = True
        self._assigned: dict[str, Json] = {}
        self.kueue.checks["cards"] = deepcopy(CHECK)
        self.kueue.checks["cards"]["metadata"]["resourceVersion"] = "1"
        self.start()

    def start(self) -> None:
        """Start a controller, instead of the one before: that was killed."""
        self.gate = GateState(NAMES, now=lambda: self.now)
        self.checker = Checker(
            self.gate,
            self.kueue,
            not_leading=lambda: "" if self.leads else "another leads",
            on_result=self.results.append,
        )
        for name in self.nodes:
            allocations = self.state.allocations(name)
            assert allocations is not None
        self.watch()

    def watch(self) -> None:
        for each in self.node_objects:
            self.gate.put_node(each)
        for check in self.kueue.checks.values():
            self.gate.put_check(check)
        known = self.gate.known_pods()
        for pod in self.api.pods.values():
            self.gate.put_pod(pod)
        uids = {each["metadata"]["uid"] for each in self.api.pods.values()}
        self.gate.forget_missing(known, uids)
        for obj in self.kueue.workloads.values():
            self.gate.put_workload(deepcopy(obj))
            self.state.put_workload(deepcopy(obj))

    def reserve(
        self,
        name: str,
        *limits: tuple[int, int],
        count: int = 1,
        priority: int = 0,
        admitted: int | None = None,
        flavors: tuple[str, ...] = (),
        **more: Any,
    ) -> Json:
        """Create a workload, or try it again, for which quota is reserved."""
        self.kueue.workloads[name] = make_workload(
            name,
            *limits,
            count=count,
            priority=priority,
            admitted=admitted,
            flavors=flavors,
            at=self.now,
            **more,
        )
        self.watch()
        return self.kueue.workloads[name]

    def answer(self) -> None:
        """Let the controller answer, also those that it looks at twice."""
        for _ in range(2):
            self.step()
            self.watch()
            self.now += 2.5
        self.step()
        self.watch()

    def step(self) -> None:
        with ThreadPoolExecutor(1) as one_writer:
            self.checker.step(one_writer)

    def react(self) -> None:
        """Let Kueue do its next step with each workload, as version 0.19.2 does."""
        for obj in self.kueue.workloads.values():
            status, (check,) = obj["status"], obj["status"]["admissionChecks"]
            conditions = {each["type"]: each for each in status["conditions"]}
            evicted = conditions.get("Evicted", {}).get("status") == "True"
            if status.get("admission") and check["state"] == "Retry" and not evicted:
                self._set(obj, "Evicted", "True")
                count = check.get("retryCount", 0) + 1
                check |= {"state": "Pending", "message": "Reset", "retryCount": count}
            elif status.get("admission") and evicted:
                self._assigned[obj["metadata"]["name"]] = status.pop("admission")
                self._set(obj, "QuotaReserved", "False")
                self._set(obj, "Requeued", "True")
            elif not status.get("admission") and check["state"] == "Pending":
                status["admission"] = self._assigned[obj["metadata"]["name"]]
                self._set(obj, "QuotaReserved", "True")
                self._set(obj, "Evicted", "False")
        self.watch()

    def _set(self, obj: Json, kind: str, value: str) -> None:
        others = [each for each in obj["status"]["conditions"] if each["type"] != kind]
        made = {"type": kind, "status": value, "lastTransitionTime": timestamp(self.now)}
        obj["status"]["conditions"] = [*others, made]
        obj["metadata"]["resourceVersion"] += "1"

    def refuse(self, *names: str) -> None:
        """Let workloads without cards lose their quota, as Kueue and the controller do it."""
        self.answer()
        for _ in range(2):
            self.react()
            self.step()
            self.watch()
        assert [self.check(name)["state"] for name in names] == ["Retry"] * len(names)

    def end(self, *names: str) -> None:
        """Let workloads and their pods end."""
        for name in names:
            for pod in [each for each in self.api.pods if each.startswith(f"{name}-")]:
                del self.api.pods[pod]
                self.state.drop_pod(f"u-{pod}")
            self._set(self.kueue.workloads[name], "Finished", "True")
        self.watch()

    def has_quota(self, name: str) -> bool:
        return "admission" in self.kueue.workloads[name]["status"]

    def check(self, name: str) -> Json:
        (found,) = self.kueue.workloads[name]["status"]["admissionChecks"]
        assert isinstance(found, dict)
        return found

    def states(self) -> list[str]:
        return [self.check(name)["state"] for name in self.kueue.workloads]

    def run_workload(self, name: str) -> list[str]:
        """Create the pods of an admitted workload and bind them; return those without a card."""
        workload, failed = self.kueue.workloads[name], []
        assignment = workload["status"]["admission"]["podSetAssignments"][0]
        spec = workload["spec"]["podSets"][0]["template"]
        for number in range(assignment["count"]):
            pod = f"{name}-{number}"
            self.api.pods[pod] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": pod,
                    "namespace": "default",
                    "uid": f"u-{pod}",
                    "annotations": {
                        **spec["metadata"]["annotations"],
                        **self.check(name)["podSetUpdates"][0]["annotations"],
                    },
                },
                "spec": deepcopy(spec["spec"]),
                "status": {"phase": "Pending"},
            }
            self.state.put_pod(self.api.pods[pod])
            told = self.ask(pod)
            if not told or self.bind(pod, told[0]):
                failed.append(pod)
        self.watch()
        return failed

    @property
    def node_objects(self) -> tuple[Json, ...]:
        return self.objects


def labelled(name: str, cards: int, model: str) -> Json:
    node = make_node(name, cards)
    node["metadata"]["labels"] = {MODEL: model}
    return node
