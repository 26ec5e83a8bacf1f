"""Calls without a pause while something else happens, and their results."""

import itertools
import threading
import time
from collections.abc import Callable
from typing import Self


class Load:
    """Clients that call again at every response, from entering to leaving.

    Args:
        call: called with a unique number; raises if it failed.
        clients: how many there are.

    Attributes:
        seconds: how long each call took.
        failures: what was raised, and how many seconds after the load began.
    """

    def __init__(self, call: Callable[[int], None], *, clients: int = 8) -> None:
        self._call = call
        self._over = threading.Event()
        self._numbers = itertools.count(1)
        self._began = time.monotonic()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]
        self.seconds: list[float] = []
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()

    def __str__(self) -> str:
        """Return number and durations of the calls, as text."""
        took = sorted(self.seconds) or [0.0]
        middle, late, longest = (
            took[at] * 1000 for at in (len(took) // 2, len(took) * 99 // 100, -1)
        )
        return (
            f"{len(self.seconds)} calls of {len(self._threads)} clients, {len(self.failures)} "
            f"failed; p50 {middle:.0f} ms, p99 {late:.0f} ms, longest {longest:.0f} ms"
        )

    def more(self, calls: int) -> Callable[[], bool]:
        """Return a condition: *calls* more than now have ended."""
        until = len(self.seconds) + calls
        return lambda: len(self.seconds) >= until

    def _run(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            try:
                self._call(next(self._numbers))
            # Whatever it was: a load that ended early and silently would prove nothing.
            except Exception as error:  # noqa: BLE001
                after = began - self._began
                self.failures.append(f"after {after:.1f} s: {type(error).__name__}: {error}")
            self.seconds.append(time.monotonic() - began)
