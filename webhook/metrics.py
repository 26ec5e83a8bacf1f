"""The webhook's Prometheus metrics."""

from collections.abc import Iterable, Sequence

from prometheus_client import Gauge, Histogram

from common.serving.metrics import ServerMetrics

_PREFIX = "gpu_turnstile_webhook_"
_BUCKETS = (
    *(0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
)


class Metrics(ServerMetrics):
    """Every metric of the webhook."""

    def __init__(self, accept: Iterable[str] = ()) -> None:
        """Start at zero.

        *accept* are other systems whose pods are translated.
        """
        super().__init__(_PREFIX)
        accepts = Gauge(
            f"{_PREFIX}accepts",
            "Other systems whose pods are translated.",
            ["system"],
            registry=self.registry,
        )
        for each in sorted(accept):
            accepts.labels(each).set(1)
        text = "Reviews handled; a denied one has the first rule that it breaks."
        self._reviews = self.counter("reviews", text, "route", "verdict", "rule")
        text = "Reviews that broke a rule, counted for each rule."
        self._findings = self.counter("findings", text, "route", "rule")
        text = "Requests refused because they were not a review, by HTTP status."
        self._refusals = self.counter("refusals", text, "status")
        self._seconds = Histogram(
            f"{_PREFIX}review_duration_seconds",
            "Seconds from the body of a review to the body of its response.",
            ["route"],
            buckets=_BUCKETS,
            registry=self.registry,
        )

    def reviewed(self, route: str, verdict: str, rules: Sequence[str], seconds: float) -> None:
        """Count a review.

        *verdict* is ``allowed``, ``patched`` or ``denied``; *rules* are those that it breaks,
        sorted.
        """
        self._reviews.labels(route, verdict, rules[0] if rules else "").inc()
        for rule in rules:
            self._findings.labels(route, rule).inc()
        self._seconds.labels(route).observe(seconds)

    def refused(self, status: int) -> None:
        """Count a request that was refused because it was not a review."""
        self._refusals.labels(str(status)).inc()
