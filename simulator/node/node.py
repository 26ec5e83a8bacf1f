"""The node: the simulated kubelet with our agent on it, and what can happen to both."""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agent.cards import Inventory, parse_inventory
from agent.inject import Injection, inject
from agent.kubelet import Endpoint, Registrar
from agent.podresources import PodResources
from agent.podview import PodView
from agent.ports import RecordSource
from agent.server import DevicePluginService
from agent.tickets import Resource, TicketBook
from agent.turnstile import Turnstile
from contract.names import Names
from simulator.demo import cards_file
from simulator.kubelet.node import Kubelet
from simulator.kubelet.settings import Settings
from simulator.node.diary import Diary
from simulator.node.judge import Admission, judge
from simulator.node.life import AgentLife
from simulator.node.options import NodeOptions
from simulator.node.pods import PodsInMemory
from simulator.node.record import NoRecord

Json = dict[str, Any]

BLOCK = 256 << 20
_SETTLE_S = 60.0
_POLL_S = 0.01


class NodeStuck(Exception):
    """The node did not come to rest in time; the message says what it waited for."""


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
        document = options.document or cards_file(options.cards, "80Gi")
        self._inventory: Inventory = parse_inventory(document)
        self._book = TicketBook(self._inventory, BLOCK)
        # Sockets need a short path: 107 bytes at most.
        self._folder = tempfile.TemporaryDirectory(prefix="gt-node-", dir="/tmp")
        root = Path(self._folder.name)
        self._plugins = root / "p"
        self._socket = root / "r.sock"
        self.kubelet = Kubelet(
            Settings(
                **{
                    "node_name": "node",
                    "root_dir": root / "k",
                    "plugin_dir": self._plugins,
                    "pod_resources_socket": self._socket,
                    "seed": options.seed,
                    "list_rate": options.list_rate,
                    "list_burst": options.list_burst,
                    "plugin_wait_s": 10.0,
                    "init_run_s": (0.001, 0.005),
                    "grace_s": (0.001, 0.01),
                    "start_retry_s": 0.05,
                    **options.kubelet,
                }
            )
        )
        self.pods = PodsInMemory(self._names)
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
        return [
            judge(each, self._resources[each.resource], self.diary.said)
            for each in self.kubelet.trace.rpcs("Allocate")
        ]

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

    # --- the agent ------------------------------------------------------------------------

    def _start_agent(self) -> None:
        channel = PodResources(self._socket, resources=self._resources)
        record: RecordSource = channel if self._options.witness else NoRecord()
        turnstile = Turnstile(
            book=self._book,
            pods=self.pods,
            record=self._options.record(record),
            outbox=self.pods,
            journal=self.diary,
            answer=lambda grant: inject(grant, self._inventory, Injection.ENVVAR),
            policy=self._options.policy,
        )
        registrar = Registrar(
            plugin_dir=self._plugins,
            endpoints=[
                Endpoint(name, f"v{resource.value}.sock", self._service(turnstile, resource))
                for name, resource in self._resources.items()
            ],
            on_registered=turnstile.registered,
        )
        self._agent = AgentLife(turnstile, registrar, channel)
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
