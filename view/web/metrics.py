"""The page's Prometheus metrics."""

from prometheus_client import Histogram

from common.serving.metrics import ServerMetrics

_PREFIX = "gpu_turnstile_view_"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics(ServerMetrics):
    """All metrics of one process."""

    def __init__(self) -> None:
        super().__init__(_PREFIX, tls=False)
        text = "HTTP requests, by route and status."
        self._requests = self.counter("requests", text, "route", "status")
        self._editions = Histogram(
            f"{_PREFIX}edition_duration_seconds",
            "Time to make one edition of the cluster.",
            buckets=_BUCKETS,
            registry=self.registry,
        )

    def count_response(self, route: str, status: int) -> None:
        """Count a request."""
        self._requests.labels(route, str(status)).inc()

    def count_edition(self, seconds: float) -> None:
        """Count one edition of the cluster and its duration."""
        self._editions.observe(seconds)
