"""How the connections that can be served at a time are shared between pods. Pure.

A connection costs descriptors, of which a process has so many. One pod may have many containers,
each with a socket of its own, so bounds for each socket are not enough: they would let one pod,
or a few, take what all others need in order to start.
"""

from collections import Counter

from agent.enforcement.vcuda.limits import Limits

_CONNECTION, _SOCKET = 3, 2
"""Descriptors: the peer's, ours to the server and the server's; the directory and its socket."""


class Shares:
    """Counts the connections of each pod against what may be."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._served: Counter[str] = Counter()
        self._total = 0

    def most(self, sockets: int) -> int:
        """Return how many connections may be served beside so many listening sockets."""
        left = self._limits.files - self._limits.reserve - _SOCKET * sockets
        return max(min(self._limits.overall, left // _CONNECTION), 1)

    def may_enter(self, pod: str, sockets: int) -> bool:
        """Return whether another connection of *pod* may be served, be it instead of another."""
        if self._served[pod] >= self._limits.pod:
            return False
        return self._total < self.most(sockets) or self.gives_way(pod, sockets) is not None

    def gives_way(self, pod: str, sockets: int) -> str | None:
        """Return the pod that gives up a connection for one of *pod*; ``None`` where none has to.

        It is the one that has most; by name among equals. It must have more than *pod* will have.
        """
        if self._total < self.most(sockets):
            return None
        busiest = min(self._served, key=lambda each: (-self._served[each], each), default=None)
        if busiest is None or self._served[busiest] <= self._served[pod] + 1:
            return None
        return busiest

    def entered(self, pod: str) -> None:
        """Count a connection."""
        self._served[pod] += 1
        self._total += 1

    def left(self, pod: str) -> None:
        """Count it no more."""
        self._total -= 1
        self._served[pod] -= 1
        if not self._served[pod]:
            del self._served[pod]
