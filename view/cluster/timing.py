"""Clocks and intervals of everything that follows a cluster, as one argument."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Clocks, and intervals in seconds.

    Attributes:
        now: returns unix time.
        monotonic: returns seconds; a change of the system's time does not affect it.
        heartbeat: interval and timeout of requests that check whether the API server responds.
        pause: least pause between two pages while the cluster changes all the time.
        redraw: pause after which a page is drawn again without a change: its age has grown.
    """

    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    heartbeat: float = 4.0
    pause: float = 1.0
    redraw: float = 2.0


REAL_TIME = Timing()
