"""The webhook's Prometheus metrics.

Workers are processes: each writes its numbers to files in a shared directory, and the one
that is asked adds them up. The files are named by the worker's place among the workers and
not by its process, so that the successor of a dead worker continues its counts, and restarts
do not add files.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import Counter, Histogram, values

from common.serving.metrics import ServerMetrics

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


class Metrics(ServerMetrics):
    """Every metric of one worker.

    Args:
        shared: the directory given to :func:`share`; ``None`` for a process of its own.
    """

    def __init__(self, shared: Path | None = None) -> None:
        super().__init__(_PREFIX, shared)
        self._reviews = Counter(
            f"{_PREFIX}reviews",
            "Reviews answered; of a denied one also the first rule it breaks.",
            ["route", "verdict", "rule"],
            registry=self.registry,
        )
        self._findings = Counter(
            f"{_PREFIX}findings",
            "Reviews that broke a rule, counted for each rule.",
            ["route", "rule"],
            registry=self.registry,
        )
        self._refusals = Counter(
            f"{_PREFIX}refusals",
            "Requests that were no review, by HTTP status.",
            ["status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            f"{_PREFIX}review_duration_seconds",
            "From the body of a review to the body of its answer.",
            ["route"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
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
