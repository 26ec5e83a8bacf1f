"""A scheduler as a process of its own."""

import signal
import threading

from simulator.client import ApiClient
from simulator.scheduler.scheduler import Scheduler

_POLL_S = 0.1


def run_scheduler(client: ApiClient, *, seed: int, workers: int) -> None:
    """Bind pods until SIGTERM or SIGINT. Call it from the main thread."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    scheduler = Scheduler(client, seed=seed, workers=workers)
    scheduler.start()
    while not ended.wait(_POLL_S):
        pass
    scheduler.stop()
