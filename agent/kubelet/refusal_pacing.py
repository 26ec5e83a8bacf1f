"""How fast refusals are answered: a controller may make a new pod for each one that is refused.

The kubelet admits pods one at a time and waits for each answer. A refusal that is answered a little
later slows such a loop down, and costs a single refused pod nothing.
"""

import threading
from collections.abc import Callable

BURST = 40
"""So many refusals are answered at once."""
PER_SECOND = 40.0
"""So many are answered in the long run."""
LONGEST_SECONDS = 0.5


class RefusalPace:
    """A token bucket: a burst at once, then so many a second. Safe to share between threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start with a whole burst; *clock* gives seconds, monotonic."""
        self._clock = clock
        self._burst = BURST / PER_SECOND
        self._lock = threading.Lock()
        self._next = clock() - self._burst  # when the bucket was empty last, had it been used

    def delay(self) -> float:
        """Count a refusal, and return after how many seconds it is to be answered."""
        now = self._clock()
        with self._lock:
            self._next = max(self._next, now - self._burst) + 1 / PER_SECOND
            return min(max(self._next - now, 0.0), LONGEST_SECONDS)
