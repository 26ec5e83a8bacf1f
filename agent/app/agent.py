"""Puts the agent together, runs its threads, and ends them.

An agent's life, in :meth:`Agent._serve`: the cards are known, the host's driver files are ready,
the record is read, and only then the agent registers, so that every call is answered at once.

What is made of the cards (places, the allocator, what the kubelet talks to) can only be
made once they are known, which on a node whose driver comes late is long after the start:
until then the agent lives, says why it is not ready, and keeps looking.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from agent.allocator.allocator import Allocator
from agent.allocator.grants import Entitlement
from agent.allocator.interfaces import ContainerRef
from agent.allocator.slots import DeviceTable
from agent.app.card_gauges import CardGauges
from agent.app.card_updates import CardUpdates
from agent.app.container_setup import EnforcerRunner, Injector, set_up_containers
from agent.app.refresher import Refresher
from agent.cards.discovery import CardWatch, Pace
from agent.cards.fault_store import FaultStore, driver_life
from agent.cards.health import Rules
from agent.cards.source import CardSource, StaticSource, open_source
from agent.driver.folder import DriverFolder
from agent.driver.host import Host
from agent.driver.updater import DriverUpdater
from agent.errors import SettingsError
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
from agent.kubernetes_api.client import Api
from agent.kubernetes_api.events import EventQueue, EventSubject, Notice
from agent.kubernetes_api.inventory import InventoryPace, InventoryWriter, survey
from agent.kubernetes_api.node import NodeReader
from agent.kubernetes_api.pods import PodCache
from agent.observability.decision_log import LoggedDecisions
from agent.observability.metrics import Metrics
from agent.settings import EnforcementMode, Settings
from agent.usage.holdings import Holdings, count_holdings
from common.status import StatusServer, probe
from contract.demand import CORES_PER_CARD
from contract.inventory import Inventory, PublishedInventory
from contract.resource import Resource
from placement.pods import PodInfo

log = logging.getLogger(__name__)

# All threads together; one may hang in a request that the API server does not answer.
_JOIN_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class _CardServices:
    """What can be made once the cards are known."""

    writer: PatchQueue
    allocator: Allocator
    registrar: Registrar
    upkeep: EnforcerRunner
    refresher: Refresher


IN_SERVICE = "in-service.json"
"""The file of the pod in service, beside the sockets that the agent registers."""

ILL_CARDS = "ill-cards.json"
"""The file of the cards that are known to be ill, beside it."""


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

        *source* is where cards come from, by default what the settings say.

        Raises:
            SettingsError: a setting cannot be used.
        """
        self._settings = settings
        self._source = source or open_source(settings.cards)
        if isinstance(self._source, StaticSource):  # known now: told now
            _open_table(self._source.inventory, settings)
        self._metrics = Metrics()
        self._stop = threading.Event()
        self._opening = threading.Lock()
        self._session: _CardServices | None = None
        self._lock = NodeLock(settings.plugin_dir)
        self._loaded = False  # whether the record is what the kubelet's record says
        self._unusable = ""  # why cards that were found cannot be served
        self._api = Api(settings.kubeconfig)
        resources = settings.names.resources
        self._record = PodResources(settings.pod_resources_socket, resources=resources)
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
            look=self._survey,
            pace=inventory_pace,
            on_result=lambda result: self._metrics.inventory.labels(result).inc(),
        )
        news = CardUpdates(
            node=settings.node_name,
            metrics=self._metrics,
            tell=self._events.put,
            poke=self._show_cards,
        )
        self._watch = CardWatch(
            self._source,
            rules=Rules(settings.recovery_quiet, settings.ignore_xids, settings.fatal_xids),
            observer=news,
            kept=FaultStore(StateFile(settings.plugin_dir / ILL_CARDS), driver_life),
            pace=pace,
        )
        self._health_feed = HealthFeed(self._watch.unhealthy_cards)
        self._node = NodeReader(
            api=self._api,
            node=settings.node_name,
            names=settings.names,
            on_cordon=self._cordon,
            on_others=news.others_changed,
        )
        self._report = CardGauges(
            settings,
            metrics=self._metrics,
            holdings=self._holdings,
            inventory=lambda: self._watch.inventory,
            tell=self._events.put,
        )
        self._metrics.cards_age.set_function(lambda: self._watch.age)
        self._metrics.checkpoint_readable.set_function(lambda: self._checkpoint.readable)
        self._metrics.list_readable.set_function(lambda: self._record.readable)
        self._metrics.registered.set_function(lambda: self.registered)
        self._metrics.pending.set_function(self.pending)
        self.threads = [
            self._thread("cards", lambda: self._watch.run(self._stop)),
            self._thread("pods", lambda: self.pods.run(self._stop)),
            self._thread("serve", self._serve),
            self._thread("events", self._events.run),
            self._thread("inventory", self._inventory.run),
            self._thread("node", lambda: self._node.run(self._stop)),
        ]
        if (meter := self._report.meter) is not None:
            self.threads.append(self._thread("use", lambda: meter.run(self._stop)))
        self._driver_files = None
        if settings.lays_out_driver:
            self._driver_files = keeper = DriverUpdater(
                Host(settings.host_root, vcuda=settings.enforcement is EnforcementMode.VCUDA),
                DriverFolder(settings.driver_link),
                idle=self._idle,
                on_result=lambda right: self._metrics.driver_files_problem.set(not right),
            )
            self.threads.append(self._thread("driver", lambda: keeper.run(self._stop)))

    @property
    def registered(self) -> bool:
        """Whether the kubelet knows this agent."""
        return self._session is not None and self._session.registrar.registered

    @property
    def http_port(self) -> int:
        """Where probes and metrics are answered, once started."""
        return self._http.port

    def start(self) -> None:
        """Start every thread that needs no cards; nothing blocks.

        Raises:
            SettingsError: the HTTP port cannot be bound.
        """
        pages = {
            "/healthz": probe(self._why_not_live),
            "/readyz": probe(self._why_not_ready),
            "/metrics": lambda: (200, self._metrics.content_type, self._metrics.render()),
            **self._report.pages(),
        }
        host, port = self._settings.http_host, self._settings.http_port
        try:
            slow = pages.keys() - {"/healthz", "/readyz"}
            self._http = StatusServer(host, port, pages, slow=slow)
        except OSError as error:
            raise SettingsError(f"http-port: cannot listen on {host}:{port}: {error}") from error
        log.info("serving", extra={"http_port": self._http.port})
        for thread in tuple(self.threads):  # one of them adds more, once the cards are known
            thread.start()

    def stop(self) -> None:
        """End: calls in flight finish, and what is unwritten is made again by the next agent."""
        with self._opening:
            self._stop.set()
        self._watch.known.set()  # wakes what waits for the cards,
        self.pods.synced.set()  # for the first list of pods,
        if self._driver_files is not None:
            self._driver_files.ready.set()  # and for the driver's files
        self._api.close()
        self._events.stop()
        self._inventory.stop()
        if self._session is not None:
            self._session.registrar.stop()
            self._session.writer.stop()
            self._session.upkeep.close()
        deadline = time.monotonic() + _JOIN_SECONDS
        for thread in reversed(tuple(self.threads)):
            thread.join(max(deadline - time.monotonic(), 0))
        self._lock.release()
        self._record.close()
        self._http.stop()
        log.info("stopped")

    def pending(self) -> int:
        """Count the allocations that are not written yet."""
        return self._session.writer.pending() if self._session is not None else 0

    # --- once the cards are known ------------------------------------------------------

    def _serve(self) -> None:
        """Load what the cards allow, register, and keep the record true until the end."""
        self._watch.known.wait()
        inventory = self._watch.inventory
        if inventory is None:
            return  # stopped before there was any
        if self._driver_files is not None:
            # A container that is answered earlier would find an empty folder.
            self._driver_files.ready.wait()
        if not self._lock.take(self._stop):
            return
        try:
            session = self._make_session(inventory)
        except SettingsError as error:
            log.error("cards cannot be served", extra={"reason": str(error)})
            self._unusable = str(error)
            self._stop.wait()
            return
        with self._opening:
            if self._stop.is_set():
                return
            self._session = session
        session.refresher.load()
        self._loaded = True
        self._inventory.poke()
        remove_dead(self._settings.plugin_dir, ["vcore*.sock", "vmemory*.sock"])
        self._spawn("outbox", session.writer.run)
        self._spawn("registrar", session.registrar.run)
        session.refresher.run()

    def _spawn(self, name: str, target: Callable[[], None]) -> None:
        with self._opening:
            if self._stop.is_set():
                return
            thread = self._thread(name, target)
            thread.start()
            self.threads.append(thread)

    def _make_session(self, inventory: Inventory) -> _CardServices:
        """Make what serves these cards; raise as :func:`_open_table`."""
        settings, names = self._settings, self._settings.names
        table = _open_table(inventory, settings)
        injector = Injector(settings, inventory)
        enforcer, upkeep = set_up_containers(
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
        decision_log = LoggedDecisions(self._metrics, tell=self._tell_refusal)
        allocator = Allocator(
            table=table,
            pods=self.pods,
            pod_resources=self._record,
            checkpoint=self._checkpoint,
            store=StateFile(settings.plugin_dir / IN_SERVICE),
            kubelet=KubeletInstance(settings.kubelet_dir).current,
            writer=writer,
            decision_log=decision_log,
            inject=injector.edits_for,
            enforcer=enforcer,
            unhealthy=self._watch.unhealthy,
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
            services={name: service(each) for name, each in names.resources.items()},
            on_gap=self._metrics.unregistered.observe,
        )

        def tick() -> None:
            injector.refresh()
            decision_log.tick()

        refresher = Refresher(
            allocator=allocator,
            upkeep=upkeep,
            synced=self.pods.synced,
            stop=self._stop,
            on_released=self._inventory.poke,
            on_tick=tick,
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
        return _CardServices(writer, allocator, registrar, upkeep, refresher)

    # --- what the parts ask of each other ----------------------------------------------

    def _catch_up(self, view: PodInfo) -> None:
        # Before there is a session nothing is assigned: the first look at the kubelet's record
        # finds every pod that is known by then.
        if self._session is not None:
            self._session.allocator.catch_up(view)

    def _patched(self, result: str) -> None:
        self._metrics.patches.labels(result).inc()
        self._inventory.poke()  # less is free

    def _entitled(self, pod_uid: str, container: str) -> Entitlement | None:
        session = self._session
        return session.allocator.entitled(pod_uid, container) if session is not None else None

    def _idle(self) -> bool:
        """Return whether no container of this node has a GPU; not known, it is not."""
        session = self._session
        if session is None or not self._loaded:
            return False
        free = session.allocator.free(Resource.CORE)
        return all(each == CORES_PER_CARD for each in free.values())

    def _cordon(self, uuids: frozenset[str]) -> None:
        """Keep new containers from cards that an admin has cordoned; running ones stay."""
        self._watch.cordon(uuids)
        self._show_cards()

    def _show_cards(self) -> None:
        """Show kubelet and scheduler which cards are given out now."""
        self._health_feed.wake()
        self._inventory.poke()

    def _driver(self) -> str:
        found = self._watch.status.discovery
        return found.driver if found is not None else ""

    def _survey(self) -> PublishedInventory | None:
        """Return the inventory as it is now; ``None`` while nothing is known."""
        block = self._settings.memory_block
        session = self._session
        if session is None:
            # What an agent wrote whose driver still worked is true no more.
            return (
                PublishedInventory(block) if self._unusable or self._watch.status.problem else None
            )
        if not self._loaded:
            return None
        return survey(
            session.allocator.table.inventory,
            block=block,
            unhealthy=self._watch.unhealthy,
            free={resource: session.allocator.free(resource) for resource in Resource},
        )

    def _tell_refusal(self, call: str, ref: ContainerRef, reason: str) -> None:
        pod = ref.pod
        word = "GPUStartVetoed" if call == "prestart" else "GPURefused"
        message = f"container {ref.container}: {reason}"
        self._events.put(
            Notice(EventSubject("Pod", pod.namespace, pod.name, pod.uid), word, message)
        )

    def _holdings(self) -> Holdings | None:
        """Return who holds what; ``None`` while that is not known."""
        session = self._session
        if session is None or not self._loaded:
            return None
        return count_holdings(session.allocator.snapshot(), session.allocator.table)

    # --- pages -------------------------------------------------------------------------

    def _why_not_live(self) -> str:
        live = all(thread.is_alive() for thread in self.threads)
        live = live and (self._session is None or self._session.upkeep.alive)
        return "" if live else "a thread of the agent has died"

    def _why_not_ready(self) -> str:
        if self._session is not None and self.registered:
            return self._session.upkeep.problem
        if self._lock.waiting:
            return ""  # ready to serve as soon as the agent before has ended
        if self._unusable:
            return self._unusable
        if self._watch.inventory is None:
            return self._watch.status.problem or "the cards are not known yet"
        if self._session is not None and not self._loaded:
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
    check_size(table, numa=settings.numa)
    return table
