"""Puts the agent together, runs its threads, and ends them."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from agent import memory
from agent.api import Api
from agent.cardsource import open_inventory
from agent.events import EventQueue, Notice, Subject
from agent.http import StatusServer, probe
from agent.inject import CONTROL_DEVICES, inject
from agent.journal import LogJournal
from agent.kubelet import Endpoint, Registrar
from agent.ledger import Claim
from agent.metrics import Metrics
from agent.outbox import PatchQueue
from agent.podresources import PodResources
from agent.pods import PodCache
from agent.server import DevicePluginService
from agent.settings import Settings
from agent.tickets import Resource, TicketBook
from agent.turnstile import Turnstile

log = logging.getLogger(__name__)

# All threads together; one may hang in a request that the API server does not answer.
_JOIN_SECONDS = 3.0
# How long the kubelet is kept waiting for the API server: what List shows is enough to
# serve, the pods' specs only make it better.
_SYNC_SECONDS = 10.0
# How long a running pod waits at most for a record that an agent killed in between owes it.
_REFRESH_SECONDS = 5.0


class Agent:
    """One node's agent: everything from :class:`Settings` to running threads."""

    def __init__(self, settings: Settings) -> None:
        """Read the cards and the credentials, and wire everything up; nothing runs yet.

        Raises:
            SettingsError: a setting cannot be used.
        """
        names = settings.names
        inventory = open_inventory(settings.cards)
        book = TicketBook(inventory, settings.memory_block)
        resources = {names.core: Resource.CORE, names.memory: Resource.MEMORY}
        control = tuple(path for path in CONTROL_DEVICES if Path(path).exists())
        self._settings = settings
        self._metrics = Metrics()
        self._stop = threading.Event()
        self._api = Api(settings.kubeconfig)
        self._record = PodResources(settings.pod_resources_socket, resources=resources)
        self._outbox = PatchQueue(
            api=self._api,
            names=names,
            indices={card.uuid: card.index for card in inventory.cards},
            on_result=lambda result: self._metrics.patches.labels(result).inc(),
        )
        self._events = EventQueue(
            api=self._api,
            node=settings.node_name,
            on_result=lambda result: self._metrics.events.labels(result).inc(),
        )
        self._pods = PodCache(
            api=self._api,
            node=settings.node_name,
            names=names,
        )
        self._turnstile = Turnstile(
            book=book,
            pods=self._pods,
            record=self._record,
            outbox=self._outbox,
            journal=LogJournal(self._metrics, tell=self._tell_refusal),
            answer=lambda grant: inject(grant, inventory, settings.inject, control_devices=control),
            policy=settings.policy,
        )
        self._pods.subscribe(self._turnstile.catch_up)

        def service(resource: Resource) -> Callable[[], DevicePluginService]:
            return lambda: DevicePluginService(resource=resource, book=book, calls=self._turnstile)

        self._registrar = Registrar(
            plugin_dir=settings.plugin_dir,
            endpoints=(
                Endpoint(names.core, "vcore.sock", service(Resource.CORE)),
                Endpoint(names.memory, "vmemory.sock", service(Resource.MEMORY)),
            ),
            on_registered=self._turnstile.registered,
        )
        self._metrics.registered.set_function(lambda: self._registrar.registered)
        self._threads = [
            threading.Thread(target=target, args=args, name=name, daemon=True)
            for name, target, args in (
                ("pods", self._pods.run, (self._stop,)),
                ("outbox", self._outbox.run, ()),
                ("events", self._events.run, ()),
                ("refresher", self._refresh, ()),
                ("registrar", self._register, ()),
            )
        ]
        log.info(
            "cards",
            extra={
                "cards": {card.uuid: card.model for card in inventory.cards},
                "memory_block": settings.memory_block,
                "control_devices": control,
            },
        )

    def start(self) -> None:
        """Start every thread; nothing blocks.

        Raises:
            SettingsError: the HTTP port cannot be bound.
        """
        pages = {
            "/healthz": probe(self._threads_live, "a thread of the agent has died"),
            "/readyz": probe(lambda: self._registrar.registered, "not registered"),
            "/metrics": lambda: (200, self._metrics.content_type, self._metrics.render()),
        }
        self._http = StatusServer(self._settings.http_host, self._settings.http_port, pages)
        log.info("serving", extra={"http_port": self._http.port})
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End every thread; calls in flight finish, what is unwritten is made again later."""
        self._stop.set()
        self._pods.synced.set()  # wakes the registrar where it still waits for the first list
        self._api.close()
        self._outbox.stop()
        self._events.stop()
        deadline = time.monotonic() + _JOIN_SECONDS
        for thread in reversed(self._threads):  # the registrar first: it has calls to finish
            thread.join(max(deadline - time.monotonic(), 0))
        self._record.close()
        self._http.stop()
        log.info("stopped")

    def _register(self) -> None:
        """Know the node's pods first, if they can be known soon; then let the kubelet in."""
        self._pods.synced.wait(_SYNC_SECONDS)
        if not self._stop.is_set():
            self._turnstile.rebuild()
            memory.freeze()
            self._registrar.run(self._stop)

    def _refresh(self) -> None:
        """Look after pods that wait for their record, on a node where no call comes any more."""
        while not self._stop.wait(_REFRESH_SECONDS):
            self._turnstile.refresh()

    def _tell_refusal(self, call: str, claim: Claim, reason: str) -> None:
        pod = claim.pod
        word = "GPUStartVetoed" if call == "prestart" else "GPURefused"
        message = f"container {claim.container}: {reason}"
        self._events.put(Notice(Subject("Pod", pod.namespace, pod.name, pod.uid), word, message))

    def _threads_live(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)
