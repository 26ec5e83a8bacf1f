"""What peers may use up: the limits, and one socket's account against them.

No I/O here; the time is an argument.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Limits:
    """What peers may use up.

    Attributes:
        socket: connections that are served at one ticket's socket at a time.
        pod: connections that are served at all ticket sockets of one pod at a time.
        overall: connections that are served at a time, where there are descriptors for them.
        files: descriptors that this process may have.
        reserve: how many of them are left to the rest of the agent: the kubelet's and the API
            server's connections, probes, NVML.
        bytes: what one connection may carry, either way.
        seconds: how long one may last.
        burst: connections that may come to a socket at once.
        per_second: how many may come to a socket in the long run.
        check: seconds between looks at whether the sockets are still there.
    """

    socket: int = 4
    pod: int = 16
    overall: int = 512
    files: int = 1 << 20
    reserve: int = 384
    bytes: int = 64 * 1024
    seconds: float = 15.0
    burst: int = 64
    per_second: float = 16.0
    check: float = 5.0


@dataclass(slots=True)
class Account:
    """What the peers of one socket have used up: how many are there, and how many came."""

    limits: Limits
    now: float
    """When it was last brought up to date."""
    served: int = 0
    turns: float = field(init=False)
    """How many may come at once; below one the next waits."""

    def __post_init__(self) -> None:
        self.turns = float(self.limits.burst)

    def open(self, now: float) -> bool:
        """Whether another may come."""
        gained = (now - self.now) * self.limits.per_second
        self.turns = min(self.turns + gained, float(self.limits.burst))
        self.now = now
        return not self._full() and self.turns >= 1

    def came(self) -> None:
        """Count one that came, whether or not it is served."""
        self.turns -= 1

    def failed(self) -> None:
        """Delay the next connection: this one could not be accepted."""
        self.turns = min(self.turns, 0.0)

    def opens_at(self) -> float | None:
        """Return when the next turn comes, where one is waited for."""
        if self._full() or self.turns >= 1:
            return None
        return self.now + (1 - self.turns) / self.limits.per_second

    def _full(self) -> bool:
        return self.served >= self.limits.socket
