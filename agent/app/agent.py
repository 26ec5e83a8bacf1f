"""Creates the parts of the agent, runs its threads, and ends them.

The order of a start is that of :meth:`Agent._serve`: discover the cards, wait for the host's driver
files, build the snapshot, and only then register, so that no call has to wait.

The parts that depend on the cards (device table, enforcement, the door) are created after the
discovery. If the driver is loaded late, that is long after the start. Until then the agent runs,
reports why it is not ready, and repeats the discovery.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version

from agent.app.card_gauges import CardGauges
from agent.app.card_services import CardServices, open_services, open_table
from agent.app.card_updates import CardUpdates
from agent.app.refresher import RefreshPace
from agent.cards.discovery import CardWatch, Pace
from agent.cards.fault_store import FaultStore, driver_instance
from agent.cards.health import Rules
from agent.cards.inventory import reserve_memory
from agent.cards.source import CardSource, FileSource, open_source
from agent.driver.folder import DriverFolder
from agent.driver.host import Host
from agent.driver.updater import DriverUpdater
from agent.errors import SettingsError
from agent.holdings.holding import Holding, NodeHoldings
from agent.host.file_systems import find_write_problem
from agent.host.node_lock import NodeLock
from agent.host.state_file import StateFile
from agent.kubernetes_api.client import Api, Json
from agent.kubernetes_api.events import EventQueue
from agent.kubernetes_api.inventory import InventoryPace, InventoryWriter, survey
from agent.kubernetes_api.node import NodeReader
from agent.kubernetes_api.pods import PodCache
from agent.observability.metrics import Metrics
from agent.settings import EnforcementMode, MigMode, Settings
from common.backoff import spread
from common.status import StatusServer, probe
from contract.demand import CORES_PER_CARD
from contract.inventory import Inventory, PublishedInventory
from contract.resource import Resource
from contract.runtimes import runtime_of
from placement.pods import PodInfo

log = logging.getLogger(__name__)

# For all threads together; one may hang in a request to the API server.
_JOIN_SECONDS = 3.0


UNHEALTHY_CARDS_FILE = "unhealthy-cards.json"
"""The file with the cards that are unhealthy by a fault which the driver reports only once."""


@dataclass(frozen=True, slots=True)
class AgentPace:
    """Intervals of the agent's threads, in seconds.

    Attributes:
        node: time between two readings of the node, and between two tries of refused requests.
        driver_retry: pause before driver files that cannot be laid out are tried again.
    """

    cards: Pace = field(default_factory=Pace)
    inventory: InventoryPace = field(default_factory=InventoryPace)
    refresh: RefreshPace = field(default_factory=RefreshPace)
    node: float = 10.0
    driver_retry: float = 5.0


class Agent:
    """One node's agent: everything from :class:`Settings` to running threads.

    Its threads run from :meth:`start` to :meth:`stop`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        source: CardSource | None = None,
        pace: AgentPace | None = None,
    ) -> None:
        """Read the cards file and the credentials; nothing runs yet.

        *source* provides the cards; by default the one that the settings name.

        Raises:
            SettingsError: a setting cannot be used.
        """
        self._settings = settings
        self._pace = pace = pace or AgentPace()
        self._source = source or open_source(
            settings.cards,
            mig=settings.mig is MigMode.SHARES,
            mps=settings.enforcement is EnforcementMode.MPS,
        )
        self._metrics = Metrics()
        if isinstance(file := self._source, FileSource):  # report an unusable file at once
            open_table(reserve_memory(file.inventory, settings.reserved_memory), settings)
            self._metrics.cards_file_problem.set_function(lambda: file.problem)
        self._stop = threading.Event()
        self._opening = threading.Lock()
        self._services: CardServices | None = None
        self._lock = NodeLock(settings.plugin_dir)
        self._loaded = False  # whether the first snapshot has been built
        self._unusable = ""  # why the discovered cards cannot be served
        self._runtime = ""  # the node's container runtime, once the node was read
        self._api = Api(settings.kubeconfig)
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
            pace=pace.inventory,
            on_result=lambda result: self._metrics.inventory.labels(result).inc(),
        )
        updates = CardUpdates(
            node=settings.node_name,
            names=settings.names,
            metrics=self._metrics,
            send_event=self._events.put,
            on_change=self._publish_cards,
        )
        if isinstance(self._source, FileSource):
            self._source.on_problem = updates.file_unusable
        self._watch = CardWatch(
            self._source,
            rules=Rules(settings.recovery_quiet, settings.ignore_xids, settings.fatal_xids),
            listener=updates,
            reserved_memory=settings.reserved_memory,
            store=FaultStore(
                StateFile(settings.plugin_dir / UNHEALTHY_CARDS_FILE), driver_instance
            ),
            pace=pace.cards,
        )
        self._node = NodeReader(
            api=self._api,
            node=settings.node_name,
            names=settings.names,
            on_cordon=self._cordon,
            on_others=updates.others_changed,
            on_read=self._update_node,
            mig=settings.mig is MigMode.SHARES,
            period=pace.node,
        )
        self._gauges = CardGauges(
            settings,
            metrics=self._metrics,
            holdings=self._holdings,
            inventory=lambda: self._watch.inventory,
            send_event=self._events.put,
        )
        self._metrics.cards_age.set_function(lambda: self._watch.age)
        for cause in ("cordon", "health"):
            age = partial(self._watch.offer_age, cause)
            self._metrics.offer_age.labels(cause).set_function(age)
        self._metrics.checkpoint_readable.set(math.nan)  # until the door reads them, if it does
        self._metrics.list_readable.set(math.nan)
        self._metrics.registered.set_function(lambda: self.registered)
        self._metrics.stands_in.set_function(self._stands_in)
        self._metrics.pending.set_function(self.pending)
        self._metrics.counts_problem.set_function(self._counts_problem)
        self._metrics.read_requests = self._api.failures.samples
        self._metrics.info.labels(
            version("gpu-turnstile"), settings.enforcement.value, settings.inject.value
        ).set(1)
        self._metrics.read_folders = lambda: {
            (flag, str(folder)): find_write_problem(folder)
            for flag, folder in settings.written_folders.items()
        }
        self._metrics.read_changes = self._changes_after_restart
        self.threads = [
            self._thread("cards", lambda: self._watch.run(self._stop)),
            self._thread("pods", lambda: self.pods.run(self._stop)),
            self._thread("serve", self._serve),
            self._thread("events", self._events.run),
            self._thread("inventory", self._inventory.run),
            self._thread("node", lambda: self._node.run(self._stop)),
            self._thread("requests", self._retry_refused),
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
                retry=pace.driver_retry,
            )
            self.threads.append(self._thread("driver", lambda: updater.run(self._stop)))

    @property
    def registered(self) -> bool:
        """Whether this agent is registered with the kubelet."""
        return self._services is not None and self._services.door.registered

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
            self._services.door.stop()
            self._services.writer.stop()
            self._services.enforcer_runner.close()
        deadline = time.monotonic() + _JOIN_SECONDS
        for thread in reversed(tuple(self.threads)):
            thread.join(max(deadline - time.monotonic(), 0))
        self._lock.release()
        if self._services is not None:
            self._services.door.close()
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
                services.door.close()
                return
            self._services = services
        services.refresher.load()
        self._loaded = True
        self._inventory.poke()
        self._spawn("outbox", services.writer.run)
        for name, run in services.door.threads.items():
            self._spawn(name, run)
        services.refresher.run()

    def _spawn(self, name: str, target: Callable[[], None]) -> None:
        with self._opening:
            if self._stop.is_set():
                return
            thread = self._thread(name, target)
            thread.start()
            self.threads.append(thread)

    def _make_services(self, inventory: Inventory) -> CardServices:
        """Create the parts that serve these cards.

        Raises:
            SettingsError: as :func:`agent.app.card_services.open_services`.
        """
        return open_services(
            inventory,
            settings=self._settings,
            api=self._api,
            pods=self.pods,
            watch=self._watch,
            metrics=self._metrics,
            send_event=self._events.put,
            stop=self._stop,
            entitled=self._entitled,
            on_change=self._inventory.poke,
            runtime=lambda: self._runtime,
            pace=self._pace.refresh,
        )

    # --- callbacks between the parts ---------------------------------------------------

    def _catch_up(self, info: PodInfo) -> None:
        # Before the door exists nothing is assigned. The first snapshot has all pods that are
        # known until then.
        if self._services is not None:
            self._services.door.core.catch_up(info)

    def _entitled(self, pod_uid: str, container: str) -> Holding | None:
        services = self._services
        return services.door.core.entitled(pod_uid, container) if services is not None else None

    def _idle(self) -> bool:
        """Return whether no container of this node has a GPU; ``False`` if that is not known."""
        holdings = self._holdings()
        return holdings is not None and all(
            each.cores == CORES_PER_CARD for each in holdings.free.values()
        )

    def _cordon(self, entries: Sequence[str]) -> None:
        """Give cordoned cards to no new container; running containers keep them."""
        self._watch.set_cordon(entries)
        self._publish_cards()

    def _publish_cards(self) -> None:
        """Publish the cards' health to the kubelet or the schedulers, and in the inventory."""
        self._inventory.poke()
        if self._services is not None:
            self._services.door.wake()

    def _update_node(self, node: Json) -> None:
        self._runtime = runtime_of(node)
        if self._services is not None:
            self._services.door.update_node(node)

    def _retry_refused(self) -> None:
        """Learn soon that a missing permission was granted: its request may be rare."""
        while not self._stop.wait(spread(self._pace.node)):
            self._api.failures.retry()

    def _changes_after_restart(self) -> Mapping[str, str]:
        edited = self._source.edited if isinstance(self._source, FileSource) else {}
        return {**edited, **dict.fromkeys(self._watch.status.latecomers, "added")}

    def _counts_problem(self) -> bool:
        return self._services is not None and bool(self._services.door.counts_problem)

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
            services.table.inventory,
            block=block,
            unhealthy=self._watch.unhealthy,
            cordoned=self._watch.cordoned,
            free={resource: services.door.core.free(resource) for resource in Resource},
        )

    def _stands_in(self) -> bool:
        return self._services is not None and self._services.door.stands_in

    def _holdings(self) -> NodeHoldings | None:
        """Return what containers hold; ``None`` before the first snapshot."""
        services = self._services
        if services is None or not self._loaded:
            return None
        return services.door.core.holdings()

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
