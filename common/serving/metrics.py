"""The Prometheus metrics of a server: its connections, requests and certificate."""

import platform
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import Gauge

from common.metrics import ProgramMetrics
from common.serving.tls import ReloadResult


class ServerMetrics(ProgramMetrics):
    """The metrics of a server.

    Attributes:
        connections: number of open connections.
        requests: number of requests whose header has arrived, without a response yet.
    """

    def __init__(self, prefix: str, *, tls: bool = True) -> None:
        """Start at zero; *tls* is whether there is a certificate."""
        super().__init__(prefix)
        self.connections = self.requests = 0
        build = Gauge(
            f"{prefix}build_info",
            "The running version.",
            ["version", "python"],
            registry=self.registry,
        )
        build.labels(_version(), platform.python_version()).set(1)
        self.export(
            "requests_in_flight",
            "Requests whose header has arrived, without a response yet.",
            lambda: self.requests,
        )
        self.export("connections", "Open connections.", lambda: self.connections)
        text = "Connections that the server ended first, by reason."
        self._ended = self.counter("connections_ended", text, "reason")
        if not tls:
            return
        text = "Changes of the certificate's files, by result."
        self._reloads = self.counter("certificate_reloads", text, "result")
        for change in (ReloadResult.LOADED, ReloadResult.REFUSED):
            self._reloads.labels(change.value)
        self._expiry = Gauge(
            f"{prefix}certificate_expiry_timestamp_seconds",
            "Expiry of the served certificate.",
            registry=self.registry,
        )

    def ended(self, reason: str) -> None:
        """Count a connection that the server closed first."""
        self._ended.labels(reason).inc()

    def certificate(self, change: ReloadResult, expires: float) -> None:
        """Count a reload of the files, and set the expiry of the certificate, unix seconds."""
        # Before the count, so that a new count is never seen with the old expiry.
        self._expiry.set(expires)
        if change is not ReloadResult.NONE:
            self._reloads.labels(change.value).inc()


def _version() -> str:
    try:
        return version("gpu-turnstile")
    except PackageNotFoundError:  # run from a copy of the source
        return "unknown"
