"""A cluster in memory with the Eviction API, and replicas of the extender that preempt in it."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

from common.apiserver.errors import Rejected, TooManyRequests
from common.apiserver.events import Notice, describe
from common.errors import Unavailable
from placement.cluster.plan import plan_pod
from placement.pods import PodInfo, read_gpu_pod
from placement.scoring import Policy
from scheduler.cluster import SchedulerApi
from scheduler.decisions import Decisions, FilterResult
from scheduler.preemption import Preemption
from scheduler.state import State
from tests.placement.cluster.builders import NAMES, Json, hint, make_node, make_pod

START = 1_800_000_000.0
CONFLICT = Rejected(409, "the object has been modified")
REFUSED = TooManyRequests("API server: 429 Cannot evict pod")
LOST = Unavailable("API server: no response in time")
Hook = Callable[[str], None]
"""Called for each request with its verb; may raise."""


def on(verb: str, action: Callable[[], object], *attempts: int) -> Hook:
    """Run *action* for each request with a verb, or only for these *attempts*, counted from 0."""
    numbers = count()

    def hook(called: str) -> None:
        if called == verb and (next(numbers) in attempts or not attempts):
            action()

    return hook


class World(SchedulerApi):
    """An API server with nodes, pods and budgets.

    Attributes:
        calls: every write, as its verb and the pod's name.
        before: called before each request.
        after: called after each write has been done.
    """

    def __init__(self, *nodes: Json) -> None:
        self.nodes = nodes
        self.pods: dict[str, Json] = {}
        self.budgets: list[Json] = []
        self.events: list[Json] = []
        self.calls: list[tuple[str, str]] = []
        self.now = START
        self.before: Hook = lambda _verb: None
        self.after: Hook = lambda _verb: None

    def restore(self) -> None:
        self.before = self.after = lambda _verb: None

    # --- what others do -------------------------------------------------------------------

    def run_pod(
        self, name: str, node: str, card: str, limits: tuple[int, int], **more: Any
    ) -> None:
        self.add(name, limits, node=node, annotations=hint(card), phase="Running", **more)

    def add(
        self,
        name: str,
        limits: tuple[int, int],
        *,
        priority: int = 0,
        policy: str = "PreemptLowerPriority",
        grace: int = 30,
        labels: Mapping[str, str] | None = None,
        owner: str = "",
        cpu: str = "100m",
        **more: Any,
    ) -> None:
        pod = make_pod(name, limits, **more)
        pod["metadata"] |= {"labels": dict(labels or {}), "resourceVersion": "1"}
        pod["spec"] |= {
            "priority": priority,
            "preemptionPolicy": policy,
            "terminationGracePeriodSeconds": grace,
        }
        for each in pod["spec"]["containers"]:  # as the API server does it
            each["resources"]["requests"] = {**each["resources"]["limits"], "cpu": cpu}
        pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False"}]
        if owner:
            pod["metadata"]["ownerReferences"] = [{"uid": owner, "controller": True}]
        self.pods[name] = pod

    def add_second_node(self, cores: int, *, priority: int = 0, cpu: str = "100m") -> None:
        """Add node ``n2`` with one card, on which pod ``n2-batch`` holds so many cores."""
        self.nodes = (*self.nodes, make_node("n2", 1))
        self.run_pod("n2-batch", "n2", "0", (cores, 8), priority=priority, cpu=cpu)

    def add_budget(self, name: str, allowed: int, **labels: str) -> None:
        self.budgets.append(
            {
                "metadata": {"name": name, "namespace": "default", "generation": 1},
                "spec": {"selector": {"matchLabels": labels}},
                "status": {"disruptionsAllowed": allowed, "observedGeneration": 1},
            }
        )

    def end_pods(self) -> list[str]:
        """Let the kubelet end every pod that is being deleted, and return their names."""
        ended = [
            name for name, each in self.pods.items() if "deletionTimestamp" in each["metadata"]
        ]
        for name in ended:
            del self.pods[name]
        return ended

    def condition(self, name: str) -> Json | None:
        conditions = self.pods[name]["status"]["conditions"]
        return next((each for each in conditions if "/" in each["type"]), None)

    def is_nominated(self, name: str) -> bool:
        condition = self.condition(name)
        return condition is not None and condition["status"] == "True"

    @property
    def evicted(self) -> list[str]:
        return [name for verb, name in self.calls if verb == "evict"]

    # --- the API ----------------------------------------------------------------------------

    def find_pod(self, _namespace: str, name: str) -> Json | None:
        self.before("get")
        return deepcopy(self.pods.get(name))

    def patch_pod_status(self, _namespace: str, name: str, patch: Json) -> None:
        self.before("patch")
        pod = self._get(name, patch["metadata"]["uid"])
        if patch["metadata"]["resourceVersion"] != pod["metadata"]["resourceVersion"]:
            raise CONFLICT
        pod["metadata"]["resourceVersion"] += "1"
        pod["status"] |= patch["status"]
        self.calls.append(("patch", name))
        self.after("patch")

    def evict(self, _namespace: str, name: str, uid: str) -> None:
        self.before("evict")
        pod = self._get(name, uid)
        for budget in self.budgets:
            wanted = budget["spec"]["selector"]["matchLabels"].items()
            if wanted <= pod["metadata"]["labels"].items():
                if not budget["status"]["disruptionsAllowed"]:
                    raise TooManyRequests("it would violate the disruption budget")
                budget["status"]["disruptionsAllowed"] -= 1
        at = datetime.fromtimestamp(
            self.now + pod["spec"]["terminationGracePeriodSeconds"], UTC
        ).isoformat()
        pod["metadata"].setdefault("deletionTimestamp", at)
        self.calls.append(("evict", name))
        self.after("evict")

    def list_budgets(self) -> list[Json]:
        self.before("list")
        return deepcopy(self.budgets)

    def create_event(self, notice: Notice, at: float) -> None:
        self.before("event")
        self.events.append(describe(notice, count=1, at=at))

    def _get(self, name: str, uid: str) -> Json:
        pod = self.pods.get(name)
        if pod is None:
            raise Rejected(404, f"pods {name} not found")
        if pod["metadata"]["uid"] != uid:
            raise Rejected(409, "the UID in the precondition does not match")
        return pod


class Replica:
    """An extender that preempts, or only filters; it sees the world when it watches."""

    def __init__(self, world: World, *, new: bool = False, preempts: bool = True) -> None:
        """Start to lead, before there is any pod, or *new* where there may be pods."""
        self.preempts = preempts
        self.world = world
        self.time = 0.0
        self.leads = True
        self.results: list[str] = []
        self.state = State(NAMES, preempts=preempts, now=lambda: world.now)
        self.decisions = Decisions(self.state)
        self.preemption = Preemption(
            self.state,
            world,
            not_leading=lambda: "" if self.leads else "another leads",
            on_result=self.results.append,
            clock=lambda: self.time,
        )
        self.state.replace_nodes(world.nodes)
        if not new:
            self.preemption.step()
        self.watch()

    def watch(self) -> None:
        known = self.state.known_pods()
        for each in self.world.pods.values():
            self.state.put_pod(each)
        uids = {each["metadata"]["uid"] for each in self.world.pods.values()}
        self.state.forget_missing(known, uids)

    def filter(self, name: str, nodes: Sequence[str] = ()) -> FilterResult:
        obj, pod = self._read(name)
        names = nodes or [each["metadata"]["name"] for each in self.world.nodes]
        found = self.decisions.filter(pod, names)
        self.preemption.refused.consider(pod, found)
        if self.preempts:
            self.preemption.preemptors.consider(obj, pod, found)
        return found

    def nodes_for(self, name: str, nodes: Sequence[str] = ()) -> Sequence[str]:
        return self.filter(name, nodes).fitting

    def try_pods(self, *names: str, nodes: Sequence[str] = ()) -> None:
        """Handle filter requests for pods that fit on none of these nodes, and do what is due."""
        for name in names:
            assert not self.nodes_for(name, nodes)
        self.wait()

    def preempt(self, name: str, **victims: list[str]) -> bool:
        """Handle a preempt request of kube-scheduler with its victims by node, and wait."""
        obj, pod = self._read(name)
        uids = {node: [f"u-{each}" for each in names] for node, names in victims.items()}
        taken_over = self.preemption.preemptors.take_over(obj, pod, uids)
        self.wait()
        return taken_over

    def wait(self, seconds: float = 1.0) -> None:
        """Let time pass, and do what is due then."""
        self.time += seconds
        self.world.now += seconds
        self.preemption.step()
        self.watch()

    def end_pods(self) -> list[str]:
        """Let the kubelet end every pod that is being deleted, and the watch show it."""
        ended = self.world.end_pods()
        self.watch()
        return ended

    def delete(self, name: str) -> None:
        del self.world.pods[name]
        self.watch()

    def assume(self, name: str, node: str) -> None:
        pod = self.state.find(f"u-{name}")
        assert pod is not None
        self.state.assume(replace(pod, node=node, chosen={"c0": (0,)}))

    def bind(self, name: str, node: str) -> None:
        """Bind a pod to a node that filter has returned, as the binder does."""
        obj, pod = self._read(name)
        allocations = self.state.allocations(node)
        assert allocations is not None
        free = self.state.snapshot_for(pod.id.uid, allocations).free
        plan = plan_pod(pod, allocations.node, free, Policy.BINPACK)
        assert plan is not None
        cards = [",".join(map(str, sorted(each.cards))) for each in plan.values()]
        obj["spec"]["nodeName"] = node
        obj["metadata"]["annotations"] |= hint(*cards)
        self.watch()

    def bind_if_possible(self, *names: str) -> None:
        """Handle filter requests for the pods that are not bound yet; bind those that fit."""
        for name in names:
            bound = self.world.pods[name]["spec"].get("nodeName")
            if not bound and (fitting := self.nodes_for(name)):
                self.bind(name, fitting[0])

    def finish(self, *names: str) -> None:
        for _ in range(12):
            self.wait(5)
            self.end_pods()
            self.bind_if_possible(*names)

    def _read(self, name: str) -> tuple[Json, PodInfo]:
        obj = self.world.pods[name]
        pod = read_gpu_pod(obj, NAMES)
        assert pod is not None
        return obj, pod


def full_node(*, cards: int = 2, prod: tuple[int, int] | None = (60, 4)) -> World:
    """A world with one node: on each card two batch pods hold 80 cores, so 20 are free.

    A pod *prod* waits that may preempt them, with so many cores and blocks.
    """
    world = World(make_node("n1", cards))
    for card in range(cards):
        for letter in "ab":
            world.run_pod(f"batch-{card}{letter}", "n1", str(card), (40, 8), priority=1)
    if prod is not None:
        world.add("prod", prod, priority=1000)
    return world


def one_card(*pods: tuple[str, int, dict[str, Any]]) -> World:
    """A world with a node of one card, pods on it by name and cores, and *prod* that waits."""
    world = World(make_node("n1", 1))
    for name, cores, more in pods:
        world.run_pod(name, "n1", "0", (cores, 8), **more)
    world.add("prod", (60, 4), priority=1000)
    return world


def preempting(world: World) -> Replica:
    """A replica with a filter request for pod *prod*, after it has looked for victims."""
    replica = Replica(world)
    replica.try_pods("prod")
    return replica
