"""The node: the simulated kubelet with our agent, and the faults of both."""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Self

import grpc

from agent.allocator.allocator import Allocator
from agent.allocator.interfaces import ListedPod
from agent.allocator.slots import DeviceTable
from agent.app.container_setup import EnforcerRunner
from agent.cards.inventory import parse_inventory
from agent.enforcement.none import NoEnforcement
from agent.enforcement.vcuda.backend import Vcuda
from agent.enforcement.vcuda.config import Hardware
from agent.errors import Unavailable
from agent.holdings.interfaces import Enforcer
from agent.host.state_file import StateFile
from agent.injection.inject import Injection, inject
from agent.kubelet.checkpoint import CheckpointFile
from agent.kubelet.kubelet_instance import KubeletInstance
from agent.kubelet.podresources import PodResources
from agent.kubelet.registration import Registrar, RegistrationSeconds
from agent.kubelet.server import DevicePluginService
from agent.runtime.cgroups import Cgroups
from agent.runtime.cri import Cri
from contract.allocation import Allocation
from contract.inventory import Inventory
from contract.names import Names
from contract.requests import read_pod_demand
from contract.resource import Resource
from placement.pods import PodInfo, read_pod
from simulator.audit import ContainerKey, Holdings, held_twice, unequal_records
from simulator.cards import cards_file
from simulator.kubelet.errors import TurnedAway
from simulator.kubelet.node import Kubelet
from simulator.kubelet.settings import Settings
from simulator.kubelet.staticpods import mirror_of
from simulator.node.api import NODE, InMemoryApi, InMemoryWatch, PodObject
from simulator.node.judge import JudgedCall, decisions_in_recording, judge
from simulator.node.killable import (
    AgentRun,
    CallStage,
    KillableQueue,
    KillableService,
    KillSwitch,
    killable_log,
)
from simulator.node.limits import RunningContainer, wrong_limits
from simulator.node.options import NodeOptions
from simulator.node.recording_log import RecordingLog

Json = dict[str, Any]

BLOCK = 256 << 20
_SETTLE_S = 120.0
_REGISTRATION = RegistrationSeconds(shortest_pause=0.05, longest_pause=0.05)
"""Without longer pauses: a node may go through hundreds of restarts."""

_VETOES = 50
"""After so many refused starts of one pod, later ones are expected to be refused too."""
_POLL_S = 0.01


class NodeStuck(Exception):
    """The node did not settle in time; the message has what it waited for."""


def deny(_resource: str) -> None:
    """Deny a call to the kubelet, as file permissions do for users other than root."""
    raise TurnedAway("permission denied", grpc.StatusCode.PERMISSION_DENIED)


class _PatientPodResources(PodResources):
    """``List`` of a running kubelet, waited for until a slow machine has connected to it."""

    def __init__(
        self, socket: Path, resources: Mapping[str, Resource], is_serving: Callable[[], bool]
    ) -> None:
        super().__init__(socket, resources=resources)
        self._is_serving = is_serving

    def list(self, *, within: float) -> tuple[ListedPod, ...]:
        """Return the listed pods; retry while a running kubelet cannot be reached."""
        deadline = time.monotonic() + within
        while True:
            try:
                return super().list(within=deadline - time.monotonic())
            except Unavailable as error:
                if "UNAVAILABLE" not in str(error) or not self._is_serving():
                    raise
            time.sleep(_POLL_S)


class SimulatedNode:
    """A simulated node with our agent on it.

    Attributes:
        agent: its agent; ``None`` while none runs.
        manifests: the pods that the API server has for it, by UID.
        api: the API server: those pods, and the mirror pods of static pods.
        watch: the agent's watch of them.
        kubelet_dir: where the agent looks for the kubelet's checkpoint.
        state: the agent's folder on disk.
    """

    def __init__(self, options: NodeOptions, names: Names | None = None) -> None:
        """Prepare; :meth:`__enter__` starts everything."""
        self._options = options
        self._names = names or Names()
        self._resources = {
            self._names.core: Resource.CORE,
            self._names.memory: Resource.MEMORY,
        }
        document = options.document or cards_file(options.cards, "80Gi")
        self._inventory: Inventory = parse_inventory(document)
        self._table = DeviceTable(self._inventory, BLOCK)
        # Sockets need a short path: 107 bytes at most.
        self._folder = tempfile.TemporaryDirectory(prefix="gt-node-", dir="/tmp")
        root = Path(self._folder.name)
        self.plugin_dir = root / "p"
        self.kubelet_dir = self.plugin_dir if options.checkpoint else root / "elsewhere"
        self.record_socket = root / "r.sock"
        self.state = root / "s"
        self.kubelet = Kubelet(
            Settings(
                **{
                    "node_name": NODE,
                    "root_dir": root / "k",
                    "plugin_dir": self.plugin_dir,
                    "pod_resources_socket": self.record_socket,
                    "seed": options.seed,
                    "list_rate": options.list_rate,
                    "list_burst": options.list_burst,
                    "plugin_wait_s": _SETTLE_S,
                    "init_run_s": (0.001, 0.005),
                    "grace_s": (0.001, 0.01),
                    "start_retry_s": 0.05,
                    **options.kubelet,
                }
            )
        )
        if not options.witness:
            self.kubelet.settings.misbehavior.at["List"] = deny
        self.api: InMemoryApi[PodObject] = InMemoryApi(self._names, self._inventory)
        self.watch = InMemoryWatch(self.api, self._names, count().__next__)
        self.decision_log = RecordingLog(lambda: time.time() * 1000)
        self.manifests: dict[str, Json] = {}
        self._static: dict[str, Json] = {}
        self._mirrors: dict[str, str] = {}
        self._shown_running: set[str] = set()
        self.agent: AgentRun | None = None

    def __enter__(self) -> Self:
        """Start the kubelet and the agent, and wait until both resources are offered."""
        if self._options.boot:
            self.start_kubelet()
            self.start_agent()
            self.wait_until_offered()
        return self

    def __exit__(self, *_: object) -> None:
        self.end_agent()
        self.kubelet.stop()
        self._folder.cleanup()

    def views(self) -> Sequence[PodInfo]:
        """Return the pods in the agent's cache."""
        return self.watch.cache.pods()

    # --- what happens on the node -----------------------------------------------------

    def bind(self, *manifests: Json) -> None:
        """Bind pods here; the kubelet gets them as one batch."""
        behind = self._options.cache_behind
        for each in manifests:
            self.manifests[each["metadata"]["uid"]] = each
            self.api.add(PodObject(each))
            if behind:
                self.api.hanging = bool(len(self.manifests) % behind)
            self.watch.deliver()
        self.kubelet.add_pods(*manifests)

    def admit(self, manifests: Sequence[Json]) -> list[JudgedCall]:
        """Bind pods and wait until each runs or was rejected; return all judged calls."""
        for each in manifests:
            self.bind(each)
        self.settle()
        return self.admissions()

    def delete(self, uid: str) -> None:
        """Delete a pod; it leaves the API when it has ended."""
        manifest = self.manifests[uid]
        manifest["metadata"]["deletionTimestamp"] = "2025-01-15T08:01:00Z"
        self.kubelet.add_pods(manifest)

    def remove(self, uid: str) -> None:
        """Delete a pod by force: it leaves the API at once."""
        manifest = self.manifests.pop(uid)
        pod = self.api.find(uid)
        if pod is not None:
            self.api.remove(pod)
            self.watch.deliver()
        self.kubelet.remove_pods(manifest)

    def add_static(self, manifest: Json) -> str:
        """Add a static pod and return its UID; :meth:`mirror` creates its mirror pod."""
        uid = self.kubelet.add_static_pod(manifest)
        self._static[uid] = manifest
        return uid

    def mirror(self, uid: str) -> str:
        """Create a static pod's mirror pod and return the mirror pod's UID."""
        pod = next(each for each in self.kubelet.instance.pods() if each.uid == uid)
        shown = mirror_of(pod)
        self._mirrors[uid] = shown["metadata"]["uid"] = f"mirror-of-{uid}"
        self.api.add(PodObject(shown))
        self.watch.deliver()
        self.kubelet.add_pods(shown)
        return self._mirrors[uid]

    def sweep(self) -> None:
        """Report pods to the API: rejected ones, running ones, and ones that have ended."""
        self.sweep_statuses()
        for uid in self.kubelet.trace.pods("end") & self.manifests.keys():
            if "deletionTimestamp" in self.manifests[uid]["metadata"]:
                self.remove(uid)
            else:
                self._show(uid, "Succeeded")

    def sweep_statuses(self) -> None:
        """Report pods to the API: rejected ones, and ones whose containers all run."""
        self._show_running()
        for uid in sorted(self.kubelet.trace.pods("reject")):
            self._show(uid, "Failed")

    def _show(self, uid: str, phase: str) -> None:
        pod = self.api.find(uid)
        if pod is not None and pod.set_phase(phase):
            self.api.changed(pod)
        self.watch.deliver()

    def catch_up(self) -> None:
        """Continue the agent's watch, after ``api.hanging``."""
        self.api.hanging = False
        self.watch.deliver()

    def restart_agent(self) -> None:
        """End the agent and start another, which finds the saved state file."""
        self.end_agent()
        # What the kubelet offers must be the new agent's, not yet the old one's.
        self._wait(self._withdrawn, "the kubelet to see that the plugins are gone")
        self.start_agent()
        self.wait_until_offered()

    def end_agent(self) -> None:
        """End the agent; its sockets go with it."""
        agent, self.agent = self.agent, None
        if agent is not None:
            agent.end()

    def kill_agent(self) -> None:
        """Kill the agent as SIGKILL does: calls in flight are aborted, its sockets stay.

        Return when the kubelet has noticed the broken connections: it does so at once, long before
        another agent could be running.
        """
        agent, self.agent = self.agent, None
        if agent is not None:
            agent.kill()
            self._wait(self._withdrawn, "the kubelet to see that the plugins are gone")

    def write_patches(self) -> None:
        """Write the agent's queued allocations, see ``NodeOptions.patches_wait``."""
        if self.agent is not None:
            self.agent.writer.write()

    def restart_kubelet(self) -> None:
        """Kill the kubelet and start it again; it gets all pods anew as one batch (fact K11)."""
        self.kubelet.kill()
        self.sweep_statuses()
        self.start_kubelet()

    def start_kubelet(self) -> None:
        """Start the kubelet; it gets all existing pods as its first batch."""
        self.kubelet.start()
        self.kubelet.add_pods(*self.manifests.values())

    def settle(self) -> None:
        """Wait until every pod runs, has ended, was rejected, or is vetoed again and again.

        Raises:
            NodeStuck: nothing has happened for too long.
        """
        trace, deadline, read = self.kubelet.trace, 0.0, -1
        while waiting := self._unsettled():
            if len(trace) > read:
                deadline, read = time.monotonic() + _SETTLE_S, len(trace)
            if time.monotonic() > deadline:
                raise NodeStuck(f"seed {self._options.seed}: {len(waiting)} pods, {waiting[:3]}")
            time.sleep(_POLL_S)
            self.sweep()
        self._show_running()

    def _unsettled(self) -> list[str]:
        if not self.kubelet.idle():
            return ["the kubelet has pods to admit"]
        over = self.kubelet.trace.pods("reject") | self.kubelet.trace.pods("end") | self._vetoed()
        return sorted({*self.manifests, *self._static} - over - self._running())

    def _vetoed(self) -> set[str]:
        """Return pods whose starts the agent refuses again and again, until they are deleted."""
        starts = Counter(
            each.ref.pod.uid
            for each in self.decision_log.refusals
            if each.call == "prestart" and each.ref is not None
        )
        return {uid for uid, count in starts.items() if count >= _VETOES}

    def _show_running(self) -> None:
        for uid in sorted(self._running() - self._shown_running):
            self._shown_running.add(uid)
            self._show(self._mirrors.get(uid, uid), "Running")

    def _running(self) -> set[str]:
        started = self.kubelet.trace.containers("start")
        return {
            uid
            for uid, manifest in (self.manifests | self._static).items()
            if all((uid, each["name"]) in started for each in manifest["spec"]["containers"])
        }

    # --- who was right ------------------------------------------------------------------

    def admissions(self) -> list[JudgedCall]:
        """Compare each ``Allocate`` of the kubelet with the agent's decision."""
        decisions = decisions_in_recording(self.decision_log.everything)
        return judge(self.kubelet.trace.events, decisions, self._resources, self._mirrors)

    def differences(self) -> list[str]:
        """Compare the allocation annotations with the devices in the kubelet's state.

        Containers without an allocation are skipped: their pod is still being admitted, or an
        earlier agent allocated them.
        """
        held = self._held()
        records = {
            (uid, container): allocation
            for uid in {uid for uid, _ in held}
            for container, allocation in self.recorded(self._mirrors.get(uid, uid)).items()
        }
        recorded = {who: resources for who, resources in held.items() if who in records}
        return unequal_records(recorded, records, self._names)

    def recorded(self, uid: str) -> Mapping[str, Allocation]:
        """Return the allocations in a pod's annotation; none if the pod is deleted."""
        pod = self.api.find(uid)
        return {} if pod is None else read_pod(pod.manifest(), self._names).annotated

    def double_grants(self) -> int:
        """Count slots that two pods hold."""
        return len(held_twice(self._held()))

    def _held(self) -> Holdings:
        held: dict[ContainerKey, dict[str, frozenset[str]]] = {}
        for each in self.kubelet.held_devices():
            held.setdefault((each.pod_uid, each.container), {})[each.resource] = frozenset(each.ids)
        return held

    def miscounts(self) -> list[str]:
        """Compare the agent's counts of free slots with the kubelet's state.

        The agent notices ended pods in its next call, or by :meth:`notice_ended_pods`.
        """
        wrong = []
        for name, resource in self._resources.items():
            taken = {
                i for each in self.kubelet.held_devices() if each.resource == name for i in each.ids
            }
            counted = {} if self.agent is None else self.agent.allocator.free(resource)
            for card, slots in self._table.by_card(resource).items():
                free = len(slots - taken)
                if counted.get(card) != free:
                    wrong.append(f"{card} {resource}: {counted.get(card)} counted, {free} free")
        return wrong

    # --- the agent ------------------------------------------------------------------------

    def start_agent(self) -> None:
        """Start a new agent; :meth:`wait_until_offered` waits for it."""
        kill_switch = KillSwitch(self._reached)
        # Whatever was deleted by force before its list has left the node long ago.
        self.watch = InMemoryWatch(self.api, self._names, count(0, 60).__next__)
        self.api.patches.clear()
        writer = KillableQueue(self.api, kill_switch, waits=self._options.patches_wait)
        channel = _PatientPodResources(
            self.record_socket, self._resources, lambda: self.kubelet.serving
        )
        enforcer, works = self._enforcer(lambda: allocator)
        allocator = Allocator(
            table=self._table,
            pods=self.watch.cache,
            pod_resources=channel,
            checkpoint=CheckpointFile(self.kubelet_dir, self._resources),
            store=StateFile(self.plugin_dir / "current-pod.json"),
            kubelet=KubeletInstance(self.kubelet_dir).current,
            writer=writer,
            decision_log=killable_log(self.decision_log, kill_switch),
            inject=lambda holding: inject(holding, self._inventory, Injection.ENVVAR),
            enforcer=enforcer,
            policy=self._options.policy,
            pause=lambda seconds: time.sleep(0 if self.api.hanging else seconds),
        )
        self.watch.deliver(0)
        self.watch.cache.subscribe(allocator.catch_up)
        registrar = Registrar(
            plugin_dir=self.plugin_dir,
            kubelet_dir=self.plugin_dir,
            services={
                name: self._service(allocator, resource, kill_switch)
                for name, resource in self._resources.items()
            },
            seconds=_REGISTRATION,
        )
        self.agent = AgentRun(allocator, registrar, channel, writer, kill_switch, works)
        self.agent.start()

    def _reached(self, moment: CallStage) -> None:
        self.watch.deliver()  # what was written in this call
        self._options.agent_hook(moment)

    def _enforcer(self, allocator: Callable[[], Allocator]) -> tuple[Enforcer, EnforcerRunner]:
        if not self._options.limits:
            return NoEnforcement(), EnforcerRunner()
        vcuda = Vcuda(
            state_dir=self.state,
            processes=Cgroups(),
            runtime=Cri(self.state.parent / "cri.sock"),  # nobody listens: nothing is run here
            entitled=lambda uid, container: allocator().entitled(uid, container),
            hardware=Hardware(lambda _uuid: "", lambda: "", BLOCK),
        )
        return vcuda, EnforcerRunner(vcuda.open, lambda: vcuda.alive, vcuda.close)

    def wrong_limits(self) -> list[str]:
        """List every running container that does not find its own limits."""
        found = []
        for uid, name in sorted(self.kubelet.running()):
            manifest = self.manifests.get(uid)
            if manifest is None:
                continue
            container = read_pod_demand(manifest, self._names)[0].of(name)
            if container is not None:
                found.append(RunningContainer(uid, container, self.kubelet.received(uid, name)))
        return wrong_limits(found, block=BLOCK)

    def notice_ended_pods(self) -> None:
        """Make the agent check for ended pods, as the real one does twice a second."""
        if self.agent is not None:
            self.agent.allocator.refresh(thorough=False)

    def sweep_limits(self) -> None:
        """Make the agent remove the enforcement files of deleted pods."""
        if self.agent is not None:
            self.agent.allocator.refresh()
            self.agent.allocator.sweep()

    def wait_until_offered(self) -> None:
        """Wait until the kubelet can allocate both resources.

        Raises:
            NodeStuck: that takes too long.
        """
        self._wait(
            lambda: all(self.kubelet.capacity()[1].get(each) for each in self._resources),
            "the plugins to be registered",
        )

    def _withdrawn(self) -> bool:
        if self.kubelet.crashed:
            return True
        return not any(self.kubelet.capacity()[1].get(each) for each in self._resources)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _SETTLE_S
        while not condition():
            if time.monotonic() > deadline:
                raise NodeStuck(f"seed {self._options.seed}: waited for {what}")
            time.sleep(_POLL_S)

    def _service(
        self, calls: Allocator, resource: Resource, kill_switch: KillSwitch
    ) -> Callable[[], DevicePluginService]:
        return lambda: KillableService(
            resource=resource,
            table=self._table,
            calls=calls,
            kill_switch=kill_switch,
            numa=self._options.numa,
        )
