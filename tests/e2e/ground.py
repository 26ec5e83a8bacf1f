"""A node of the cluster, pods on it, the kubelet's ``List``, and what of these must agree."""

import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from agent.allocator.interfaces import ListedPod
from agent.allocator.slots import Slot
from agent.enforcement.vcuda.config import VcudaConfig
from agent.errors import Unavailable
from agent.kubelet.podresources import PodResources
from contract.allocation import Allocation, decode_allocations
from contract.demand import ContainerDemand, ContainerKind
from contract.inventory import Amounts, decode_inventory
from contract.names import Names
from contract.requests import read_pod_demand
from contract.resource import Resource
from contract.runtimes import runtime_of
from contract.wishes import read_wishes
from simulator.node.limits import own_limits
from tests.e2e.cluster import Cluster, Json
from tests.e2e.manifests import Maker, limits, visible
from tests.e2e.settings import Settings
from tests.e2e.stream import MOST, Stream

BLOCK_BYTES = 256 << 20
INTERRUPTED_STARTS: Mapping[str, tuple[str, ...]] = {
    "containerd": (
        "failed to start shim",
        "failed to create shim",
        "signal: killed",
        "context canceled",
    ),
    "cri-o": (),  # it goes on with the start
}
"""What each container runtime reports of a start during which its client ended (K35)."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One container, by kubelet, annotation and its own log, with limits of *limits_of*."""

    pod: str
    container: ContainerDemand
    held: Mapping[Resource, frozenset[str]]
    recorded: Allocation | None
    visible: tuple[str, ...] | None
    uid: str = ""
    limits: VcudaConfig | None = None
    core_limit: int | None = None
    limits_of: str = ""
    ended: bool = False
    """Whether its pod has ended: ``List`` does not show it any more."""

    def __str__(self) -> str:
        return f"{self.pod} {self.container.name}"


def findings(
    containers: Sequence[Seen], *, init_recorded: bool = True, enforced: bool = True
) -> list[str]:
    found = [
        f"{each}: {wrong}"
        for each in containers
        for wrong in (*_wrong_limits(each, enforced), *_wrong(each, init_recorded))
    ]
    owners: dict[tuple[Resource, str], Seen] = {}
    for each in containers:
        for resource, ids in each.held.items():
            for device_id in sorted(ids):
                other = owners.setdefault((resource, device_id), each)
                if other is not each:
                    found.append(f"{device_id} of {resource} is held by {other} and {each}")
    return found


def _wrong(seen: Seen, init_recorded: bool) -> list[str]:
    demand, recorded = seen.container.demand, seen.recorded
    init = seen.container.kind is ContainerKind.INIT
    wrong = []
    if seen.visible is None:
        wrong.append("has not printed its cards")
    if not init and not seen.ended:
        cards = {
            resource: {Slot.parse(each).card for each in seen.held.get(resource, ())}
            for resource in Resource
        }
        for resource in Resource:
            held = len(seen.held.get(resource, ()))
            if held != resource.count_in(demand):
                wrong.append(f"requests {resource.count_in(demand)} of {resource}, holds {held}")
        if demand.memory and cards[Resource.MEMORY] != cards[Resource.CORE]:
            wrong.append(
                f"has its cores on {sorted(cards[Resource.CORE])} "
                f"and its memory on {sorted(cards[Resource.MEMORY])}"
            )
        if seen.visible is not None and set(seen.visible) != cards[Resource.CORE]:
            wrong.append(
                f"sees {seen.visible}, the kubelet allocated {sorted(cards[Resource.CORE])}"
            )
        for resource in Resource if demand.is_share else ():
            parts = Counter(Slot.parse(each).card for each in seen.held.get(resource, ()))
            if tuple(sorted(parts.values(), reverse=True)) != demand.per_card(resource):
                wrong.append(f"requests {demand.per_card(resource)} of {resource}, has {parts}")
    if recorded is None:
        if init_recorded or not init:
            wrong.append("is not in the annotation")
        return wrong
    if (recorded.cores, recorded.memory_blocks) != (demand.cores, demand.memory):
        wrong.append(
            f"requests {demand.cores} cores and {demand.memory} blocks, "
            f"{recorded.cores} cores and {recorded.memory_blocks} blocks are in the annotation"
        )
    if seen.visible is not None and recorded.cards != seen.visible:
        wrong.append(f"sees {seen.visible}, the annotation has {recorded.cards}")
    return wrong


def _wrong_limits(seen: Seen, enforced: bool) -> list[str]:
    container = replace(seen.container, name=seen.limits_of or seen.container.name)
    own = own_limits(seen.uid, container, block=BLOCK_BYTES) if enforced else None
    if own is not None and seen.core_limit is not None:
        own = replace(own, hard_limit=False, limit=seen.core_limit)
    return [] if seen.limits == own else [f"found {seen.limits}"]


SETTLE_SECONDS = 150.0
_CLIENTS = 16
_NO_PLUGIN_SECONDS = 60.0
_RESTART_SECONDS = 180.0
GroundT = TypeVar("GroundT", bound="Ground")


def wait(
    what: str, condition: Callable[[], object], *, within: float = 60.0, pause: float = 0.1
) -> None:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {within:g} s")
        time.sleep(pause)


@contextmanager
def occupied(ground: GroundT) -> Iterator[GroundT]:
    try:
        ground.occupy()
        yield ground
    finally:
        ground.leave()
        ground.disconnect()


class Ground:
    """A node and a namespace, for processes and for installations."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        *,
        node: str,
        report: Callable[[str], None],
        enforced: bool,
    ) -> None:
        self.settings = settings
        self.cluster = cluster
        self.node = node
        self.report = report
        self.names = Names()
        self.make = Maker(node=node, image=settings.image, names=self.names)
        self._enforced = enforced
        self._record = PodResources(
            settings.pod_resources_socket,
            resources={self.names.core: Resource.CORE, self.names.memory: Resource.MEMORY},
        )

    def occupy(self) -> None:
        """Make the namespace; the node must not have an agent yet."""
        if self.settings.topology:
            policy = self.cluster.topology_policy(self.node)
            assert policy == self.settings.topology, f"the kubelet's policy is {policy}"
            self.report(f"topologyManagerPolicy of the kubelet: {policy}")
        wait(
            f"node {self.node} has no other agent that offers {self.names.core}",
            lambda: self.offered() == 0,
            within=_NO_PLUGIN_SECONDS,
        )
        self.cluster.create_namespace()
        wait("the namespace's service account", self.cluster.has_service_account)

    def leave(self) -> None:
        if self.cluster.has_namespace():
            self.clear()
            self.cluster.delete_namespace()
            wait("the namespace's end", lambda: not self.cluster.has_namespace(), within=120)

    def disconnect(self) -> None:
        self._record.close()
        self.cluster.close()

    def clear(self) -> None:
        """Delete all pods and wait until the kubelet has forgotten them."""
        self.cluster.delete_pods()
        wait("the pods' end", lambda: not self.cluster.pods() and not self.listed(), within=120)

    def kubelet_version(self) -> str:
        return str(self.cluster.node(self.node)["status"]["nodeInfo"]["kubeletVersion"])

    def was_interrupted(self, words: str) -> bool:
        """Return whether this node's container runtime says that a start was interrupted."""
        runtime = runtime_of(self.cluster.node(self.node)).partition("://")[0]
        return any(text in words for text in INTERRUPTED_STARTS.get(runtime, ()))

    def free_amounts(self) -> Sequence[Amounts]:
        """Return what is free on each card by the agent's word, up to ten seconds old."""
        notes = self.cluster.node(self.node)["metadata"].get("annotations") or {}
        return decode_inventory(notes[self.names.gpu_cards]).free

    def offered(self) -> int:
        allocatable = self.cluster.node(self.node)["status"].get("allocatable", {})
        return int(allocatable.get(self.names.core, "0"))

    def listed(self) -> dict[tuple[str, str], dict[Resource, frozenset[str]]]:
        """Read ``List``: (pod, container) -> device IDs."""
        return {
            (pod.name, container.name): dict(container.held)
            for pod in self._pods()
            if pod.namespace == self.cluster.namespace
            for container in pod.containers
        }

    def _pods(self) -> tuple[ListedPod, ...]:
        deadline = time.monotonic() + 30
        while True:
            try:
                return self._record.list(within=5)
            except Unavailable as error:  # the kubelet may just be restarting
                if time.monotonic() > deadline:
                    raise AssertionError(f"no List from the kubelet: {error}") from error
                time.sleep(0.2)

    def allocations(self, pod: Json) -> dict[str, Allocation]:
        notes = pod["metadata"].get("annotations") or {}
        return decode_allocations(notes.get(self.names.gpu_allocation, "{}"))

    def submit(self, pods: Sequence[Json]) -> list[Future[Json]]:
        pool = ThreadPoolExecutor(_CLIENTS)
        created = [pool.submit(self.cluster.create, each) for each in pods]
        pool.shutdown(wait=False)
        return created

    def stream(self, *, most: int = MOST) -> Stream:
        """Create five pods a second, each of which runs for a second."""
        return Stream(
            lambda name: self.cluster.create(self.make.short(name)), self.cluster.pods, most=most
        )

    def run_timed(self, count: int, midway: Callable[[], None]) -> str:
        began = time.monotonic()
        made = self.submit([self.make.single(f"timed-{at}", 5, 4) for at in range(count)])
        midway()
        pods = self.settle(made)
        seconds = time.monotonic() - began
        assert self.refused(pods) == {}
        return f"the last of {count} pods ran after {seconds:.1f} s"

    def run(self, *pods: Json) -> dict[str, Json]:
        return self.settle(self.submit(pods))

    def settle(self, creating: Iterable[Future[Json]]) -> dict[str, Json]:
        """Wait until all are created, and each runs or was refused."""
        return self.settled([each.result(60)["metadata"]["name"] for each in creating])

    def settled(self, names: Iterable[str]) -> dict[str, Json]:
        """Wait until each of these pods runs and has its annotation, or was refused."""
        wanted = sorted(names)
        found: dict[str, Json] = {}

        def settled() -> bool:
            listed = self.cluster.pods()
            found.update({name: listed[name] for name in wanted if name in listed})
            return all(name in found and self._is_settled(found[name]) for name in wanted)

        try:
            wait("pods", settled, within=SETTLE_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self._unsettled(wanted, found)}") from error
        return found

    def _is_settled(self, pod: Json) -> bool:
        if phase(pod) == "Failed":
            return True
        recorded = self.allocations(pod)
        # A pod is Running once any container runs; the others' logs are waited for later.
        return phase(pod) == "Running" and all(
            each.name in recorded or each.kind is ContainerKind.INIT for each in self._requests(pod)
        )

    def _requests(self, pod: Json) -> tuple[ContainerDemand, ...]:
        return read_pod_demand(pod, self.names)[0].containers

    def _unsettled(self, wanted: Sequence[str], found: dict[str, Json]) -> str:
        late = [n for n in wanted if n not in found or not self._is_settled(found[n])]
        status = found[late[0]].get("status") if late and late[0] in found else "not there"
        return f"{len(late)} not settled, such as {late[:3]}: {status}"

    def audit(self, what: str, pods: dict[str, Json], *, init_recorded: bool = True) -> list[Seen]:
        """Compare kubelet, annotation and log of every running container, and report it."""
        running = {name: pod for name, pod in pods.items() if phase(pod) == "Running"}
        seen = self.look(running)
        wrong = self.findings(seen, init_recorded=init_recorded)
        evidence = Counter(each.recorded.evidence.value for each in seen if each.recorded)
        self.report(
            f"{what}: {len(seen)} containers of {len(running)} pods, {len(wrong)} findings; "
            f"evidence: {dict(sorted(evidence.items()))}"
        )
        assert not wrong, "\n".join(wrong)
        return seen

    def look(self, pods: Mapping[str, Json], *, patient: bool = True) -> list[Seen]:
        """Read kubelet, annotation and log of every container; if *patient*, wait for the logs."""
        requests = [(name, each) for name, pod in pods.items() for each in self._requests(pod)]
        read = self.wait_for_log if patient else self.cluster.log
        with ThreadPoolExecutor(_CLIENTS) as pool:
            logs = list(pool.map(lambda each: read(each[0], each[1].name), requests))
        held = self.listed()
        wishes = {
            name: read_wishes(pod["metadata"].get("annotations") or {}, self.names)[0]
            for name, pod in pods.items()
        }
        return [
            Seen(
                pod=name,
                container=container,
                held=held.get((name, container.name), {}),
                recorded=self.allocations(pods[name]).get(container.name),
                visible=visible(log),
                uid=pods[name]["metadata"]["uid"],
                limits=limits(log),
                core_limit=wishes[name].core_limit if container.demand.is_share else None,
                limits_of=self.limits_of(pods[name], container.name),
                ended=phase(pods[name]) == "Succeeded",
            )
            for (name, container), log in zip(requests, logs, strict=True)
        ]

    def findings(self, seen: Sequence[Seen], *, init_recorded: bool = True) -> list[str]:
        return findings(seen, init_recorded=init_recorded, enforced=self._enforced)

    def check(self, what: str, pods: dict[str, Json], *, init_recorded: bool = True) -> list[Seen]:
        assert self.refused(pods) == {}
        return self.audit(what, pods, init_recorded=init_recorded)

    def limits_of(self, _pod: Json, container: str) -> str:
        return container

    def wait_for_log(self, pod: str, container: str) -> str:
        """Return a container's log once it names its cards, or as it is after a minute."""
        deadline = time.monotonic() + 60
        while True:
            log = self.cluster.log(pod, container)
            if visible(log) is not None or time.monotonic() > deadline:
                return log
            time.sleep(0.2)

    def restart_kubelet(self) -> None:
        self.execute(self.settings.restart_kubelet)

    def kill_kubelet(self) -> None:
        self.execute(self.settings.kill_kubelet)

    def restart_runtime(self) -> None:
        self.execute(self.settings.restart_runtime)

    def execute(self, command: Sequence[str]) -> None:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_RESTART_SECONDS,
            check=False,
            text=True,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}"

    def refused(self, pods: dict[str, Json]) -> dict[str, str]:
        return {
            name: str(pod["status"].get("message"))
            for name, pod in sorted(pods.items())
            if phase(pod) == "Failed"
        }

    def wait_for_event(self, pod: str, reason: str) -> None:
        wait(
            f"the event {reason} on {pod}",
            lambda: reason in {each["reason"] for each in self.cluster.events(pod)},
        )


def phase(pod: Json) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def was_admitted_again(pod: Json, words: str) -> bool:
    """Return whether a restarted kubelet admitted a running pod without our devices (K11)."""
    inits = pod["spec"].get("initContainers") or ()
    ended = any(not each.get("restartPolicy") and each.get("resources") for each in inits)
    return ended and "no healthy devices present" in words


def is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def choose_node(nodes: Sequence[Json], wanted: str | None, host: str) -> str | None:
    known: dict[str, set[str]] = {
        each["metadata"]["name"]: {
            each["metadata"]["name"],
            *(a["address"] for a in each.get("status", {}).get("addresses", ())),
        }
        for each in nodes
    }
    if wanted is not None:
        return wanted if wanted in known else None
    if len(known) == 1:
        return next(iter(known))
    return next((name for name, also in sorted(known.items()) if host in also), None)
