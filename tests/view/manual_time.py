"""Time that passes only if a test says so."""

from view.cluster.timing import Timing


class ManualTime:
    """Unix time, also used as monotonic time."""

    def __init__(self, now: float = 1_763_802_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def timing(self) -> Timing:
        """Return clocks that both show this time, and short pauses."""
        return Timing(now=self, monotonic=self, heartbeat=0.5, pause=0.05, redraw=0.1)
