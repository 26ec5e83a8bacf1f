"""The page's Prometheus metrics. The only importer of ``prometheus_client`` here."""

import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_PREFIX = "gpu_turnstile_view_"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Every metric of one process."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            f"{_PREFIX}requests",
            "Requests answered, by route and HTTP status.",
            ["route", "status"],
            registry=self._registry,
        )
        self._editions = Histogram(
            f"{_PREFIX}edition_duration_seconds",
            "Time to make one picture of the cluster.",
            buckets=_BUCKETS,
            registry=self._registry,
        )
        Gauge(
            f"{_PREFIX}build_info",
            "What is running.",
            ["version", "python"],
            registry=self._registry,
        ).labels(_version(), platform.python_version()).set(1)

    def answered(self, route: str, status: int) -> None:
        """Count a request.

        Args:
            route: name of the route; empty where there is none.
            status: of HTTP.
        """
        self._requests.labels(route, str(status)).inc()

    def made(self, seconds: float) -> None:
        """Count one picture of the cluster, and how long it took."""
        self._editions.observe(seconds)

    def observe(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Export a number that is looked at when somebody asks.

        Args:
            name: without the prefix of all.
            text: what it is.
            value: returns it.
        """
        Gauge(f"{_PREFIX}{name}", text, registry=self._registry).set_function(value)

    def render(self) -> bytes:
        """Write all metrics in the text format."""
        return generate_latest(self._registry)


def _version() -> str:
    try:
        return version("gpu-turnstile")
    except PackageNotFoundError:  # run from a copy of the source
        return "unknown"
