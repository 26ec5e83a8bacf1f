"""The extender's Prometheus metrics."""

from prometheus_client import Histogram

from common.serving.metrics import ServerMetrics

_PREFIX = "gpu_turnstile_scheduler_"
_BUCKETS = (
    *(0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
VERBS = FILTER, PRIORITIZE, PREEMPT, BIND = "filter", "prioritize", "preempt", "bind"
BINDINGS = (
    *("bound", "found", "refused", "rejected", "elsewhere", "gone", "doubtful"),
    *("unavailable", "busy", "not-leader"),
)
PREEMPTIONS = (
    *("nominated", "bound", "waits", "elsewhere", "none", "budgets"),
    *("unavailable", "refused", "lost", "expired"),
)


class Metrics(ServerMetrics):
    """Every metric of one replica."""

    def __init__(self) -> None:
        super().__init__(_PREFIX)
        self._seconds = Histogram(
            f"{_PREFIX}request_duration_seconds",
            "Seconds from the body of a request to the body of its response.",
            ["verb"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        text = "Requests with an error as response: invalid request, not ready, or internal."
        self._errors = self.counter("errors", text, "verb")
        bindings = self.counter("bindings", "Requests to bind a pod, by result.", "result")
        nodes = self.counter("nodes", "Nodes in filter requests, by decision.", "decision")
        text = "Pods that fit on no card and may preempt, by what was found and what became of it."
        self._preemptions = self.counter("preemptions", text, "result")
        self._victims = self.counter("victims", "Evicted pods.")
        for result in PREEMPTIONS:
            self._preemptions.labels(result)
        # Kept, because finding a child by its label costs more than counting.
        self._seconds_of = {verb: self._seconds.labels(verb) for verb in VERBS}
        for verb in VERBS:
            self._errors.labels(verb)
        self._bound = {result: bindings.labels(result) for result in BINDINGS}
        self._filtered = [nodes.labels(each) for each in ("fits", "full", "never")]

    def count_response(self, verb: str, seconds: float) -> None:
        """Count a request without an error; *verb* is one of :data:`VERBS`."""
        self._seconds_of[verb].observe(seconds)

    def failed(self, verb: str) -> None:
        """Count a request with an error."""
        self._errors.labels(verb).inc()

    def bound(self, result: str) -> None:
        """Count a request to bind; *result* is one of :data:`BINDINGS`."""
        self._bound[result].inc()

    def filtered(self, fits: int, full: int, never: int) -> None:
        """Count the nodes of a filter request, by decision."""
        for counter, count in zip(self._filtered, (fits, full, never), strict=True):
            counter.inc(count)

    def preempted(self, result: str) -> None:
        """Count a pod that may preempt; *result* is one of :data:`PREEMPTIONS`."""
        self._preemptions.labels(result).inc()

    def evicted(self) -> None:
        """Count an evicted pod."""
        self._victims.inc()
