"""The Prometheus metrics of a server: its connections, requests and certificate."""

from pathlib import Path

from prometheus_client import Counter, Gauge

from common.metrics import ProcessMetrics


class ServerMetrics(ProcessMetrics):
    """The metrics of one worker of a server."""

    def __init__(self, prefix: str, shared: Path | None = None) -> None:
        """Begin with nothing open; for *prefix* and *shared* see :class:`ProcessMetrics`."""
        super().__init__(prefix, shared)
        self._in_flight = self._gauge(
            "requests_in_flight", "Requests that have begun to arrive and are not answered."
        )
        self._connections = self._gauge("connections", "Connections that are open.")
        self._ended = Counter(
            f"{prefix}connections_ended",
            "Connections ended before their client did, by what they waited for and why.",
            ["state", "reason"],
            registry=self.registry,
        )
        self._reloads = Counter(
            f"{prefix}certificate_reloads",
            "Times the files of the certificate had changed, by what became of it.",
            ["result"],
            registry=self.registry,
        )
        for result in ("loaded", "refused"):
            self._reloads.labels(result)
        self._expiry = Gauge(
            f"{prefix}certificate_expiry_timestamp_seconds",
            "When the certificate that is served ends, of all workers the earliest.",
            registry=self.registry,
            multiprocess_mode="min",
        )

    def in_flight(self, change: int) -> None:
        """Add to the requests that have begun to arrive and are not answered."""
        self._in_flight.inc(change)

    def connected(self, change: int) -> None:
        """Add to the open connections."""
        self._connections.inc(change)

    def ended(self, state: str, why: str) -> None:
        """Count a connection that the server closed first."""
        self._ended.labels(state, why).inc()

    def certificate_ends(self, expires: float) -> None:
        """Set the end of the served certificate."""
        self._expiry.set(expires)

    def certificate_changed(self, result: str) -> None:
        """Count new files of the certificate, by their fate: ``loaded`` or ``refused``."""
        self._reloads.labels(result).inc()

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge = Gauge(
            f"{self._prefix}{name}", text, registry=self.registry, multiprocess_mode="sum"
        )
        gauge.set(0)  # the worker before in this place has died with all it had open
        return gauge
