"""Limits on what peers use: for a socket, a pod and in all, and how it is counted. Pure.

A connection costs descriptors, of which a process has so many. One pod may have many containers,
each with a socket of its own, so bounds for each socket are not enough: they would let one pod,
or a few, take what all others need in order to start.
"""

from collections import Counter
from dataclasses import dataclass

_CONNECTION, _SOCKET = 3, 3
"""Descriptors. Of a connection: the peer's, ours to the server and the server's. Of a ticket's
socket: its directory, the socket, and a peer that waits for room."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on what peers use.

    Attributes:
        socket: connections that are served at one ticket's socket at a time.
        pod: connections that are served at all ticket sockets of one pod at a time.
        overall: connections that are served at a time, where there are descriptors for them.
        files: descriptors that this process may have.
        reserve: how many of them are left to the rest of the agent: the kubelet's and the API
            server's connections, probes, NVML.
        bytes: what one connection may carry, either way.
        seconds: how long one may last.
        last_seconds: how long one may last that is served when the agent ends.
        burst: connections that may come to a socket at once.
        per_second: how many may come to a socket in the long run.
    """

    socket: int = 4
    pod: int = 16
    overall: int = 512
    files: int = 1 << 20
    reserve: int = 384
    bytes: int = 64 * 1024
    seconds: float = 15.0
    last_seconds: float = 2.0
    burst: int = 64
    per_second: float = 16.0


class Turns:
    """Limits how often peers connect to one socket: a burst at once, then so many a second."""

    def __init__(self, limits: Limits) -> None:
        self._gap = 1 / limits.per_second
        self._ahead = (limits.burst - 1) * self._gap
        self._next = 0.0

    def take(self, now: float) -> float:
        """Take the next turn; return the seconds until it comes."""
        due = max(self._next, now)
        self._next = due + self._gap
        return max(due - self._ahead - now, 0.0)


class Shares:
    """Counts the connections of each pod, and decides who gets the next."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._served: Counter[str] = Counter()

    def may_enter(self, pod: str, sockets: int) -> bool:
        """Return whether another connection of *pod* may be served, be it instead of another.

        *sockets* is how many ticket sockets are listened at.
        """
        if self._served[pod] >= self._limits.pod:
            return False
        return self._served.total() < self._most(sockets) or bool(self.displaced(pod, sockets))

    def displaced(self, pod: str, sockets: int) -> str | None:
        """Return the pod that loses a connection to *pod*; ``None`` where none has to.

        It is the one that has most; by name among equals. It must have more than *pod* will have.
        """
        if self._served.total() < self._most(sockets):
            return None
        busiest = min(self._served, key=lambda each: (-self._served[each], each))
        return busiest if self._served[busiest] > self._served[pod] + 1 else None

    def entered(self, pod: str) -> None:
        """Count a connection."""
        self._served[pod] += 1

    def left(self, pod: str) -> None:
        """Count one connection less."""
        self._served[pod] -= 1
        self._served += Counter()  # those that have one still

    def _most(self, sockets: int) -> int:
        left = self._limits.files - self._limits.reserve - _SOCKET * sockets
        return max(min(self._limits.overall, left // _CONNECTION), 1)
