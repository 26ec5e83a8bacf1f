"""Wait for the signal that ends a process of the simulator."""

import signal
import threading

_POLL_S = 0.1


class TerminationSignal:
    """Catches SIGTERM and SIGINT; create it in the main thread, before other work."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._ended.set())

    def wait(self) -> None:
        """Return when the process has got a signal."""
        # One of gRPC's threads may get the signal. Python then runs the handler only when the
        # main thread wakes, so this loop wakes it often.
        while not self._ended.wait(_POLL_S):
            pass
