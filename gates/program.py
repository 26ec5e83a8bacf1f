"""Assembles one replica: state, watches, election, the checker, probes and metrics."""

import logging
import secrets
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from common.status import StatusServer, probe
from gates.checker import Checker
from gates.cluster import GateApi, follow
from gates.metrics import Metrics
from gates.settings import Settings
from gates.state import GateState
from scheduler.election import Election
from scheduler.leadership import LeaderEndpoint, Leadership

log = logging.getLogger(__name__)


class GatesProgram:
    """The parts of one replica, and their threads."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the credentials; no request is sent before :meth:`start`.

        Raises:
            SettingsError: the credentials cannot be used.
        """
        self._settings = settings
        self.metrics = Metrics()
        self.state = GateState(settings.names, settings.policy)
        self._api = GateApi(settings.kubeconfig)
        self._watches = follow(self.state, self._api)
        election = Election(
            self._api,
            namespace=settings.namespace,
            name=settings.lease,
            identity=f"{settings.identity}_{secrets.token_hex(4)}",
            clock=clock,
            now=lambda: datetime.now(UTC),
            component="scheduler-queues",
        )
        nowhere = LeaderEndpoint(
            api=self._api, namespace=settings.namespace, name="", address="", port=0
        )
        self.leadership = Leadership(election, self._watches, nowhere, clock=clock)
        self._checker = Checker(
            self.state,
            self._api,
            not_leading=self.leadership.not_acting,
            node_policy=settings.node_policy,
            keep=settings.keep,
            retry=settings.retry,
            longest_retry=settings.longest_retry,
            on_result=self.metrics.answered,
        )
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=run, args=(self._stop,), name=name, daemon=True)
            for name, run in (("leadership", self._lead), ("checker", self._checker.run))
        ]
        self._http: StatusServer | None = None
        export_gauges(
            self.metrics,
            self.state,
            leads=lambda: not self.leadership.not_binding(),
            in_step=lambda: self._watches.in_step,
        )

    @property
    def http_port(self) -> int:
        """The port of probes and metrics; 0 before the start."""
        return 0 if self._http is None else self._http.port

    def start(self) -> None:
        """Serve probes and metrics, and follow the cluster; returns at once.

        Raises:
            SettingsError: the HTTP port cannot be bound.
        """
        pages = {
            "/healthz": probe(self.broken),
            "/readyz": probe(self.not_ready),
            "/metrics": lambda: (200, self.metrics.content_type, self.metrics.render()),
        }
        host, port = self._settings.http_host, self._settings.http_port
        self._http = StatusServer(host, port, pages, slow=["/metrics"])
        log.info("serving", extra={"http_port": self.http_port})
        for each in self._threads:
            each.start()

    def stop(self) -> None:
        """Write nothing more, release the lease, and end all threads; later calls do nothing."""
        if self._stop.is_set():
            return
        self.leadership.end(is_binding=lambda: self._checker.is_writing)
        self._stop.set()
        self.state.changed.set()
        self._watches.stop()
        self._api.close()
        if self._http is not None:
            self._http.stop()

    def broken(self) -> str:
        """Return why this replica must be restarted; empty if it need not."""
        ended = self._watches.ended()
        if not self._stop.is_set():
            ended += [each.name for each in self._threads if each.ident and not each.is_alive()]
        return f"thread {ended[0]} has ended, see the log" if ended else ""

    def not_ready(self) -> str:
        """Return why this replica is not ready; empty if it is."""
        return "" if self._watches.in_step else "nodes, pods and workloads are not listed yet"

    def _lead(self, stop: threading.Event) -> None:
        # The first list starts after the lease was taken, so that the leader need not list again.
        follow = threading.Thread(target=self._follow, name="follow", daemon=True)
        follow.start()
        self.leadership.run(stop)

    def _follow(self) -> None:
        self.leadership.first_step.wait()
        self._watches.start()


def oldest_wait(state: GateState) -> float:
    """Return how many seconds ago quota was reserved that no check has answered; 0 if all have.

    A check that waits for pods to end has answered: it keeps their cards.
    """
    since = [
        workload.since
        for workload, check in state.waiting()
        if not str(check.get("message") or "").startswith("{")
    ]
    return max(state.now() - min(since), 0.0) if since else 0.0


def export_gauges(
    metrics: Metrics, state: GateState, *, leads: Callable[[], bool], in_step: Callable[[], bool]
) -> None:
    """Export the gauges that are computed at each scrape."""
    for name, text, value in (
        ("leader", "1 while this replica answers.", leads),
        ("in_step", "1 while all objects are listed and watched.", in_step),
        ("waiting_workloads", "Workloads that wait for an answer.", lambda: len(state.waiting())),
        (
            "oldest_wait_seconds",
            "For how long a workload has had quota without an answer, at most; 0 without any.",
            lambda: oldest_wait(state),
        ),
        ("promised_workloads", "Workloads for which cards are kept.", lambda: state.promised),
    ):
        metrics.export(name, text, value)
