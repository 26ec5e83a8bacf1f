"""The metrics of the controller. Only this module of it imports ``prometheus_client``."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

_PREFIX = "gpu_turnstile_gates_"
RESULTS = ("ready", "retry", "waits", "held", "requeued", "conflict", "unavailable")


class Metrics:
    """Every metric of one replica."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._answers = Counter(
            f"{_PREFIX}answers",
            "Answers to admission checks, and requests that failed, by result.",
            ["result"],
            registry=self.registry,
        )
        for result in RESULTS:
            self._answers.labels(result)

    def answered(self, result: str) -> None:
        """Count an answer; *result* is one of :data:`RESULTS`."""
        self._answers.labels(result).inc()

    def export(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Export a gauge that is computed at each scrape; *name* is without the prefix."""
        Gauge(f"{_PREFIX}{name}", text, registry=self.registry).set_function(value)

    def render(self) -> bytes:
        """Write all metrics in the text format."""
        return generate_latest(self.registry)
