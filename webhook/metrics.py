"""The webhook's Prometheus metrics. The only importer of ``prometheus_client`` here.

Workers are processes: each writes its numbers to files in a shared directory, and the one
that is asked adds them up. The files are named by the worker's place among the workers and
not by its process, so that the successor of a dead worker continues its counts, and restarts
do not add files.
"""

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

_PREFIX = "gpu_turnstile_webhook_"
_BUCKETS = (
    *(0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
)


def share(directory: Path, place: int) -> None:
    """Share all metrics that this process makes from now on with other processes.

    Args:
        directory: where the files are; the same for all workers.
        place: of this worker among all that run at the same time.
    """
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(directory)  # where the library looks for it
    shared_value = values.MultiProcessValue(lambda: place)  # type: ignore[no-untyped-call]  # is not typed
    values.ValueClass = shared_value


class Metrics:
    """Every metric of one worker.

    Args:
        shared: the directory given to :func:`share`; ``None`` for a process of its own.
    """

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, shared: Path | None = None) -> None:
        self._registry = registry = CollectorRegistry()
        if shared is not None:
            MultiProcessCollector(registry, path=str(shared))  # type: ignore[no-untyped-call]  # is not typed
            registry = CollectorRegistry()
        self._reviews = Counter(
            f"{_PREFIX}reviews",
            "Reviews answered; of a denied one also the first rule it breaks.",
            ["route", "verdict", "rule"],
            registry=registry,
        )
        self._findings = Counter(
            f"{_PREFIX}findings",
            "Reviews that broke a rule, counted for each rule.",
            ["route", "rule"],
            registry=registry,
        )
        self._refusals = Counter(
            f"{_PREFIX}refusals",
            "Requests that were no review, by HTTP status.",
            ["status"],
            registry=registry,
        )
        self._seconds = Histogram(
            f"{_PREFIX}review_duration_seconds",
            "From the body of a review to the body of its answer.",
            ["route"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._in_flight = self._gauge(
            "requests_in_flight",
            "Requests that have begun to arrive and are not answered.",
            registry,
        )
        self._connections = self._gauge("connections", "Connections that are open.", registry)
        self._ended = Counter(
            f"{_PREFIX}connections_ended",
            "Connections ended before their client did, by what they waited for and why.",
            ["state", "reason"],
            registry=registry,
        )
        self._expiry = Gauge(
            f"{_PREFIX}certificate_expiry_timestamp_seconds",
            "When the certificate that is served ends, of all workers the earliest.",
            registry=registry,
            multiprocess_mode="min",
        )
        self._reloads = Counter(
            f"{_PREFIX}certificate_reloads",
            "Times the files of the certificate had changed, by what became of it.",
            ["result"],
            registry=registry,
        )
        for result in ("loaded", "refused"):
            self._reloads.labels(result)
        Gauge(
            f"{_PREFIX}build_info",
            "What is running.",
            ["version", "python"],
            registry=registry,
            multiprocess_mode="max",
        ).labels(_version(), platform.python_version()).set(1)
        self._counted: dict[tuple[str, str, str], Counter] = {}
        self._timed: dict[str, Histogram] = {}

    def reviewed(self, route: str, verdict: str, rules: Sequence[str], seconds: float) -> None:
        """Count a review.

        Args:
            route: its path.
            verdict: one word.
            rules: those it breaks.
            seconds: how long it took.
        """
        key = (route, verdict, rules[0] if rules else "")
        counter = self._counted.get(key)
        if counter is None:  # finding a child by its labels costs more than counting
            counter = self._counted[key] = self._reviews.labels(*key)
        counter.inc()
        for rule in rules:
            self._findings.labels(route, rule).inc()
        timed = self._timed.get(route)
        if timed is None:
            timed = self._timed[route] = self._seconds.labels(route)
        timed.observe(seconds)

    def refused(self, status: int) -> None:
        """Count a request that was no review."""
        self._refusals.labels(str(status)).inc()

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

    def render(self) -> bytes:
        """Write all metrics, of all workers, in the text format."""
        return generate_latest(self._registry)

    @staticmethod
    def _gauge(name: str, text: str, registry: CollectorRegistry) -> Gauge:
        gauge = Gauge(f"{_PREFIX}{name}", text, registry=registry, multiprocess_mode="sum")
        gauge.set(0)  # the worker before in this place has died with all it had open
        return gauge


def _version() -> str:
    try:
        return version("gpu-turnstile")
    except PackageNotFoundError:  # run from a copy of the source
        return "unknown"
