"""The Prometheus metrics of a server: its connections, requests and certificate."""

import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from common.serving.tls import ReloadResult


class ServerMetrics:
    """The metrics of a server.

    Attributes:
        registry: for further metrics.
        connections: number of open connections.
        requests: number of requests whose header has arrived, without a response yet.
    """

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, prefix: str, *, tls: bool = True) -> None:
        """Start at zero.

        Args:
            prefix: prefix of every metric's name.
            tls: whether there is a certificate.
        """
        self._prefix = prefix
        self.registry = CollectorRegistry()
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
        self._ended = Counter(
            f"{prefix}connections_ended",
            "Connections that the server ended first, by reason.",
            ["reason"],
            registry=self.registry,
        )
        if not tls:
            return
        self._reloads = Counter(
            f"{prefix}certificate_reloads",
            "Changes of the certificate's files, by result.",
            ["result"],
            registry=self.registry,
        )
        for change in (ReloadResult.LOADED, ReloadResult.REFUSED):
            self._reloads.labels(change.value)
        self._expiry = Gauge(
            f"{prefix}certificate_expiry_timestamp_seconds",
            "Expiry of the served certificate.",
            registry=self.registry,
        )

    def export(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Export a gauge that is computed at each scrape.

        Args:
            name: its name without the prefix.
            text: its help text.
            value: returns the number.
        """
        Gauge(f"{self._prefix}{name}", text, registry=self.registry).set_function(value)

    def render(self) -> bytes:
        """Write all metrics in the text format."""
        return generate_latest(self.registry)

    def ended(self, reason: str) -> None:
        """Count a connection that the server closed first."""
        self._ended.labels(reason).inc()

    def certificate(self, change: ReloadResult, expires: float) -> None:
        """Count a reload of the files, and set the expiry of the served certificate.

        Args:
            change: the result of the reload since the last call.
            expires: unix time in seconds.
        """
        self._expiry.set(
            expires
        )  # before the count, so that a new count is never seen with the old expiry
        if change is not ReloadResult.NONE:
            self._reloads.labels(change.value).inc()


def _version() -> str:
    try:
        return version("gpu-turnstile")
    except PackageNotFoundError:  # run from a copy of the source
        return "unknown"
