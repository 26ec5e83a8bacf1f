"""A token bucket, as the kubelet puts before PodResources (K5). Pure: the clock arrives."""

from collections.abc import Callable


class TokenBucket:
    """Allows *rate* calls a second, and up to *burst* at once. Not safe between threads.

    Args:
        rate: tokens a second.
        burst: tokens that can pile up.
        clock: monotonic seconds.
    """

    def __init__(self, *, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._clock = clock
        self._tokens = float(burst)
        self._filled_at = clock()

    def allow(self) -> bool:
        """Take a token, if there is one."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
