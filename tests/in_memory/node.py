"""A node in memory: the simulated kubelet, an API server, and the agent's real allocator.

One thread, no socket, no clock: a test chooses what happens next, down to a single call. The
kubelet's decisions are made in :mod:`simulator.kubelet`.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TypeVar

from agent.allocator.allocator import Allocator
from agent.allocator.interfaces import Checkpoint, DecisionLog, ListedContainer, ListedPod
from agent.allocator.slots import DeviceTable
from agent.enforcement.none import NoEnforcement
from agent.errors import CheckpointError, Refusal, Unavailable
from agent.holdings.edits import ContainerEdits
from agent.holdings.holding import Holding
from agent.holdings.interfaces import Enforcer
from contract.allocation import Allocation, decode_allocations
from contract.demand import ContainerKind
from contract.inventory import withheld
from contract.resource import Resource
from placement.pods import PodInfo
from placement.scoring import Policy
from simulator.kubelet.devices import PreferStep, SaveCheckpoint
from simulator.kubelet.errors import PluginCallFailed
from simulator.node.api import InMemoryApi, InMemoryWatch
from simulator.node.recording_log import RecordingLog
from tests.agent.builders import device_table
from tests.in_memory import kubelet as simulated
from tests.in_memory.kubelet import Kubelet
from tests.in_memory.pods import NAMES, Container, Pod, card_of

_T = TypeVar("_T")

CORE_FIRST = (Resource.CORE, Resource.MEMORY)
MEMORY_FIRST = (Resource.MEMORY, Resource.CORE)


class Store:
    """The agent's own file, in memory: the next agent reads what the last one wrote."""

    def __init__(self) -> None:
        self.text = ""

    def load(self) -> str:
        return self.text

    def save(self, text: str) -> None:
        self.text = text


class Node:
    """A node with its true state.

    Attributes:
        unhealthy: the reason why a card is unhealthy, by UUID.
        list_error, checkpoint_error: empty if ``List`` and the checkpoint file are available.
        asked, paused: number of the agent's ``List`` calls and pauses.
        grants: what the agent gave to containers since it started.
        refusal: the agent's last refusal.
    """

    def __init__(
        self,
        cards: int = 2,
        *,
        blocks: int = 32,
        table: DeviceTable | None = None,
        random: Random | None = None,
        active_only: bool = True,
        overtaken: float = 0.0,
        policy: Policy = Policy.BINPACK,
        strict: bool = False,
        enforcer: Enforcer | None = None,
    ) -> None:
        self.random = random or Random(0)
        self.table = table or device_table(cards, blocks=blocks)
        self.unhealthy: dict[str, str] = {}
        self.list_error = self.checkpoint_error = ""
        self.asked = self.paused = 0
        self.refusal: Refusal | None = None
        self.now = 0.0
        self.store = Store()
        self._policy, self._strict, self._enforcer = policy, strict, enforcer or NoEnforcement()
        self._shown: dict[str, ListedPod] = {}
        self._checkpoint = Checkpoint()
        self._written: object = None
        self.api: InMemoryApi[Pod] = InMemoryApi(NAMES, self.table.inventory)
        self.kubelet = Kubelet(
            {each: tuple(self.table.slots(each)) for each in Resource},
            self.api,
            self,
            self.random,
            active_only=active_only,
            overtaken=overtaken,
        )
        self.restart_agent()
        self.kubelet.register()

    # --- the agent ------------------------------------------------------------------------

    def restart_agent(self) -> None:
        """Replace the agent by a new one, which has only its file; it is already registered."""
        self.api.patches.clear()
        self.decision_log = RecordingLog(lambda: self.now)
        self.grants: list[Holding] = []
        self.watch = InMemoryWatch(self.api, NAMES, lambda: self.now)
        self.allocator = Allocator(
            table=self.table,
            pods=self.watch.cache,
            pod_resources=self,
            checkpoint=self,
            store=self.store,
            kubelet=lambda: f"instance {self.kubelet.instance}",
            writer=self.api,
            decision_log=self.make_decision_log(),
            inject=self.inject,
            enforcer=self._enforcer,
            withheld=lambda uuid: withheld(self.unhealthy.get(uuid, ""), cordoned=False),
            policy=self._policy,
            strict=self._strict,
            clock=lambda: self.now,
            pause=self.pause,
        )
        self.watch.deliver(0)
        self.watch.cache.subscribe(self.changed)

    def make_decision_log(self) -> DecisionLog:
        return self.decision_log

    def changed(self, view: PodInfo) -> None:
        self.allocator.catch_up(view)

    def inject(self, holding: Holding) -> ContainerEdits:
        self.grants.append(holding)
        return ContainerEdits({"CARDS": ",".join(holding.cards)})

    def pause(self, _seconds: float) -> None:
        self.paused += 1

    def written(self, pod: Pod) -> dict[str, Allocation]:
        """Carry out the agent's writes; return the pod's allocation annotation after that."""
        self.api.write()
        return decode_allocations(pod.annotations.get(NAMES.gpu_allocation, "{}"))

    # --- sources that the agent reads -----------------------------------------------------

    def list(self, *, within: float) -> tuple[ListedPod, ...]:
        """Call ``List`` as the agent does."""
        self.asked += 1
        if self.list_error or within <= 0:
            raise Unavailable(f"PodResources: {self.list_error}")
        return self.look()

    def look(self) -> tuple[ListedPod, ...]:
        """Call ``List`` as any client does: in random order, unchanged pods as the same object."""
        found = self.kubelet.state.list_pods()
        return tuple(self._entry(pod.uid) for pod, _ in self.random.sample(found, len(found)))

    def _entry(self, uid: str) -> ListedPod:
        pod = self.kubelet.pods[uid]
        entry = ListedPod(
            *pod.key,
            tuple(
                ListedContainer(each.name, self.kubelet.of(pod, each.name))
                for each in pod.containers
                if each.kind is not ContainerKind.INIT  # K4
            ),
        )
        if self._shown.get(uid) != entry:
            self._shown[uid] = entry
        return self._shown[uid]

    def read(self) -> Checkpoint:
        """Read the kubelet's checkpoint: the same object as long as the content is equal."""
        if self.checkpoint_error:
            raise CheckpointError(self.checkpoint_error)
        written = self.kubelet.state.checkpoint
        if written is not self._written and written is not None:
            self._written = written
            pods = simulated.read_holdings(written.pods)
            if pods != self._checkpoint.pods:
                self._checkpoint = Checkpoint(pods)
        return self._checkpoint

    # --- the kubelet's calls --------------------------------------------------------------

    def prefer(self, pod: Pod, container: Container, call: PreferStep) -> Sequence[str]:
        arguments = Resource(call.resource), call.available, call.must_include, call.size
        return self._call_agent(lambda: self.allocator.prefer(*arguments))

    def give(self, pod: Pod, container: Container, resource: Resource, ids: Sequence[str]) -> None:
        self._call_agent(lambda: self.allocator.allocate(resource, ids))

    def prestart(
        self, pod: Pod, container: Container, resource: Resource, ids: Sequence[str]
    ) -> None:
        self._call_agent(lambda: self.allocator.prestart(resource, ids))

    def ask_other(self, pod: Pod, container: Container) -> None:
        if pod.other_fails:
            raise PluginCallFailed("example.com/other: no")

    def _call_agent(self, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except Refusal as error:
            self.refusal = error
            raise PluginCallFailed(f"gpu-turnstile: {error}") from error

    # --- actions of a test ----------------------------------------------------------------

    def bind(self, *pods: Pod, seen: bool = True) -> None:
        """Bind pods to this node; *seen*: whether the agent's watch has delivered them."""
        for pod in pods:
            if not pod.static or pod.mirror_uid:
                self.api.add(pod)
            self.kubelet.bind(pod)
        if seen:
            self.watch.deliver()

    def begin(self, pod: Pod, order: tuple[str, ...] = CORE_FIRST) -> Pod:
        """Begin an admission; *order* is that of the resources of its first container (K1)."""
        self.kubelet.first = order
        if pod not in self.kubelet.queue and not self.api.has(pod):
            self.bind(pod)
        self.kubelet.begin(pod)
        return pod

    def call(self) -> Sequence[str]:
        """Make the kubelet's next call; return the device IDs in the request or the response."""
        self.refusal = None
        step = self.kubelet.next_call
        self.kubelet.step()
        if self.refusal is not None:
            raise self.refusal
        after = self.kubelet.next_call
        return list(getattr(after if isinstance(step, PreferStep) else step, "ids", ()))

    def serve(self, pod: Pod, container: str = "main", *resources: Resource) -> None:
        """Allocate *resources* to a container, in this order; by default all that it requests."""
        for resource in resources or CORE_FIRST:
            others = (each for each in Resource if each is not resource)
            self.kubelet.first = (resource, *others)
            while self.kubelet.admitting is pod and not self._has(pod, container, resource):
                self.call()
        if isinstance(self.kubelet.next_call, SaveCheckpoint):
            self.call()

    def _has(self, pod: Pod, container: str, resource: Resource) -> bool:
        held = self.kubelet.of(pod, container)
        return resource in held or not pod.container(container).count(resource)

    def admit(self, pod: Pod, order: tuple[str, ...] = CORE_FIRST) -> Pod:
        """Admit a pod, or finish an admission that has begun; raise the agent's refusal."""
        self.kubelet.first = order
        if self.kubelet.admitting is not pod:
            self.begin(pod, order)
        while self.kubelet.admitting is pod:
            self.call()
        return pod

    def rejected(self, pod: Pod) -> Pod:
        """Let the kubelet reject a pod before any call; the API server does not know it yet."""
        pod.refused_before = True
        return self.begin(pod)

    def start(self, pod: Pod, container: str = "main") -> None:
        """Start a container (K10); raise the agent's refusal."""
        self.refusal = None
        started = self.kubelet.start(pod, pod.container(container))
        if self.refusal is not None:
            raise self.refusal
        assert started, f"{pod.uid} {container} holds no devices"

    def ends(self, pod: Pod) -> None:
        """End all containers of a pod; the API server does not know it yet."""
        self.kubelet.end(pod)

    def publish_statuses(self) -> None:
        self.kubelet.write_statuses()
        self.watch.deliver()

    def delete(self, pod: Pod, *, ends: bool = True, keeps: bool = True) -> None:
        """Delete a pod with grace period 0 (K20); *ends*: whether its containers also end."""
        self.api.remove(pod)
        self.kubelet.deleted_by_force(pod, keeps=keeps)
        if ends and self.kubelet.admitting is not pod:
            self.kubelet.end(pod)
        self.watch.deliver()

    def restart_kubelet(self) -> None:
        """Restart the kubelet (K11): it has not admitted any pod yet; the plugin is registered."""
        self.kubelet.restart()
        self.kubelet.register()

    # --- true state -----------------------------------------------------------------------

    def held(self, pod: Pod, container: str = "main") -> Mapping[Resource, frozenset[str]]:
        return self.kubelet.of(pod, container)

    def cards(self, pod: Pod, container: str = "main") -> Sequence[str]:
        held = self.kubelet.of(pod, container).values()
        return sorted({card_of(each) for ids in held for each in ids})
