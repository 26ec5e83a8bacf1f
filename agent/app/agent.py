"""Creates the parts of the agent, runs its threads, and ends them.

The order of a start is that of :meth:`Agent._serve`: discover the cards, wait for the host's driver
files, build the snapshot, and only then register, so that no call has to wait.

The parts that depend on the cards (device table, allocator, gRPC servers) are created after the
discovery. If the driver is loaded late, that is long after the start. Until then the agent runs,
reports why it is not ready, and repeats the discovery.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version

from agent.allocator.allocator import Allocator
from agent.allocator.slots import DeviceTable
from agent.app.card_gauges import CardGauges
from agent.app.card_updates import CardUpdates
from agent.app.container_setup import EnforcerRunner, Injector, set_up_containers
from agent.app.missing_cards import report_missing_cards
from agent.app.refresher import Refreshable, Refresher
from agent.app.services import CardServices, make_driver
from agent.app.unclaimed import UnclaimedPods
from agent.cards.discovery import CardWatch, Pace
from agent.cards.fault_store import FaultStore, driver_instance
from agent.cards.health import Rules
from agent.cards.inventory import reserve_memory
from agent.cards.source import CardSource, FileSource, open_source
from agent.driver.folder import DriverFolder
from agent.driver.host import Host
from agent.driver.updater import DriverUpdater
from agent.errors import SettingsError
from agent.holdings.holding import ContainerRef, Holding, NodeHoldings
from agent.host.file_systems import is_writable
from agent.host.node_lock import NodeLock
from agent.host.stale_sockets import remove_dead
from agent.host.state_file import StateFile
from agent.kubelet.checkpoint import CheckpointFile
from agent.kubelet.device_list import HealthFeed, check_size
from agent.kubelet.kubelet_instance import KubeletInstance
from agent.kubelet.podresources import PodResources
from agent.kubelet.registration import Registrar
from agent.kubelet.server import DevicePluginService, RefusalPace
from agent.kubernetes_api.annotation_writer import PatchQueue
from agent.kubernetes_api.client import Api, Json
from agent.kubernetes_api.events import EventQueue, EventSubject, Notice
from agent.kubernetes_api.inventory import InventoryPace, InventoryWriter, survey
from agent.kubernetes_api.node import NodeReader
from agent.kubernetes_api.pods import PodCache
from agent.observability.decision_log import LoggedDecisions
from agent.observability.metrics import Metrics
from agent.settings import AgentMode, EnforcementMode, MigMode, Settings
from common.status import StatusServer, probe
from contract.allocation import Evidence
from contract.demand import CORES_PER_CARD
from contract.inventory import Inventory, PublishedInventory
from contract.resource import Resource
from placement.pods import PodInfo

log = logging.getLogger(__name__)

# For all threads together; one may hang in a request to the API server.
_JOIN_SECONDS = 3.0


CURRENT_POD_FILE = "current-pod.json"
"""The file with the current pod, in the folder of the sockets that the agent registers."""

UNHEALTHY_CARDS_FILE = "unhealthy-cards.json"
"""The file with the cards that are unhealthy by a fault which the driver reports only once."""


class Agent:
    """One node's agent: everything from :class:`Settings` to running threads.

    Its threads run from :meth:`start` to :meth:`stop`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        source: CardSource | None = None,
        pace: Pace | None = None,
        inventory_pace: InventoryPace | None = None,
    ) -> None:
        """Read the cards file and the credentials; nothing runs yet.

        *source* provides the cards; by default the one that the settings name.

        Raises:
            SettingsError: a setting cannot be used.
        """
        self._settings = settings
        self._source = source or open_source(settings.cards, mig=settings.mig is MigMode.SHARES)
        self._metrics = Metrics()
        if isinstance(file := self._source, FileSource):  # report an unusable file at once
            _open_table(reserve_memory(file.inventory, settings.reserved_memory), settings)
            self._metrics.cards_file_problem.set_function(lambda: bool(file.problem))
        self._stop = threading.Event()
        self._opening = threading.Lock()
        self._services: CardServices | None = None
        self._lock = NodeLock(settings.plugin_dir)
        self._loaded = False  # whether the first snapshot has been built
        self._unusable = ""  # why the discovered cards cannot be served
        self._api = Api(settings.kubeconfig)
        resources = settings.names.resources
        self._pod_resources = PodResources(settings.pod_resources_socket, resources=resources)
        self._checkpoint = CheckpointFile(settings.kubelet_dir, resources)
        self._events = EventQueue(
            api=self._api,
            node=settings.node_name,
            on_result=lambda result: self._metrics.events.labels(result).inc(),
        )
        self.pods = PodCache(api=self._api, node=settings.node_name, names=settings.names)
        self.pods.subscribe(self._catch_up)
        self._inventory = InventoryWriter(
            api=self._api,
            node=settings.node_name,
            annotation=settings.names.gpu_cards,
            label=settings.names.gpu_model,
            survey=self._survey,
            pace=inventory_pace,
            on_result=lambda result: self._metrics.inventory.labels(result).inc(),
        )
        updates = CardUpdates(
            node=settings.node_name,
            metrics=self._metrics,
            send_event=self._events.put,
            on_change=self._publish_cards,
        )
        self._watch = CardWatch(
            self._source,
            rules=Rules(settings.recovery_quiet, settings.ignore_xids, settings.fatal_xids),
            listener=updates,
            reserved_memory=settings.reserved_memory,
            store=FaultStore(
                StateFile(settings.plugin_dir / UNHEALTHY_CARDS_FILE), driver_instance
            ),
            pace=pace,
        )
        self._health_feed = HealthFeed(self._watch.withheld_cards)
        self._node = NodeReader(
            api=self._api,
            node=settings.node_name,
            names=settings.names,
            on_cordon=self._cordon,
            on_others=updates.others_changed,
            on_read=self._update_counts,
            mig=settings.mig is MigMode.SHARES,
        )
        self._gauges = CardGauges(
            settings,
            metrics=self._metrics,
            holdings=self._holdings,
            inventory=lambda: self._watch.inventory,
            send_event=self._events.put,
        )
        self._metrics.cards_age.set_function(lambda: self._watch.age)
        if settings.mode is AgentMode.PLUGIN:
            self._metrics.checkpoint_readable.set_function(lambda: self._checkpoint.readable)
            self._metrics.list_readable.set_function(lambda: self._pod_resources.readable)
        else:  # neither is read
            self._metrics.checkpoint_readable.set(math.nan)
            self._metrics.list_readable.set(math.nan)
        self._metrics.registered.set_function(lambda: self.registered)
        self._metrics.stands_in.set_function(self._stands_in)
        self._metrics.pending.set_function(self.pending)
        self._metrics.counts_problem.set_function(self._counts_problem)
        self._metrics.read_requests = self._api.failures.samples
        self._metrics.info.labels(
            version("gpu-turnstile"), settings.enforcement.value, settings.inject.value
        ).set(1)
        for name, folder in settings.written_folders.items():
            writable = self._metrics.folder_writable.labels(name)
            writable.set_function(partial(is_writable, folder))
        self.threads = [
            self._thread("cards", lambda: self._watch.run(self._stop)),
            self._thread("pods", lambda: self.pods.run(self._stop)),
            self._thread("serve", self._serve),
            self._thread("events", self._events.run),
            self._thread("inventory", self._inventory.run),
            self._thread("node", lambda: self._node.run(self._stop)),
        ]
        if (meter := self._gauges.meter) is not None:
            self.threads.append(self._thread("use", lambda: meter.run(self._stop)))
        self._driver_files = None
        if settings.lays_out_driver:
            self._driver_files = updater = DriverUpdater(
                Host(settings.host_root, vcuda=settings.enforcement is EnforcementMode.VCUDA),
                DriverFolder(settings.driver_link),
                idle=self._idle,
                on_result=lambda right: self._metrics.driver_files_problem.set(not right),
            )
            self.threads.append(self._thread("driver", lambda: updater.run(self._stop)))

    @property
    def registered(self) -> bool:
        """Whether this agent is registered with the kubelet."""
        return self._services is not None and self._services.registrar.registered

    @property
    def http_port(self) -> int:
        """The port of probes and metrics, once started."""
        return self._http.port

    def start(self) -> None:
        """Start every thread that needs no cards; nothing blocks.

        Raises:
            SettingsError: the HTTP port cannot be bound.
        """
        pages = {
            "/healthz": probe(self._liveness_problem),
            "/readyz": probe(self._readiness_problem),
            "/metrics": lambda: (200, self._metrics.content_type, self._metrics.render()),
            **self._gauges.pages(),
        }
        host, port = self._settings.http_host, self._settings.http_port
        slow = pages.keys() - {"/healthz", "/readyz"}
        self._http = StatusServer(host, port, pages, slow=slow)
        log.info("serving", extra={"http_port": self._http.port})
        for thread in tuple(self.threads):  # "serve" adds more once the cards are discovered
            thread.start()

    def stop(self) -> None:
        """Finish calls in flight and stop all threads.

        Pending writes are dropped: the next agent makes them again.
        """
        with self._opening:
            self._stop.set()
        self._watch.known.set()  # wakes threads that wait for the cards,
        self.pods.synced.set()  # for the first list of pods,
        if self._driver_files is not None:
            self._driver_files.ready.set()  # and for the driver's files
        self._api.close()
        self._events.stop()
        self._inventory.stop()
        if self._services is not None:
            self._services.registrar.stop()
            self._services.writer.stop()
            self._services.enforcer_runner.close()
            if self._services.parts is not None:
                self._services.parts.close()
        deadline = time.monotonic() + _JOIN_SECONDS
        for thread in reversed(tuple(self.threads)):
            thread.join(max(deadline - time.monotonic(), 0))
        self._lock.release()
        self._pod_resources.close()
        self._http.stop()
        log.info("stopped")

    def pending(self) -> int:
        """Count the allocations that are not written yet."""
        return self._services.writer.pending() if self._services is not None else 0

    # --- once the cards are known ------------------------------------------------------

    def _serve(self) -> None:
        """Wait for the cards, build the first snapshot, register, and refresh until ``stop``."""
        self._watch.known.wait()
        inventory = self._watch.inventory
        if inventory is None:
            return  # stopped before the discovery
        if self._driver_files is not None:
            # A container that is allocated earlier would find an empty folder.
            self._driver_files.ready.wait()
        if not self._lock.take(self._stop):
            return
        try:
            services = self._make_services(inventory)
        except SettingsError as error:
            log.error("cards cannot be served", extra={"reason": str(error)})
            self._unusable = str(error)
            self._stop.wait()
            return
        with self._opening:
            if self._stop.is_set():
                return
            self._services = services
        services.refresher.load()
        self._loaded = True
        self._inventory.poke()
        remove_dead(self._settings.plugin_dir, ["vcore*.sock", "vmemory*.sock"])
        self._spawn("outbox", services.writer.run)
        if services.parts is not None:
            for name, run in services.parts.threads.items():
                self._spawn(name, run)
        self._spawn("registrar", services.registrar.run)
        services.refresher.run()

    def _spawn(self, name: str, target: Callable[[], None]) -> None:
        with self._opening:
            if self._stop.is_set():
                return
            thread = self._thread(name, target)
            thread.start()
            self.threads.append(thread)

    def _make_services(self, inventory: Inventory) -> CardServices:
        """Create the parts that serve these cards; raise as :func:`_open_table`."""
        settings, names = self._settings, self._settings.names
        table = _open_table(inventory, settings)
        injector = Injector(settings, inventory)
        enforcer, enforcer_runner = set_up_containers(
            settings,
            inventory,
            driver=self._driver,
            entitled=self._entitled,
            on_registered=lambda result: self._metrics.registrations.labels(result).inc(),
            on_outdated=self._metrics.hami_core_outdated.set,
        )
        writer = PatchQueue(
            api=self._api,
            names=names,
            indices={card.uuid: card.index for card in inventory.cards},
            on_result=self._patched,
        )
        log.info(
            "cards",
            extra={
                "cards": {card.uuid: card.model for card in inventory.cards},
                "memory_block": settings.memory_block,
                "inject": str(settings.inject),
                "enforcement": str(settings.enforcement),
            },
        )
        if settings.mode is AgentMode.DRA:
            parts = make_driver(
                settings,
                table,
                api=self._api,
                pods=self.pods,
                watch=self._watch,
                stop=self._stop,
                inject=injector.edits_for,
                locate=injector.locate,
                enforcer=enforcer,
                writer=writer,
                on_prepared=self._metrics.decisions.labels("prepare", Evidence.CLAIM).inc,
                on_refusal=self._refuse_claim,
            )
            driver, unclaimed = parts.driver, UnclaimedPods(self._events.put)
            compare = self._once_known(driver.holdings, lambda: driver.confirmed)

            def look() -> None:
                injector.refresh()
                compare()
                if driver.confirmed:
                    unclaimed.report(self.pods.pods(), driver.claimed_pods())

            refresher = self._refresher(driver, enforcer_runner, look)
            return CardServices(
                writer, driver, parts.server, enforcer_runner, refresher, driver.holdings, parts
            )
        decision_log = LoggedDecisions(self._metrics, on_refusal=self._report_refusal)
        allocator = Allocator(
            table=table,
            pods=self.pods,
            pod_resources=self._pod_resources,
            checkpoint=self._checkpoint,
            store=StateFile(settings.plugin_dir / CURRENT_POD_FILE),
            kubelet=KubeletInstance(settings.kubelet_dir).current,
            writer=writer,
            decision_log=decision_log,
            inject=injector.edits_for,
            enforcer=enforcer,
            withheld=self._watch.withheld,
            policy=settings.policy,
            strict=settings.strict_predicate,
        )
        pace = RefusalPace(time.monotonic)

        def service(resource: Resource) -> Callable[[], DevicePluginService]:
            return lambda: DevicePluginService(
                resource=resource,
                table=table,
                calls=allocator,
                health_feed=self._health_feed,
                numa=settings.numa,
                before_refusal=lambda: self._stop.wait(pace.delay()),
            )

        registrar = Registrar(
            plugin_dir=settings.plugin_dir,
            kubelet_dir=settings.kubelet_dir,
            services={name: service(each) for name, each in names.resources.items()},
            on_gap=self._metrics.unregistered.observe,
            on_proxy_end=self._report_proxy_end,
        )

        compare = self._once_known(allocator.holdings, lambda: bool(allocator.snapshot().listing))

        def tick() -> None:
            injector.refresh()
            decision_log.tick()
            compare()

        refresher = self._refresher(allocator, enforcer_runner, tick)
        return CardServices(
            writer, allocator, registrar, enforcer_runner, refresher, allocator.holdings
        )

    def _once_known(
        self, holdings: Callable[[], NodeHoldings], known: Callable[[], bool]
    ) -> Callable[[], None]:
        """Return what reports missing cards once: only pods of the agent's start can hold them."""
        compared = False

        def compare() -> None:
            nonlocal compared
            if not compared and known() and self.pods.is_synced():
                compared = True
                node = self._settings.node_name
                report_missing_cards(holdings(), node, self._events.put)

        return compare

    def _refresher(
        self,
        allocator: Refreshable,
        enforcer_runner: EnforcerRunner,
        on_tick: Callable[[], None],
    ) -> Refresher:
        return Refresher(
            allocator=allocator,
            enforcer_runner=enforcer_runner,
            synced=self.pods.synced,
            stop=self._stop,
            on_released=self._inventory.poke,
            on_tick=on_tick,
        )

    # --- callbacks between the parts ---------------------------------------------------

    def _catch_up(self, info: PodInfo) -> None:
        # Before the allocator exists nothing is assigned. The first snapshot has all pods that are
        # known until then.
        if self._services is not None:
            self._services.allocator.catch_up(info)

    def _patched(self, result: str) -> None:
        self._metrics.patches.labels(result).inc()
        self._inventory.poke()  # an allocation was written, so less is free

    def _entitled(self, pod_uid: str, container: str) -> Holding | None:
        services = self._services
        return services.allocator.entitled(pod_uid, container) if services is not None else None

    def _idle(self) -> bool:
        """Return whether no container of this node has a GPU; ``False`` if that is not known."""
        services = self._services
        if services is None or not self._loaded:
            return False
        free = services.allocator.free(Resource.CORE)
        return all(each == CORES_PER_CARD for each in free.values())

    def _cordon(self, uuids: frozenset[str]) -> None:
        """Give cordoned cards to no new container; running containers keep them."""
        self._watch.cordon(uuids)
        self._publish_cards()

    def _publish_cards(self) -> None:
        """Publish the cards' health to the kubelet (device lists) and schedulers (inventory)."""
        self._health_feed.wake()
        self._inventory.poke()
        if self._services is not None and self._services.parts is not None:
            self._services.parts.wake()

    def _update_counts(self, node: Json) -> None:
        if self._services is not None and self._services.parts is not None:
            self._services.parts.counts.update(node)

    def _counts_problem(self) -> bool:
        parts = self._services.parts if self._services is not None else None
        return parts is not None and bool(parts.counts.problem)

    def _refuse_claim(self, ref: ContainerRef, reason: str) -> None:
        self._metrics.refusals.labels("prepare", Resource.CORE).inc()
        self._report_refusal("prepare", ref, reason)

    def _driver(self) -> str:
        found = self._watch.status.discovery
        return found.driver if found is not None else ""

    def _survey(self) -> PublishedInventory | None:
        """Return the inventory as it is now; ``None`` while it is not known."""
        block = self._settings.memory_block
        services = self._services
        if services is None:
            # Replaces the inventory that an earlier agent wrote when the driver still worked.
            return (
                PublishedInventory(block) if self._unusable or self._watch.status.problem else None
            )
        if not self._loaded:
            return None
        return survey(
            services.allocator.table.inventory,
            block=block,
            unhealthy=self._watch.unhealthy,
            cordoned=self._watch.cordoned,
            free={resource: services.allocator.free(resource) for resource in Resource},
        )

    def _report_refusal(self, call: str, ref: ContainerRef, reason: str) -> None:
        pod = ref.pod
        event_reason = "GPUStartVetoed" if call == "prestart" else "GPURefused"
        message = f"container {ref.container}: {reason}"
        self._events.put(
            Notice(EventSubject("Pod", pod.namespace, pod.name, pod.uid), event_reason, message)
        )

    def _report_proxy_end(self) -> None:
        self._metrics.proxy_ends.inc()
        node = self._settings.node_name
        text = (
            "the device plugin proxy of this node has ended, and the agent stands in for it: if it "
            "was killed, GPU pods that waited on the node have failed (no healthy devices "
            "present), and their controllers create them again"
        )
        self._events.put(Notice(EventSubject("Node", "", node, node), "GPUProxyEnded", text))

    def _stands_in(self) -> bool:
        return self._services is not None and self._services.registrar.stands_in

    def _holdings(self) -> NodeHoldings | None:
        """Return what containers hold; ``None`` before the first snapshot."""
        services = self._services
        if services is None or not self._loaded:
            return None
        return services.holdings()

    # --- pages -------------------------------------------------------------------------

    def _liveness_problem(self) -> str:
        live = all(thread.is_alive() for thread in self.threads)
        live = live and (self._services is None or self._services.enforcer_runner.alive)
        return "" if live else "a thread of the agent has ended unexpectedly"

    def _readiness_problem(self) -> str:
        if self._services is not None and self.registered:
            return self._services.enforcer_runner.problem
        if self._lock.waiting:
            return ""  # ready to serve as soon as the earlier agent has exited
        if self._unusable:
            return self._unusable
        if self._watch.inventory is None:
            return self._watch.status.problem or "the cards are not known yet"
        if self._services is not None and not self._loaded:
            return "the node's pods are not known yet"
        files = self._driver_files
        awaited = files.problem if files is not None and not files.ready.is_set() else ""
        return awaited or self._lock.problem or "not registered"

    @staticmethod
    def _thread(name: str, target: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=target, name=name, daemon=True)


def _open_table(inventory: Inventory, settings: Settings) -> DeviceTable:
    """Make the node's device table.

    Raises:
        SettingsError: a memory block is larger than a card, or too small for the kubelet.
    """
    table = DeviceTable(inventory, settings.memory_block)
    if settings.mode is AgentMode.PLUGIN:
        check_size(table, numa=settings.numa)
    return table
