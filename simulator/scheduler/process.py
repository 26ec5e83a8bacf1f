"""A scheduler as a process of its own."""

import signal
import threading

from simulator.client import ApiClient
from simulator.scheduler.configuration import SchedulerSettings
from simulator.scheduler.extended import ExtendedScheduler
from simulator.scheduler.scheduler import Scheduler

_POLL_S = 0.1


def run_scheduler(
    client: ApiClient, *, seed: int, workers: int, settings: SchedulerSettings | None = None
) -> None:
    """Bind pods until SIGTERM or SIGINT. Call it from the main thread.

    Args:
        client: the API server.
        seed: of everything random.
        workers: how many bindings are under way at once.
        settings: of a configuration with extenders; none for the plain scheduler.

    Raises:
        ValueError: the settings of an extender cannot be used.
    """
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    scheduler = (
        Scheduler(client, seed=seed, workers=workers)
        if settings is None
        else ExtendedScheduler(client, settings, seed=seed, workers=workers)
    )
    scheduler.start()
    while not ended.wait(_POLL_S):
        pass
    scheduler.stop()
