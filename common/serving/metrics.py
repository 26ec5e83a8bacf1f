"""The Prometheus metrics of a server: its connections, requests and certificate."""

import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from common.serving.tls import ReloadResult


class ServerMetrics:
    """The metrics of a server.

    Attributes:
        registry: where further ones are registered.
        connections: that are open.
        requests: whose header has arrived and that are not answered.
    """

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, prefix: str, *, tls: bool = True) -> None:
        """Begin with nothing open.

        Args:
            prefix: of the name of every metric.
            tls: whether there is a certificate.
        """
        self._prefix = prefix
        self.registry = CollectorRegistry()
        self.connections = self.requests = 0
        build = Gauge(
            f"{prefix}build_info", "What is running.", ["version", "python"], registry=self.registry
        )
        build.labels(_version(), platform.python_version()).set(1)
        self.export(
            "requests_in_flight",
            "Requests whose header has arrived and that are not answered.",
            lambda: self.requests,
        )
        self.export("connections", "Connections that are open.", lambda: self.connections)
        self._ended = Counter(
            f"{prefix}connections_ended",
            "Connections ended before their client did, by the reason.",
            ["reason"],
            registry=self.registry,
        )
        if not tls:
            return
        self._reloads = Counter(
            f"{prefix}certificate_reloads",
            "Times the files of the certificate had changed, by what became of it.",
            ["result"],
            registry=self.registry,
        )
        for change in (ReloadResult.LOADED, ReloadResult.REFUSED):
            self._reloads.labels(change.value)
        self._expiry = Gauge(
            f"{prefix}certificate_expiry_timestamp_seconds",
            "When the certificate that is served ends.",
            registry=self.registry,
        )

    def export(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Export a number that is looked at when somebody asks.

        Args:
            name: without the prefix of all.
            text: what it is.
            value: returns it.
        """
        Gauge(f"{self._prefix}{name}", text, registry=self.registry).set_function(value)

    def render(self) -> bytes:
        """Write all metrics in the text format."""
        return generate_latest(self.registry)

    def ended(self, why: str) -> None:
        """Count a connection that the server closed first."""
        self._ended.labels(why).inc()

    def certificate(self, change: ReloadResult, expires: float) -> None:
        """Count what became of new files, and set the end of the certificate that is served.

        Args:
            change: since the last call.
            expires: unix time in seconds.
        """
        self._expiry.set(expires)  # before the count: whoever sees the count sees the end as well
        if change is not ReloadResult.NONE:
            self._reloads.labels(change.value).inc()


def _version() -> str:
    try:
        return version("gpu-turnstile")
    except PackageNotFoundError:  # run from a copy of the source
        return "unknown"
