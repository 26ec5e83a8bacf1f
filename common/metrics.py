"""The Prometheus metrics of a program, in a registry of its own."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest


class ProgramMetrics:
    """The metrics of one process; their names begin with a prefix.

    Attributes:
        registry: for further metrics.
    """

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.registry = CollectorRegistry()

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Make a counter; *name* is without the prefix, *text* the help."""
        return Counter(f"{self._prefix}{name}", text, labels, registry=self.registry)

    def export(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Export a gauge that is computed at each scrape; *name* is without the prefix."""
        Gauge(f"{self._prefix}{name}", text, registry=self.registry).set_function(value)

    def render(self) -> bytes:
        """Write all metrics in the text format."""
        return generate_latest(self.registry)
