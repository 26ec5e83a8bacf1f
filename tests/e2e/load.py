"""Calls that never stop while something else happens, and what became of them."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that failed.

    Attributes:
        at: seconds since the load began.
        why: what was raised.
    """

    at: float
    why: str


class Load:
    """Clients that call as fast as they are answered, from entering to leaving.

    Args:
        call: is given a number that no other call has; raises if what it did failed.
        clients: how many there are.
    """

    def __init__(self, call: Callable[[int], None], *, clients: int = 8) -> None:
        self._call = call
        self._clients = clients
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._began = 0.0
        self._threads: list[threading.Thread] = []
        self._next = 0
        self.seconds: list[float] = []
        self.failures: list[Failure] = []

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._threads = [threading.Thread(target=self._run) for _ in range(self._clients)]
        for each in self._threads:
            each.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        for each in self._threads:
            each.join()

    def __str__(self) -> str:
        """Say how many calls there were, and how long they took."""
        took = sorted(self.seconds) or [0.0]
        middle, late = took[len(took) // 2], took[len(took) * 99 // 100]
        return (
            f"{len(self.seconds)} calls of {self._clients} clients, {len(self.failures)} failed; "
            f"p50 {middle * 1000:.0f} ms, p99 {late * 1000:.0f} ms, "
            f"longest {took[-1] * 1000:.0f} ms"
        )

    def more(self, calls: int) -> Callable[[], bool]:
        """Make a condition: that *calls* more than now have been answered."""
        until = len(self.seconds) + calls
        return lambda: len(self.seconds) >= until

    def _run(self) -> None:
        while not self._over.is_set():
            with self._lock:
                self._next += 1
                number = self._next
            began = time.monotonic()
            try:
                self._call(number)
            # Whatever it was: a load that ended early and silently would prove nothing.
            except Exception as error:  # noqa: BLE001
                failure = Failure(began - self._began, f"{type(error).__name__}: {error}")
                self.failures.append(failure)
            self.seconds.append(time.monotonic() - began)
