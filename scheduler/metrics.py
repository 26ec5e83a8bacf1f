"""The extender's Prometheus metrics."""

from prometheus_client import Counter, Histogram

from common.serving.metrics import ServerMetrics

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


class Metrics(ServerMetrics):
    """Every metric of one replica."""

    def __init__(self) -> None:
        super().__init__(_PREFIX)
        self._seconds = Histogram(
            f"{_PREFIX}request_duration_seconds",
            "From the body of a request to the body of its answer.",
            ["verb"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._errors = Counter(
            f"{_PREFIX}errors",
            "Requests answered with an error: not understood, not in step, or our own.",
            ["verb"],
            registry=self.registry,
        )
        self._bindings = Counter(
            f"{_PREFIX}bindings",
            "Requests to bind a pod, by what became of them.",
            ["result"],
            registry=self.registry,
        )
        self._nodes = Counter(
            f"{_PREFIX}nodes",
            "Nodes asked about by filter, by the decision.",
            ["decision"],
            registry=self.registry,
        )
        # To find a child by its label costs more than to count.
        self._answered = {verb: self._seconds.labels(verb) for verb in VERBS}
        for verb in VERBS:
            self._errors.labels(verb)
        self._bound = {result: self._bindings.labels(result) for result in BINDINGS}
        self._filtered = [self._nodes.labels(each) for each in ("fits", "full", "never")]

    def count_response(self, verb: str, seconds: float) -> None:
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
