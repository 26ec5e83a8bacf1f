"""The Prometheus metrics of a server: its connections, requests and certificate."""

from pathlib import Path
from typing import Protocol

from prometheus_client import Counter, Gauge

from common.metrics import ProcessMetrics
from common.serving.tls import Change


class Observer(Protocol):
    """The metrics of connections: changes of two gauges, and a counter."""

    def in_flight(self, change: int) -> None: ...  # noqa: D102
    def connected(self, change: int) -> None: ...  # noqa: D102
    def ended(self, why: str) -> None: ...  # noqa: D102


class ServerMetrics(ProcessMetrics):
    """The metrics of one worker of a server."""

    def __init__(self, prefix: str, shared: Path | None = None, *, tls: bool = True) -> None:
        """Begin with nothing open.

        Args:
            prefix: as of :class:`ProcessMetrics`.
            shared: as there.
            tls: whether there is a certificate.
        """
        super().__init__(prefix, shared)
        self._in_flight = self._gauge(
            "requests_in_flight", "Requests whose header has arrived and that are not answered."
        )
        self._open = 0
        self._connections = self._gauge("connections", "Connections that are open.")
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
        for change in (Change.LOADED, Change.REFUSED):
            self._reloads.labels(change.value)
        self._expiry = Gauge(
            f"{prefix}certificate_expiry_timestamp_seconds",
            "When the certificate that is served ends, of all workers the earliest.",
            registry=self.registry,
            multiprocess_mode="min",
        )

    def in_flight(self, change: int) -> None:
        """Add to the requests that are not answered; others see it from the next :meth:`tell` on.

        To write it into a file that processes share takes longer than to read a request.
        """
        self._open += change

    def tell(self) -> None:
        """Let other processes see what changes with each request."""
        self._in_flight.set(self._open)

    def render(self) -> bytes:
        """Write all metrics, of all processes, in the text format."""
        self.tell()
        return super().render()

    def connected(self, change: int) -> None:
        """Add to the open connections."""
        self._connections.inc(change)

    def ended(self, why: str) -> None:
        """Count a connection that the server closed first."""
        self._ended.labels(why).inc()

    def certificate(self, change: Change, expires: float) -> None:
        """Count what became of new files, and set the end of the certificate that is served.

        Args:
            change: since the last call.
            expires: unix time in seconds.
        """
        self._expiry.set(expires)  # before the count: whoever sees the count sees the end as well
        if change is not Change.NONE:
            self._reloads.labels(change.value).inc()

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge = Gauge(
            f"{self._prefix}{name}", text, registry=self.registry, multiprocess_mode="sum"
        )
        gauge.set(0)  # the worker before in this place has died with all it had open
        return gauge
