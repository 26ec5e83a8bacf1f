"""A node in this process: the simulated kubelet and our agent's parts, over real sockets.

The pods come from here instead of an API server, which bursts of thousands need not wait
for. What the agent said of each ``Allocate`` is compared with the kubelet's trace.
"""

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from agent.cards import Inventory, parse_inventory
from agent.errors import Unavailable
from agent.inject import Injection, inject
from agent.kubelet import Endpoint, Registrar
from agent.ledger import Claim, Correction
from agent.podresources import PodResources
from agent.podview import PodView, parse_pod
from agent.server import DevicePluginService
from agent.tickets import Resource, TicketBook
from agent.turnstile import Turnstile
from agent.witness import Snapshot
from bench.rules import Request, Verdict
from contract.allocation import Allocation, Evidence
from contract.names import Names
from simulator.demo import cards_file
from simulator.kubelet.node import Kubelet
from simulator.kubelet.settings import Settings
from simulator.kubelet.trace import TraceEvent

Json = dict[str, Any]

BLOCK = 256 << 20
_SETTLE_S = 60.0
_POLL_S = 0.01


class NodeStuck(Exception):
    """The node did not come to rest in time; the message says what it waited for."""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """How a node is set up.

    Attributes:
        seed: of everything the kubelet leaves to chance.
        cards: how many cards of 80 GiB.
        witness: whether the agent can ask ``List``.
        list_rate, list_burst: the kubelet's limit on ``List`` (fact K5).
        cache_behind: how many pods the agent's watch is behind the kubelet.
    """

    seed: int = 0
    cards: int = 8
    witness: bool = True
    list_rate: float = 100.0
    list_burst: int = 10
    cache_behind: int = 0


@dataclass(frozen=True, slots=True)
class Said:
    """One decision of the agent."""

    at_ms: float
    claim: Claim
    resource: Resource
    evidence: Evidence
    ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Admission:
    """One ``Allocate``: what the kubelet made it for, and what became of it.

    Attributes:
        request: the call.
        verdict: whether our agent named the right container.
        evidence: by what; ``None`` when it answered nothing.
        error: what the kubelet was told instead of an answer.
    """

    request: Request
    verdict: Verdict
    evidence: Evidence | None
    error: str = ""


class Pods:
    """A :class:`agent.ports.PodSource` and ``Outbox``: an API server, and a watch of it."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._lock = threading.Lock()
        self._known: dict[str, PodView] = {}
        self._unseen: dict[str, PodView] = {}
        self.fetched = 0

    def bind(self, manifest: Json, *, seen: bool = True) -> None:
        """Have a pod on the API server; *seen*: the agent's watch knows it already."""
        view = parse_pod(manifest, self._names)
        with self._lock:
            self._unseen.pop(view.id.uid, None)
            (self._known if seen else self._unseen)[view.id.uid] = view

    def remove(self, uid: str) -> None:
        """Have a pod gone."""
        with self._lock:
            self._known.pop(uid, None)
            self._unseen.pop(uid, None)

    def put(self, view: PodView, allocations: dict[str, Allocation]) -> None:
        """Be the outbox: what is recorded on a pod shows in it from now on."""
        with self._lock:
            for pods in (self._known, self._unseen):
                if view.id.uid in pods:
                    shown = pods[view.id.uid]
                    pods[view.id.uid] = replace(shown, assigned=True, recorded=allocations)

    def recorded(self, uid: str) -> Mapping[str, Allocation]:
        """Give what is recorded on a pod."""
        with self._lock:
            view = self._known.get(uid) or self._unseen.get(uid)
            return {} if view is None else view.recorded

    def end(self, uid: str) -> None:
        """Have a pod shown as failed: the kubelet has rejected it."""
        with self._lock:
            for pods in (self._known, self._unseen):
                if uid in pods:
                    pods[uid] = replace(pods[uid], terminal=True)

    def delete(self, uid: str) -> None:
        """Have a pod shown as being deleted."""
        with self._lock:
            for pods in (self._known, self._unseen):
                if uid in pods:
                    pods[uid] = replace(pods[uid], deleting=True)

    def catch_up(self) -> None:
        """Let the watch come up to date."""
        with self._lock:
            self._known |= self._unseen
            self._unseen = {}

    def views(self) -> Sequence[PodView]:
        """Give what the watch has told."""
        with self._lock:
            return tuple(self._known.values())

    def fetch(self, namespace: str, name: str) -> PodView | None:
        """Ask for one pod."""
        with self._lock:
            self.fetched += 1
            for uid, view in self._unseen.items():
                if view.id.key == (namespace, name):
                    self._known[uid] = self._unseen.pop(uid)
                    return view
        return None


class Record(Protocol):
    """The kubelet's record, as the agent asks for it."""

    def list(self, *, within: float) -> Snapshot:
        """Ask."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class NoRecord:
    """A node whose PodResources socket nobody mounted."""

    def list(self, *, within: float) -> Snapshot:  # noqa: ARG002 -- the Protocol's
        """Have nothing."""
        raise Unavailable("PodResources: switched off")

    def close(self) -> None:
        """Have nothing to close."""


class Diary:
    """A :class:`agent.ports.Journal` that remembers and counts."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.said: list[Said] = []
        self.counts: Counter[str] = Counter()

    def decided(
        self,
        call: str,
        claim: Claim,
        resource: Resource,
        evidence: Evidence,
        ids: Collection[str],
    ) -> None:
        """A call was settled."""
        self.counts[f"{call} by {evidence.value}"] += 1
        if call == "allocate":
            self.said.append(Said(self._clock(), claim, resource, evidence, frozenset(ids)))

    def refused(self, call: str, resource: Resource, size: int, reason: str) -> None:  # noqa: ARG002 -- the Protocol's
        """A call was refused."""
        self.counts[f"{call} refused"] += 1

    def corrected(self, correction: Correction) -> None:  # noqa: ARG002 -- the Protocol's
        """A guess was wrong."""
        self.counts["corrected"] += 1

    def unproven(self, claim: Claim | None, ids: Collection[str], reason: str) -> None:  # noqa: ARG002 -- the Protocol's
        """A container started without proof."""
        self.counts["unproven"] += 1

    def blind(self, reason: str) -> None:  # noqa: ARG002 -- the Protocol's
        """The record could not be had."""
        self.counts["blind"] += 1


@dataclass(slots=True)
class AgentLife:
    """One run of the agent, from its start to its end."""

    turnstile: Turnstile
    registrar: Registrar
    record: Record
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def start(self) -> None:
        """Read the ledger off the kubelet's record, then let the kubelet in."""
        self.turnstile.rebuild()
        self.thread = threading.Thread(target=self.registrar.run, args=(self.stop,), daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Stop."""
        self.stop.set()
        if self.thread is not None:
            self.thread.join(5)
        self.record.close()


class Node:
    """A simulated node with our agent on it."""

    def __init__(self, options: NodeOptions, names: Names | None = None) -> None:
        """Prepare; :meth:`__enter__` starts everything."""
        self._options = options
        self._names = names or Names()
        self._resources = {
            self._names.core: Resource.CORE,
            self._names.memory: Resource.MEMORY,
        }
        self._inventory: Inventory = parse_inventory(cards_file(options.cards, "80Gi"))
        self._book = TicketBook(self._inventory, BLOCK)
        # Sockets need a short path: 107 bytes at most.
        self._folder = tempfile.TemporaryDirectory(prefix="gt-bench-", dir="/tmp")
        root = Path(self._folder.name)
        self._plugins = root / "p"
        self._socket = root / "r.sock"
        self.kubelet = Kubelet(
            Settings(
                node_name="bench",
                root_dir=root / "k",
                plugin_dir=self._plugins,
                pod_resources_socket=self._socket,
                seed=options.seed,
                list_rate=options.list_rate,
                list_burst=options.list_burst,
                plugin_wait_s=10.0,
                init_run_s=(0.001, 0.005),
                grace_s=(0.001, 0.01),
                start_retry_s=0.05,
            )
        )
        self.pods = Pods(self._names)
        self.diary = Diary(self.kubelet.trace.now)
        self._manifests: dict[str, Json] = {}
        self._agent: AgentLife | None = None

    def __enter__(self) -> Self:
        """Start the kubelet and the agent, and wait until both resources are offered."""
        self.kubelet.start()
        self.kubelet.add_pods()
        self._start_agent()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End everything and remove the folder."""
        if self._agent is not None:
            self._agent.end()
        self.kubelet.stop()
        self._folder.cleanup()

    def views(self) -> Sequence[PodView]:
        """Give the pods that the agent knows."""
        return self.pods.views()

    # --- what happens on the node -----------------------------------------------------

    def bind(self, manifest: Json) -> None:
        """Bind one pod here; the kubelet admits it when it comes to it."""
        self._manifests[manifest["metadata"]["uid"]] = manifest
        behind = self._options.cache_behind
        self.pods.bind(manifest, seen=not behind)
        if behind and len(self._manifests) % behind == 0:
            self.pods.catch_up()
        self.kubelet.add_pods(manifest)

    def admit(self, manifests: Sequence[Json]) -> list[Admission]:
        """Bind pods and wait until each runs or was rejected; give the calls made for them."""
        for each in manifests:
            self.bind(each)
        self.settle()
        return self.admissions()

    def delete(self, uid: str) -> None:
        """Delete a pod; it is gone from the API once it has ended."""
        manifest = self._manifests[uid]
        manifest["metadata"]["deletionTimestamp"] = "2025-01-15T08:01:00Z"
        self.pods.delete(uid)
        self.kubelet.update_pods(manifest)

    def sweep(self) -> None:
        """Tell the API what the kubelet says: rejected pods, and deleted ones that have ended."""
        self.sweep_statuses()
        ended = {each.pod_uid for each in self.kubelet.trace.events if each.event == "end"}
        for uid, manifest in list(self._manifests.items()):
            if "deletionTimestamp" in manifest["metadata"] and uid in ended:
                del self._manifests[uid]
                self.pods.remove(uid)
                self.kubelet.remove_pods(manifest)

    def sweep_statuses(self) -> None:
        """Show the pods that the kubelet has rejected as failed; it never tries them again."""
        for uid in {each.pod_uid for each in self.kubelet.trace.events if each.event == "reject"}:
            self.pods.end(uid)
            if uid in self._manifests:
                self._manifests[uid]["status"] = {"phase": "Failed"}

    def restart_agent(self) -> None:
        """End the agent and start another that remembers nothing."""
        if self._agent is not None:
            self._agent.end()
        self._start_agent()

    def restart_kubelet(self) -> None:
        """Kill the kubelet and start it again; it gets all pods anew as one batch (fact K11)."""
        self.kubelet.kill()
        self.sweep_statuses()
        self.kubelet.start()
        self.kubelet.add_pods(*self._manifests.values())

    def settle(self) -> None:
        """Wait until every pod runs, has ended or was rejected.

        Raises:
            NodeStuck: that takes too long.
        """
        deadline = time.monotonic() + _SETTLE_S
        while waiting := self._unsettled():
            if time.monotonic() > deadline:
                raise NodeStuck(f"seed {self._options.seed}: {len(waiting)} pods, {waiting[:3]}")
            time.sleep(_POLL_S)
            self.sweep()

    def _unsettled(self) -> list[str]:
        if not self.kubelet.idle():
            return ["the kubelet has pods to admit"]
        events = self.kubelet.trace.events
        over = {each.pod_uid for each in events if each.event in ("reject", "end")}
        started = {(each.pod_uid, each.container) for each in events if each.event == "start"}
        return [
            uid
            for uid, manifest in self._manifests.items()
            if uid not in over
            and any((uid, each["name"]) not in started for each in manifest["spec"]["containers"])
        ]

    # --- who was right ------------------------------------------------------------------

    def admissions(self) -> list[Admission]:
        """Compare each ``Allocate`` of the kubelet with what the agent said in it."""
        return [self._judge(each) for each in self.kubelet.trace.rpcs("Allocate")]

    def differences(self) -> list[str]:
        """Compare the allocations that the agent recorded with what the kubelet holds at last."""
        held: dict[tuple[str, str, str], Counter[str]] = {}
        for each in self.kubelet.record():
            cards = Counter(device_id.partition("::")[0] for device_id in each.ids)
            held[each.pod_uid, each.container, each.resource] = cards
        wrong = []
        for (uid, container, resource), cards in held.items():
            recorded = self.pods.recorded(uid).get(container)
            if recorded is None:
                continue  # a pod that is not finished, or was when another agent ran
            count = recorded.cores if resource == self._names.core else recorded.memory_blocks
            if set(recorded.cards) != set(cards) or count != cards.total():
                wrong.append(f"{uid} {container} {resource}: recorded {recorded}, holds {cards}")
        return wrong

    def double_grants(self) -> int:
        """Count places that two pods hold."""
        holders: dict[tuple[str, str], set[str]] = {}
        for each in self.kubelet.record():
            for device_id in each.ids:
                holders.setdefault((each.resource, device_id), set()).add(each.pod_uid)
        return sum(len(pods) > 1 for pods in holders.values())

    def _judge(self, event: TraceEvent) -> Admission:
        request = Request(
            self._resources[event.resource],
            len(event.ids),
            int(event.unix_ms * 1e6),
            f"{event.namespace}/{event.pod}",
            event.container,
        )
        if event.error:
            return Admission(request, Verdict.REFUSED, None, event.error)
        ids = frozenset(event.ids)
        said = next(
            (
                each
                for each in self.diary.said
                if event.ms <= each.at_ms <= event.ms + event.took_ms + 1.0
                and each.resource is request.resource
                and each.ids == ids
            ),
            None,
        )
        if said is None:
            return Admission(request, Verdict.WRONG, None, "the agent said nothing")
        # The agent knows no UID of a pod that only the kubelet has left.
        same = said.claim.pod.key == (event.namespace, event.pod)
        same = same and said.claim.pod.uid in (event.pod_uid, "")
        right = same and said.claim.container == event.container
        return Admission(request, Verdict.RIGHT if right else Verdict.WRONG, said.evidence)

    # --- the agent ------------------------------------------------------------------------

    def _start_agent(self) -> None:
        record: Record = (
            PodResources(self._socket, resources=self._resources)
            if self._options.witness
            else NoRecord()
        )
        turnstile = Turnstile(
            book=self._book,
            pods=self.pods,
            record=record,
            outbox=self.pods,
            journal=self.diary,
            answer=lambda grant: inject(grant, self._inventory, Injection.ENVVAR),
        )
        registrar = Registrar(
            plugin_dir=self._plugins,
            endpoints=[
                Endpoint(name, f"v{resource.value}.sock", self._service(turnstile, resource))
                for name, resource in self._resources.items()
            ],
            on_registered=turnstile.registered,
        )
        self._agent = AgentLife(turnstile, registrar, record)
        self._agent.start()
        self.wait_until_offered()

    def wait_until_offered(self) -> None:
        """Wait until the kubelet can give both resources.

        Raises:
            NodeStuck: that takes too long.
        """
        deadline = time.monotonic() + _SETTLE_S
        while not self._offered(self.kubelet.capacity()[1]):
            if time.monotonic() > deadline:
                raise NodeStuck("the plugins were not registered")
            time.sleep(_POLL_S)

    def _offered(self, allocatable: Mapping[str, int]) -> bool:
        return all(allocatable.get(name, 0) > 0 for name in self._resources)

    def _service(
        self, turnstile: Turnstile, resource: Resource
    ) -> Callable[[], DevicePluginService]:
        return lambda: DevicePluginService(resource=resource, book=self._book, calls=turnstile)
