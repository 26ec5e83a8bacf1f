"""The extender's Prometheus metrics. The only importer of ``prometheus_client`` here."""

import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_PREFIX = "gpu_turnstile_scheduler_"
_BUCKETS = (
    *(0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
DECISIONS, BIND = ("filter", "prioritize"), "bind"
VERBS = (*DECISIONS, BIND)
BINDINGS = (
    *("bound", "found", "refused", "rejected", "elsewhere", "gone", "doubtful"),
    *("unavailable", "busy", "not-leader"),
)


class Metrics:
    """Every metric of one replica."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._seconds = Histogram(
            f"{_PREFIX}request_duration_seconds",
            "From the body of a request to the body of its answer.",
            ["verb"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._errors = Counter(
            f"{_PREFIX}errors",
            "Requests answered with an error: not understood, not in step, or our own.",
            ["verb"],
            registry=self._registry,
        )
        self._bindings = Counter(
            f"{_PREFIX}bindings",
            "Requests to bind a pod, by what became of them.",
            ["result"],
            registry=self._registry,
        )
        self._nodes = Counter(
            f"{_PREFIX}nodes",
            "Nodes asked about by filter, by the decision.",
            ["decision"],
            registry=self._registry,
        )
        # To find a child by its label costs more than to count.
        self._answered = {verb: self._seconds.labels(verb) for verb in VERBS}
        for verb in VERBS:
            self._errors.labels(verb)
        self._bound = {result: self._bindings.labels(result) for result in BINDINGS}
        self._filtered = [self._nodes.labels(each) for each in ("fits", "full", "never")]
        self._in_flight = Gauge(
            f"{_PREFIX}requests_in_flight",
            "Requests that have begun to arrive and are not answered.",
            registry=self._registry,
        )
        self._connections = Gauge(
            f"{_PREFIX}connections", "Connections that are open.", registry=self._registry
        )
        self._ended = Counter(
            f"{_PREFIX}connections_ended",
            "Connections ended before their client did, by what they waited for and why.",
            ["state", "reason"],
            registry=self._registry,
        )
        self._reloads = Counter(
            f"{_PREFIX}certificate_reloads",
            "Times the files of the certificate had changed, by what became of it.",
            ["result"],
            registry=self._registry,
        )
        for result in ("loaded", "refused"):
            self._reloads.labels(result)
        self._expiry = Gauge(
            f"{_PREFIX}certificate_expiry_timestamp_seconds",
            "When the certificate that is served ends.",
            registry=self._registry,
        )
        Gauge(
            f"{_PREFIX}build_info",
            "What is running.",
            ["version", "python"],
            registry=self._registry,
        ).labels(_version(), platform.python_version()).set(1)

    def answered(self, verb: str, seconds: float) -> None:
        """Count a request that was answered.

        Args:
            verb: one of :data:`VERBS`.
            seconds: how long it took.
        """
        self._answered[verb].observe(seconds)

    def failed(self, verb: str) -> None:
        """Count a request that was answered with an error."""
        self._errors.labels(verb).inc()

    def bound(self, result: str) -> None:
        """Count a request to bind, by one of :data:`BINDINGS`."""
        self._bound[result].inc()

    def filtered(self, fits: int, full: int, never: int) -> None:
        """Count nodes asked about, by the decision."""
        for counter, count in zip(self._filtered, (fits, full, never), strict=True):
            counter.inc(count)

    def in_flight(self, change: int) -> None:
        """Add to the requests that have begun to arrive and are not answered."""
        self._in_flight.inc(change)

    def connected(self, change: int) -> None:
        """Add to the open connections."""
        self._connections.inc(change)

    def ended(self, state: str, why: str) -> None:
        """Count a connection that the server closed first."""
        self._ended.labels(state, why).inc()

    def certificate_changed(self, result: str) -> None:
        """Count new files of the certificate, by their fate: ``loaded`` or ``refused``."""
        self._reloads.labels(result).inc()

    def certificate_ends(self, expires: float) -> None:
        """Set the end of the served certificate."""
        self._expiry.set(expires)

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
