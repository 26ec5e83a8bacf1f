"""Pauses between retries: doubled after every failure up to a bound, with jitter.

If the API server fails, a thousand nodes lose it at the same moment. Without jitter they would
return at the same moments too, and overload it again. So a pause lasts between one and one and a
half times its nominal length, as with client-go's ``wait.Jitter``.

No library is used for this: a new item or a stop must be able to end the waits of our loops, and
some loops have one pause per item. Libraries such as tenacity wrap a call and sleep; we would use
only this one formula of them.
"""

import random
from collections.abc import Callable

_SPREAD = 0.5
_MOST_DOUBLINGS = 32  # more could overflow a float, and every bound is smaller

Jitter = Callable[[], float]
"""Returns a number from 0 to 1, exclusive, different for each call."""

by_chance: Jitter = random.SystemRandom().random
"""Jitter from the operating system: no seed changes it, and it changes no seeded generator."""


def spread(seconds: float, jitter: Jitter = by_chance) -> float:
    """Lengthen a pause by up to a half, at random."""
    return seconds * (1 + _SPREAD * jitter())


def pause_after(
    failures: int, shortest: float, longest: float, *, jitter: Jitter = by_chance
) -> float:
    """Return the pause after so many failures in a row, in seconds.

    Args:
        failures: failures so far, at least 1.
        shortest: nominal pause after the first failure.
        longest: bound of the nominal pause.
        jitter: source of randomness.
    """
    doublings = min(failures - 1, _MOST_DOUBLINGS)
    return spread(min(shortest * 2.0**doublings, longest), jitter)


class Backoff:
    """The pauses of one loop. Not safe to share between threads."""

    def __init__(self, shortest: float, longest: float, *, jitter: Jitter = by_chance) -> None:
        """Start without failures.

        Args:
            shortest: nominal pause after the first failure, in seconds.
            longest: bound of the nominal pause.
            jitter: source of randomness.
        """
        self._shortest = shortest
        self._longest = longest
        self._jitter = jitter
        self._failures = 0

    def next(self) -> float:
        """Count a failure and return the pause that follows it, in seconds."""
        self._failures += 1
        return pause_after(self._failures, self._shortest, self._longest, jitter=self._jitter)

    def reset(self) -> None:
        """Forget the failures after a success."""
        self._failures = 0
