"""The metrics of the claims program."""

from common.metrics import ProgramMetrics

RESULTS = ("created", "found", "swept", "replaced", "refused", "unavailable")


class Metrics(ProgramMetrics):
    """Every metric of one replica."""

    def __init__(self) -> None:
        super().__init__("gpu_turnstile_claims_")
        self._writes = self.counter(
            "writes", "Templates created or deleted, and requests that failed, by result.", "result"
        )
        for result in RESULTS:
            self._writes.labels(result)

    def wrote(self, result: str) -> None:
        """Count a request; *result* is one of :data:`RESULTS`."""
        self._writes.labels(result).inc()
