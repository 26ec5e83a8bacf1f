"""What every process of the simulator does: work until it is told to end."""

import signal
import threading

_POLL_S = 0.1


class TerminationSignal:
    """Whether SIGTERM or SIGINT has come. Make it in the main thread, before work begins."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._ended.set())

    def wait(self) -> None:
        """Return once the signal has come."""
        # It may reach one of gRPC's threads: Python then runs the handler only when the main
        # thread wakes by itself.
        while not self._ended.wait(_POLL_S):
            pass
