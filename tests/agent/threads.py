"""Loops of the agent: in a thread for the length of a block, or without waiting."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def running(run: Callable[[], object], stop: Callable[[], object]) -> Iterator[None]:
    """Run *run* in a thread, and end it by *stop*."""
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(120)
        assert not thread.is_alive()


class CountedStop(threading.Event):
    """A stop that waits for nothing: it records each pause, and is set after so many.

    Before it returns from a pause, it takes the next one of the given steps.
    """

    def __init__(self, pauses: int, *steps: Callable[[], object]) -> None:
        super().__init__()
        self.waited: list[float] = []
        self._pauses = pauses
        self._steps = list(steps)

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        if self._steps:
            self._steps.pop(0)()
        if len(self.waited) == self._pauses:
            self.set()
        return self.is_set()
