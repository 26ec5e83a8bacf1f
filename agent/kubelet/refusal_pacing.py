"""How fast refusals are answered: a controller may make a new pod for each one that is refused.

The kubelet admits pods one at a time and waits for each answer. A refusal that is answered a little
later slows such a loop down, and costs a single refused pod nothing.
"""

import threading
import time
from collections.abc import Callable, Sequence

from agent.allocator.model.answer import Answer
from agent.errors import Refusal
from agent.kubelet.server import Calls
from contract.resource import Resource

BURST = 40
PER_SECOND = 40.0
LONGEST_SECONDS = 0.5


class RefusalPace:
    """A token bucket: a burst at once, then so many a second. Safe to share between threads."""

    def __init__(
        self, clock: Callable[[], float], *, burst: int = BURST, per_second: float = PER_SECOND
    ) -> None:
        """Start with a whole burst.

        Args:
            clock: seconds, monotonic.
            burst: refusals that are answered at once.
            per_second: how many are answered in the long run.
        """
        self._clock = clock
        self._burst = burst / per_second
        self._step = 1 / per_second
        self._lock = threading.Lock()
        self._next = clock() - self._burst  # when the bucket was empty last, had it been used

    def delay(self) -> float:
        """Count a refusal, and return after how many seconds it is to be answered."""
        now = self._clock()
        with self._lock:
            self._next = max(self._next, now - self._burst) + self._step
            return min(max(self._next - now, 0.0), LONGEST_SECONDS)


class PacedCalls:
    """Answers calls as another does, and the kubelet's refusals no faster than their pace."""

    def __init__(
        self,
        calls: Calls,
        *,
        wait: Callable[[float], object],
        pace: RefusalPace | None = None,
    ) -> None:
        """Hand calls on.

        Args:
            calls: what answers them.
            wait: waits for seconds; ends early when the agent does.
            pace: how fast refusals are answered.
        """
        self._calls = calls
        self._wait = wait
        self._pace = pace or RefusalPace(time.monotonic)

    def prefer(
        self, resource: Resource, available: Sequence[str], must: Sequence[str], size: int
    ) -> list[str]:
        """Choose places.

        Raises:
            Refusal: nobody can be asking this, or nothing fits.
        """
        try:
            return self._calls.prefer(resource, available, must, size)
        except Refusal:
            self._wait(self._pace.delay())
            raise

    def allocate(self, resource: Resource, device_ids: Sequence[str]) -> Answer:
        """Translate device IDs, and assign their places.

        Raises:
            Refusal: the IDs make no sense together, or another container holds them.
        """
        try:
            return self._calls.allocate(resource, device_ids)
        except Refusal:
            self._wait(self._pace.delay())
            raise

    def prestart(self, resource: Resource, device_ids: Sequence[str]) -> None:
        """Prove a container; these calls come side by side, and the kubelet paces them itself.

        Raises:
            Refusal: what it holds contradicts what it asks for.
        """
        self._calls.prestart(resource, device_ids)
