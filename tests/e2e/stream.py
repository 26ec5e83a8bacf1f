"""Short pods created at a steady rate while something else happens, and their results."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from tests.e2e.cluster import Json

_CLIENTS = 8
_END_SECONDS = 150.0
_LOOK_EVERY = 5
_EVERY = 0.2
"""Seconds between two pods by default, unless the node is behind."""
MOST = 15
"""How many pods may not have ended before more come."""


class Stream:
    """Creates pods from entering to leaving; leaving waits until all have ended."""

    def __init__(
        self,
        create: Callable[[str], object],
        list_pods: Callable[[], Mapping[str, Json]],
        *,
        most: int = MOST,
        every: float = _EVERY,
        within: float = _END_SECONDS,
    ) -> None:
        self._create = create
        self._list_pods = list_pods
        self._most = most
        self._every = every
        self._within = within
        self._over = threading.Event()
        self._creating: dict[str, Future[object]] = {}
        self._pool = ThreadPoolExecutor(_CLIENTS + 1)
        self._running = Future[None]()
        self.pods: dict[str, Json] = {}

    def __enter__(self) -> Self:
        self._running = self._pool.submit(self._run)
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        self._over.set()
        futures.wait([self._running])  # it uses the pool
        self._pool.shutdown()
        if error is not None:
            return
        self._running.result()  # a stream that ended early and silently would prove nothing
        deadline = time.monotonic() + self._within
        for each in self._creating.values():
            each.result()
        while late := self._not_ended():
            assert time.monotonic() < deadline, f"{len(late)} pods do not end, such as {late[:3]}"
            time.sleep(0.2)

    def __str__(self) -> str:
        failed = Counter(self.failed.values())
        why = "".join(f"; {count} times {text}" for text, count in failed.most_common())
        return f"{len(self.pods)} pods, {failed.total()} failed{why}"

    @property
    def failed(self) -> dict[str, str]:
        return {
            name: f"{pod['status'].get('reason')}: {_message(pod['status'])}"
            for name, pod in self.pods.items()
            if pod["status"]["phase"] == "Failed"
        }

    def more(self, pods: int) -> Callable[[], bool]:
        """Make a condition: that *pods* more than now have been created."""
        until = len(self._creating) + pods
        return lambda: len(self._creating) >= until

    def _run(self) -> None:
        began, count, under_way = time.monotonic(), 0, 0
        while not self._over.wait(max(0.0, began - time.monotonic())):
            began = max(began + self._every, time.monotonic() - 1)
            if count % _LOOK_EVERY == 0 or under_way >= self._most:
                # A slow node gets no more pods than it can start: else it becomes slower.
                under_way = len(self._not_ended())
            if under_way < self._most:
                name = f"stream-{count}"
                self._creating[name] = self._pool.submit(self._create, name)
                count += 1
                under_way += 1

    def _not_ended(self) -> list[str]:
        found = self._list_pods()
        self.pods = {name: found[name] for name in self._creating if name in found}
        return [
            name
            for name in self._creating
            if name not in found
            or found[name].get("status", {}).get("phase") not in ("Succeeded", "Failed")
        ]


def _message(status: Json) -> str:
    ended = [
        each["state"]["terminated"]
        for each in status.get("containerStatuses", ())
        if "terminated" in each.get("state", {})
    ]
    words = [f"{each.get('reason')} {each.get('exitCode')} {each.get('message')}" for each in ended]
    return str(status.get("message") or "; ".join(words))
