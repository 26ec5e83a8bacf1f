"""Fakes of everything the allocator and the adapters meet: one per Protocol."""

import itertools
import json
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.allocator.allocator import Allocator
from agent.allocator.grants import (
    ContainerEdits,
    Entitlement,
    Grant,
    Mount,
)
from agent.allocator.identity import kubelet_uid
from agent.allocator.interfaces import (
    Checkpoint,
    CheckpointOwner,
    ContainerRef,
    Correction,
    DecisionLog,
    ListedContainer,
    ListedPod,
)
from agent.allocator.slots import DeviceTable
from agent.enforcement.none import NoEnforcement
from agent.errors import CheckpointError, Unavailable
from agent.settings import Settings
from contract.allocation import Allocation, Evidence
from contract.demand import ContainerDemand, ContainerKind, PodDemand
from contract.inventory import Inventory
from contract.names import Names
from contract.resource import Resource, count_of
from placement.pods import (
    AdmissionRank,
    Key,
    PodId,
    PodInfo,
)
from placement.scoring import Policy
from tests.agent.builders import BLOCK, CORE, MEMORY
from tests.agent.builders import card as make_card
from tests.agent.builders import container as make_container

NAMES = Names()
RESOURCES = {NAMES.core: CORE, NAMES.memory: MEMORY}
CORE_FIRST, MEMORY_FIRST = (CORE, MEMORY), (MEMORY, CORE)
MIB = 1 << 20
DEADLINE_S = 120.0

_uids = itertools.count(1)


def eventually(holds: Callable[[], Any], what: str, within: float = DEADLINE_S) -> Any:
    """Wait until *holds*, and give what it gave; fail with *what* when it does not in time."""
    end, pause = time.monotonic() + within, 0.002
    while not (found := holds()):
        assert time.monotonic() < end, f"not within {within} s: {what}"
        time.sleep(pause)
        pause = min(pause * 1.3, 0.03)
    return found


@contextmanager
def short_dir() -> Iterator[Path]:
    """A folder whose sockets stay below the 108 bytes a unix socket's path may have."""
    with tempfile.TemporaryDirectory(prefix="gt-", dir="/tmp", ignore_cleanup_errors=True) as made:
        yield Path(made)


# --- plain data ----------------------------------------------------------------------


def make_table(cards: int = 2, *, blocks: int = 32) -> DeviceTable:
    """A node with ``GPU-0`` to ``GPU-<cards - 1>`` of *blocks* blocks each, on two NUMA nodes."""
    made = (replace(make_card(n, blocks=blocks), numa=n if n < 2 else None) for n in range(cards))
    return DeviceTable(Inventory(tuple(made)), BLOCK)


def make_settings(folder: Path, **changes: Any) -> Settings:
    """Settings of an agent on node ``n1`` that listens on any free port."""
    given: dict[str, Any] = {
        "node_name": "n1",
        "kubelet_dir": folder / "p",
        "plugin_dir": folder / "p",
        "pod_resources_socket": folder / "r.sock",
        "memory_block": BLOCK,
        "names": NAMES,
        "http_host": "127.0.0.1",
        "http_port": 0,
    }
    return Settings(**given | changes)


def asks(
    cores: int, memory: int, name: str = "main", kind: ContainerKind = ContainerKind.MAIN
) -> ContainerDemand:
    """A container that asks for so much."""
    return make_container(name, cores, memory, kind=kind)


def init(cores: int, memory: int, name: str = "init") -> ContainerDemand:
    """An ordinary init container."""
    return asks(cores, memory, name, ContainerKind.INIT)


def sidecar(cores: int, memory: int, name: str = "side") -> ContainerDemand:
    """A restartable init container."""
    return asks(cores, memory, name, ContainerKind.SIDECAR)


def make_pod(name: str, *containers: ContainerDemand, at: int = 0, **changes: Any) -> PodInfo:
    """A pod of ``default``; *at* is its time in the queue, by default after all others."""
    indices = {True: itertools.count(), False: itertools.count()}
    numbered = tuple(
        replace(each, index=next(indices[each.kind is ContainerKind.MAIN])) for each in containers
    )
    number = next(_uids)
    uid = f"uid-{number:06}"
    view = PodInfo(
        PodId("default", name, uid),
        PodDemand(numbered),
        AdmissionRank(at or number, "", "", 0, uid),
    )
    return replace(view, **changes)


def ids(card: int, places: Iterable[int]) -> list[str]:
    """Device IDs of one card."""
    return [f"GPU-{card}::{place}" for place in places]


def cards_of(device_ids: Iterable[str]) -> list[str]:
    """The cards that device IDs name, each once, sorted."""
    return sorted({each.rpartition("::")[0] for each in device_ids})


# --- fakes of the ports -------------------------------------------------------------


class FakePods:
    """A ``PodSource``: what the watch has told, and what a GET would tell."""

    def __init__(self) -> None:
        self.cached: dict[PodId, PodInfo] = {}
        self.on_server: dict[tuple[str, str], PodInfo] = {}
        self.fetched: list[tuple[str, str]] = []
        self.away = False
        self._views: tuple[PodInfo, ...] = ()

    def add(self, view: PodInfo) -> None:
        self.cached[view.id] = view
        self.on_server[view.id.key] = view

    def remove(self, view: PodInfo) -> None:
        self.cached.pop(view.id, None)
        self.on_server.pop(view.id.key, None)

    def uids_seen(self, key: Key) -> Sequence[str]:
        return [""]  # only the watch of a real API server tells that

    def is_synced(self) -> bool:
        return True

    def pods(self) -> Sequence[PodInfo]:
        views = tuple(self.cached.values())
        if views != self._views:
            self._views = views
        return self._views  # the same object while nothing has changed, as of the real one

    def fetch(self, namespace: str, name: str, *, within: float = 1.0) -> PodInfo | None:
        self.fetched.append((namespace, name))
        self._answer()
        view = self.on_server.get((namespace, name))
        if view is not None:  # a name belongs to one pod at a time
            self.cached = {pod: each for pod, each in self.cached.items() if pod.key != view.id.key}
            self.cached[view.id] = view
        return view

    def refresh(self, *, within: float) -> None:
        self._answer()
        for view in self.on_server.values():
            self.cached.setdefault(view.id, view)

    def _answer(self) -> None:
        if self.away:
            raise Unavailable("API server: away")


Held = dict[Resource, frozenset[str]]


class FakeCheckpoint:
    """A ``CheckpointSource``: the kubelet's memory, and its file, which shows it when written."""

    def __init__(self) -> None:
        self.memory: dict[CheckpointOwner, Held] = {}
        self.file: Mapping[CheckpointOwner, Held] = {}
        self._read = Checkpoint()
        self.late = False  # the next write is overtaken by the one before (K33)
        self.away = ""
        self.asked = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def give(self, view: PodInfo, container: str, resource: Resource, held: Iterable[str]) -> None:
        """Have the kubelet remember what a container got; the file does not show it yet."""
        owner = CheckpointOwner(kubelet_uid(view), container)
        self.memory.setdefault(owner, {})[resource] = frozenset(held)

    def forget(self, view: PodInfo) -> None:
        """Have the kubelet forget a pod; the file shows it until it is written again (K29)."""
        uid = kubelet_uid(view)
        self.memory = {owner: held for owner, held in self.memory.items() if owner.pod_uid != uid}

    def write(self) -> None:
        """Write the file, unless this write is the late one.

        The kubelet does so once a container has all it asks for (K28), and with every device list,
        in mid-admission too (K30).
        """
        if not self.late:
            self.file = {owner: dict(held) for owner, held in self.memory.items()}
        self.late = False

    def restore(self) -> None:
        """Have a new kubelet take all entries back (K31)."""
        self.memory = {owner: dict(held) for owner, held in self.file.items()}

    def read(self) -> Checkpoint:
        self.asked += 1
        self.meanwhile()
        if self.away:
            raise CheckpointError(self.away)
        pods: dict[str, dict[str, Held]] = {}
        for owner, held in self.file.items():
            pods.setdefault(owner.pod_uid, {})[owner.container] = dict(held)
        if pods != self._read.pods:
            self._read = Checkpoint(pods)
        return self._read  # the same object while nothing has changed, as of the real one


class FakeStore:
    """A ``Store``: the agent's file, which outlives the agent."""

    def __init__(self) -> None:
        self.text = ""

    def load(self) -> str:
        return self.text

    def save(self, text: str) -> None:
        self.text = text


class FakeRecord:
    """A ``RecordSource`` whose entries a test, or :class:`Node`, writes."""

    def __init__(self) -> None:
        self.entries: dict[PodId, dict[str, Held]] = {}
        self.away = ""
        self.asked = 0

    def show(self, view: PodInfo) -> None:
        self.entries[view.id] = {
            each.name: {}
            for each in view.demand.containers
            if each.kind is not ContainerKind.INIT  # fact K4
        }

    def hide(self, view: PodInfo) -> None:
        self.entries.pop(view.id, None)

    def give(self, view: PodInfo, container: str, resource: Resource, held: Iterable[str]) -> None:
        containers = self.entries.setdefault(view.id, {})
        containers.setdefault(container, {})[resource] = frozenset(held)

    def list(self, *, within: float) -> tuple[ListedPod, ...]:
        self.asked += 1
        if self.away:
            raise Unavailable(self.away)
        return tuple(
            ListedPod(
                pod.namespace,
                pod.name,
                tuple(ListedContainer(name, dict(held)) for name, held in containers.items()),
            )
            for pod, containers in self.entries.items()
        )


class FakeEnforcer:
    """An ``Enforcer`` that keeps what it is told, or raises *error*."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.made: list[tuple[ContainerRef, frozenset[str], Grant]] = []
        self.started: list[tuple[frozenset[str], Entitlement | None]] = []
        self.kept: list[set[PodId]] = []
        self.asked: list[list[str]] = []
        self.chosen = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def prepare_allocation(
        self, ref: ContainerRef, ids: frozenset[str], grant: Grant
    ) -> ContainerEdits:
        self._fail()
        self.made.append((ref, ids, grant))
        self.meanwhile()
        return ContainerEdits({"LIMIT": str(grant.slots)}, mounts=(Mount("/etc/limit", "/host"),))

    def prepare_start(self, ids: frozenset[str], entitlement: Entitlement | None) -> None:
        self._fail()
        self.started.append((ids, entitlement))

    def identify_starting(self, candidates: Sequence[Entitlement]) -> Entitlement:
        self.asked.append([each.ref.container for each in candidates])
        return candidates[self.chosen]

    def prune(self, pods: Collection[PodId]) -> None:
        self.kept.append(set(pods))

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


class FakeAnnotationWriter:
    """A :class:`agent.allocator.interfaces.AnnotationWriter` that remembers."""

    def __init__(self) -> None:
        self.puts: list[tuple[PodInfo, dict[str, Allocation]]] = []

    def put(self, view: PodInfo, allocations: dict[str, Allocation]) -> None:
        self.puts.append((view, allocations))

    def of(self, view: PodInfo) -> dict[str, Allocation]:
        """The newest allocation of a pod."""
        return [found for put, found in self.puts if put.id == view.id][-1]


class FakeDecisionLog:
    """A :class:`agent.allocator.interfaces.DecisionLog` that remembers."""

    def __init__(self) -> None:
        self.decisions: list[tuple[str, ContainerRef, Resource, Evidence, frozenset[str]]] = []
        self.refusals: list[tuple[str, Resource, int, str]] = []
        self.corrections: list[Correction] = []
        self.replacements: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = []
        self.unproven_starts: list[tuple[ContainerRef | None, frozenset[str], str]] = []

    def decided(
        self,
        call: str,
        ref: ContainerRef,
        resource: Resource,
        evidence: Evidence,
        ids: Collection[str],
    ) -> None:
        self.decisions.append((call, ref, resource, evidence, frozenset(ids)))

    def refused(
        self, call: str, ref: ContainerRef | None, resource: Resource, size: int, reason: str
    ) -> None:
        self.refusals.append((call, resource, size, reason))

    def replaced(self, ref: ContainerRef, chosen: Sequence[str], cards: Sequence[str]) -> None:
        self.replacements.append((ref.container, tuple(chosen), tuple(cards)))

    def corrected(self, correction: Correction) -> None:
        self.corrections.append(correction)

    def unproven(self, ref: ContainerRef | None, ids: Collection[str], reason: str) -> None:
        self.unproven_starts.append((ref, frozenset(ids), reason))

    def unadvised(self, ref: ContainerRef, resource: Resource, ids: Collection[str]) -> None:
        """Not looked at."""

    def podresources_unavailable(self, reason: str) -> None:
        """Not looked at."""

    def evidence(self, call: str) -> list[Evidence]:
        """The evidence of every decision of one kind of call, in order."""
        return [each[3] for each in self.decisions if each[0] == call]

    def refs(self, call: str) -> list[str]:
        """``pod/container`` of every decision of one kind of call, in order."""
        return [
            f"{each[1].pod.name}/{each[1].container}" for each in self.decisions if each[0] == call
        ]


# --- a node in memory -----------------------------------------------------------------


class Node:
    """An allocator with fakes around it, and a kubelet that calls it.

    What the kubelet does is facts K2 to K4, K7, K11 and K28 to K31.
    """

    def __init__(
        self,
        cards: int = 2,
        *,
        blocks: int = 32,
        policy: Policy = Policy.BINPACK,
        strict: bool = False,
        enforcer: "FakeEnforcer | None" = None,
    ) -> None:
        self.strict = strict
        self.enforcer = enforcer
        self.ill: dict[str, str] = {}
        self.table = make_table(cards, blocks=blocks)
        self.policy = policy
        self.pods, self.record = FakePods(), FakeRecord()
        self.checkpoint, self.store = FakeCheckpoint(), FakeStore()
        self.lives = 1  # of the kubelet
        # What the kubelet offers, what pods' init containers have left over (K7), and who has what.
        self.free: dict[Resource, list[str]] = {
            resource: list(self.table.slots(resource)) for resource in Resource
        }
        self.reusable: dict[tuple[PodId, Resource], list[str]] = {}
        self.got: dict[tuple[PodId, str, Resource], list[str]] = {}
        self.paused = 0
        self._uids: dict[PodId, str] = {}
        self.restart_agent()

    def restart_agent(self) -> None:
        """Replace the agent by a new one; pods, the kubelet and the agent's file stay."""
        self.writer, self.decision_log = FakeAnnotationWriter(), FakeDecisionLog()
        self.grants: list[Grant] = []
        self.allocator = Allocator(
            table=self.table,
            pods=self.pods,
            pod_resources=self.record,
            checkpoint=self.checkpoint,
            store=self.store,
            kubelet=lambda: f"life {self.lives}",
            writer=self.writer,
            decision_log=self.decides_to(),
            inject=self._answer,
            enforcer=self.enforcer or NoEnforcement(),
            unhealthy=lambda uuid: self.ill.get(uuid, ""),
            policy=self.policy,
            strict=self.strict,
            pause=self._pause,
        )

    def decides_to(self) -> DecisionLog:
        """Where the allocator's decisions are told."""
        return self.decision_log

    def _answer(self, grant: Grant) -> ContainerEdits:
        self.grants.append(grant)
        return ContainerEdits({"CARDS": ",".join(grant.cards)})

    def _pause(self, _seconds: float) -> None:
        self.paused += 1

    def restart_kubelet(self) -> None:
        """Replace the kubelet: it knows what its file shows, and has come to no pod yet (K11)."""
        self.lives += 1
        self.checkpoint.restore()
        self.record.entries.clear()
        self.reusable.clear()
        known = self.checkpoint.memory
        self.got = {
            (pod, name, resource): held
            for (pod, name, resource), held in self.got.items()
            if resource in known.get(CheckpointOwner(self._uids[pod], name), {})
        }
        self._free()

    def bind(self, *views: PodInfo) -> None:
        """Have pods bound here: the watch knows them, the kubelet does not list them yet."""
        for view in views:
            self.pods.add(view)

    def begin(self, view: PodInfo) -> PodInfo:
        """Have the kubelet come to a pod: it is bound, and listed with nothing."""
        self.bind(view)
        self.record.show(view)
        return view

    def admitted(self, view: PodInfo, order: Sequence[Resource] = CORE_FIRST) -> PodInfo:
        """Have a pod bound and admitted."""
        self.bind(view)
        self.admit(view, order)
        return view

    def forget(self, view: PodInfo) -> None:
        """Have a pod gone: from the API, from ``List``, its devices free again."""
        self.pods.remove(view)
        self.record.hide(view)
        self.release(view)

    def release(self, view: PodInfo) -> None:
        """Free the devices of a pod; the checkpoint shows them until its next write (K29)."""
        self.checkpoint.forget(view)
        self.got = {key: held for key, held in self.got.items() if key[0] != view.id}
        for resource in Resource:
            self.reusable.pop((view.id, resource), None)
        self._free()

    def _free(self) -> None:
        """Offer all that no container has."""
        for resource in Resource:
            used = {each for key, held in self.got.items() if key[2] is resource for each in held}
            known = self.table.slots(resource)
            self.free[resource] = [each for each in known if each not in used]

    def prefer(
        self, resource: Resource, size: int, must: Sequence[str] = (), among: Sequence[str] = ()
    ) -> list[str]:
        """Ask for a preference as the kubelet does: what is available includes *must*."""
        available = [*(among or self.free[resource]), *must]
        return self.allocator.prefer(resource, available, must, size)

    def choose(
        self, view: PodInfo, container: ContainerDemand, resource: Resource
    ) -> tuple[list[str], bool]:
        """Choose devices as the kubelet does; return whether it asks for no preference (K2, K7)."""
        size = count_of(container.demand, resource)
        reusable = self.reusable.get((view.id, resource), [])
        if len(reusable) >= size:
            return reusable[:size], True
        if len(reusable) + len(self.free[resource]) == size:  # nothing else is left
            return [*reusable, *self.free[resource]], True
        return reusable, False

    def serve(self, view: PodInfo, container: ContainerDemand, resource: Resource) -> list[str]:
        """Make the calls for one resource of one container, and take note of what was answered."""
        chosen, settled = self.choose(view, container, resource)
        if not settled:
            chosen = self.prefer(resource, count_of(container.demand, resource), chosen)
        self.allocator.allocate(resource, chosen)
        self.took(view, container, resource, chosen)
        return chosen

    def took(
        self, view: PodInfo, container: ContainerDemand, resource: Resource, chosen: Sequence[str]
    ) -> None:
        """Note that a container got devices, as the kubelet does after ``Allocate``."""
        self.free[resource] = [each for each in self.free[resource] if each not in chosen]
        self.got[view.id, container.name, resource] = list(chosen)
        self._uids[view.id] = kubelet_uid(view)
        self.checkpoint.give(view, container.name, resource, chosen)
        self._hand_on(view, container, resource, chosen)
        if container.kind is not ContainerKind.INIT:
            self.record.give(view, container.name, resource, chosen)
        if all(self._has(view, container, each) for each in Resource):
            self.checkpoint.write()

    def _has(self, view: PodInfo, container: ContainerDemand, resource: Resource) -> bool:
        asked = count_of(container.demand, resource)
        return not asked or (view.id, container.name, resource) in self.got

    def _hand_on(
        self, view: PodInfo, container: ContainerDemand, resource: Resource, held: Sequence[str]
    ) -> None:
        left = [each for each in self.reusable.get((view.id, resource), []) if each not in held]
        left += held if container.kind is ContainerKind.INIT else ()
        self.reusable[view.id, resource] = left

    def admit(self, view: PodInfo, order: Sequence[Resource] = CORE_FIRST) -> None:
        """Admit a pod: list it, then serve its containers in order, but for what they have."""
        self.show(view)
        for container in view.demand.containers:
            for resource in order:
                if not self._has(view, container, resource):
                    self.serve(view, container, resource)
                elif held := self.got.get((view.id, container.name, resource)):
                    self._hand_on(view, container, resource, held)

    def show(self, view: PodInfo) -> None:
        """List a pod with what its containers have."""
        self.record.show(view)
        for (pod, name, resource), held in self.got.items():
            if pod == view.id and name in self.record.entries[pod]:
                self.record.give(view, name, resource, held)

    def refuse(self, view: PodInfo) -> None:
        """Reject a pod after a refusal: it leaves ``List`` and has nothing (K8)."""
        self.pods.add(replace(view, terminal=True))
        self.record.hide(view)
        self.release(view)

    def start(self, view: PodInfo, container: str = "main") -> None:
        """Start a container: PreStartContainer once per resource (fact K10)."""
        for resource in Resource:
            held = self.got.get((view.id, container, resource))
            if held:
                self.allocator.prestart(resource, held)

    def cards(self, view: PodInfo, container: str = "main") -> list[str]:
        """The cards a container got, by both resources, each once."""
        return cards_of(
            each
            for resource in Resource
            for each in self.got.get((view.id, container, resource), ())
        )


# --- fakes of the adapters' Protocols --------------------------------------------------


class FakeClock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeCalls:
    """A :class:`agent.kubelet.server.Calls`: answers with the first places, or raises *error*."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.answer = ContainerEdits(
            {"NVIDIA_VISIBLE_DEVICES": "GPU-0"}, ("/dev/nvidia0", "/dev/null")
        )
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def _note(self, call: str, ids: Sequence[str]) -> None:
        self.asked.append((call, tuple(ids)))
        if self.error is not None:
            raise self.error

    def prefer(
        self, resource: Resource, available: Sequence[str], must: Sequence[str], size: int
    ) -> list[str]:
        self._note("prefer", available)
        return list(available)[:size]

    def allocate(self, resource: Resource, device_ids: Sequence[str]) -> ContainerEdits:
        self._note("allocate", device_ids)
        return self.answer

    def prestart(self, resource: Resource, device_ids: Sequence[str]) -> None:
        self._note("prestart", device_ids)


def make_manifest(
    name: str,
    *limits: tuple[int, int],
    node: str = "n1",
    annotations: Mapping[str, str] | None = None,
    uid: str = "",
) -> dict[str, Any]:
    """A pod as the API has it, with a container ``c<i>`` for each (cores, memory)."""
    containers = [
        {
            "name": f"c{index}",
            "image": "none",
            "resources": {"limits": {NAMES.core: str(cores), NAMES.memory: str(memory)}},
        }
        for index, (cores, memory) in enumerate(limits)
    ] or [{"name": "c0", "image": "none"}]
    metadata: dict[str, Any] = {"name": name, "namespace": "default"}
    if uid:
        metadata |= {"uid": uid, "resourceVersion": "1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata | {"annotations": dict(annotations or {})},
        "spec": {"nodeName": node, "containers": containers},
    }


def write_cards(path: Path, cards: int = 2, memory: str = "8Gi") -> Path:
    """Write a cards file whose device nodes exist on any host."""
    listed = [
        {
            "uuid": f"GPU-{index}",
            "index": index,
            "model": "Fake",
            "memory": memory,
            "device": "/dev/null",
        }
        for index in range(cards)
    ]
    path.write_text(json.dumps({"cards": listed}))
    return path
