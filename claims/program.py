"""Assembles one replica: state, watches, writer, probes and metrics."""

import logging
import threading
from collections.abc import Callable

from claims.cluster import ClaimsApi, follow
from claims.metrics import Metrics
from claims.settings import Settings
from claims.state import TemplateState
from claims.writer import TemplateWriter
from common.status import StatusServer, probe
from contract.claims import driver_name

log = logging.getLogger(__name__)


class ClaimsProgram:
    """The parts of one replica, and their threads."""

    def __init__(self, settings: Settings) -> None:
        """Read the credentials; no request is sent before :meth:`start`.

        Raises:
            InvalidName: the domain is too long for a driver's name.
            SettingsError: the credentials cannot be used.
        """
        driver_name(settings.names)
        self._settings = settings
        self.metrics = Metrics()
        self._state = TemplateState(settings.names)
        self._api = ClaimsApi(settings.kubeconfig)
        self._followers = follow(self._state, self._api)
        self._writer = TemplateWriter(
            self._state,
            self._api,
            self.metrics,
            names=settings.names,
            most=settings.most_templates,
            unused=settings.unused,
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._writer.run,
            args=(self._stop, lambda: self._followers.in_step),
            name="writer",
            daemon=True,
        )
        self._http: StatusServer | None = None
        export_gauges(self.metrics, self._state, in_step=lambda: self._followers.in_step)

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
        self._followers.start()
        self._thread.start()

    def stop(self) -> None:
        """End the watches and all threads; what is not written yet, a replica finds again."""
        self._stop.set()
        self._state.changed.set()
        self._followers.stop()
        self._api.close()
        if self._thread.ident:
            self._thread.join(5)
        if self._http is not None:
            self._http.stop()

    def broken(self) -> str:
        """Return why this replica must be restarted; empty if it need not."""
        ended = self._followers.ended()
        if not self._stop.is_set() and self._thread.ident and not self._thread.is_alive():
            ended.append(self._thread.name)
        return f"thread {ended[0]} has ended, see the log" if ended else ""

    def not_ready(self) -> str:
        """Return why this replica is not ready; empty if it is."""
        return "" if self._followers.in_step else "pods and templates are not listed yet"


def export_gauges(metrics: Metrics, state: TemplateState, *, in_step: Callable[[], bool]) -> None:
    """Export the gauges that are computed at each scrape."""
    for name, text, value in (
        ("in_step", "1 while pods and templates are listed and watched.", in_step),
        ("pods", "Pods that name a template.", lambda: state.counts[0]),
        ("waiting_pods", "Pods that wait for their claim.", lambda: state.counts[1]),
        ("templates", "Templates.", lambda: state.counts[2]),
    ):
        metrics.export(name, text, value)
