"""The metrics of the controller."""

from common.metrics import ProgramMetrics

RESULTS = ("ready", "retry", "waits", "held", "requeued", "conflict", "unavailable")


class Metrics(ProgramMetrics):
    """Every metric of one replica."""

    def __init__(self) -> None:
        super().__init__("gpu_turnstile_gates_")
        self._answers = self.counter(
            "answers", "Answers to admission checks, and requests that failed, by result.", "result"
        )
        for result in RESULTS:
            self._answers.labels(result)

    def answered(self, result: str) -> None:
        """Count an answer; *result* is one of :data:`RESULTS`."""
        self._answers.labels(result).inc()
