"""Order stamps: a total order over pods, across webhook replicas and workers.

Encoded: 20-digit unix time in ns, the writer, an 8-digit count, joined by ``-``.
The time has a fixed width and ``-`` sorts before every character of a writer, so
comparing two encoded stamps as text gives the same order as comparing the stamps.
"""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass

from contract.errors import InvalidStamp, quote

_WRITER = re.compile(r"[a-z0-9]{1,48}\Z", re.ASCII)
_ENCODED = re.compile(
    r"(?P<time>[0-9]{20})-(?P<writer>[a-z0-9]{1,48})-(?P<count>[0-9]{8})\Z", re.ASCII
)
_TIME = re.compile(r"[1-9][0-9]{0,18}\Z", re.ASCII)
_LATEST_NS = 2**63 - 1
_LARGEST_COUNT = 99_999_999


@dataclass(frozen=True, slots=True, order=True)
class OrderStamp:
    """A pod's rank in the order of all pods.

    Attributes:
        time_ns: unix time, nanoseconds.
        writer: name of the process that stamped: lower-case letters and digits, unique.
        count: number of the stamp among those of one writer within one nanosecond.

    Raises:
        InvalidStamp: a part is out of range.
    """

    time_ns: int
    writer: str
    count: int

    def __post_init__(self) -> None:
        """Check that the stamp can be encoded and decoded again."""
        if not 0 < self.time_ns <= _LATEST_NS:
            raise InvalidStamp(f"time: Invalid value: {self.time_ns}: must be 1 to 2^63-1 ns")
        if not _WRITER.match(self.writer):
            raise InvalidStamp(
                f"writer: Invalid value: {quote(self.writer)}: must be 1 to 48 of a-z and 0-9"
            )
        if not 0 <= self.count <= _LARGEST_COUNT:
            raise InvalidStamp(f"count: Invalid value: {self.count}: must be 0 to 99999999")

    def encode(self) -> str:
        """Write the stamp as an annotation value."""
        return f"{self.time_ns:020d}-{self.writer}-{self.count:08d}"

    @classmethod
    def decode(cls, text: str) -> "OrderStamp":
        """Read an annotation value, strictly.

        Raises:
            InvalidStamp: *text* is not exactly what :meth:`encode` writes.
        """
        match = _ENCODED.match(text)
        if match is None:
            raise InvalidStamp(
                f"order stamp: Invalid value: {quote(text)}: must be 20 digits of ns, "
                "a writer and 8 digits of count, joined by '-'"
            )
        return cls(int(match["time"]), match["writer"], int(match["count"]))


def decode_time(text: str) -> int:
    """Read a ``predicate-time``: unix time in ns, decimal.

    Raises:
        InvalidStamp: *text* is not a canonical positive decimal within int64.
    """
    if not _TIME.match(text) or int(text) > _LATEST_NS:
        raise InvalidStamp(
            f"predicate time: Invalid value: {quote(text)}: must be unix time in ns, decimal"
        )
    return int(text)


def writer_name(host: str, entropy: str) -> str:
    """Make a writer's name from a host name (or pod name) and random hex, in allowed characters.

    Args:
        host: for human readers; only its last 32 allowed characters are kept.
        entropy: makes the name unique; at most 16 characters.
    """
    readable = re.sub(r"[^a-z0-9]", "", host.lower())
    return readable[-(48 - 16) :] + re.sub(r"[^a-z0-9]", "", entropy.lower())[:16]


class Stamper:
    """Makes one writer's stamps, each larger than the one before, even if the clock steps back.

    Safe to share between threads.
    """

    def __init__(self, *, clock: Callable[[], int], writer: str) -> None:
        """Start a writer.

        *clock* returns unix time in ns; *writer* is unique to this process, see
        :func:`writer_name`.

        Raises:
            InvalidStamp: *writer* has characters that a stamp cannot have.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._last = OrderStamp(1, writer, 0)

    def next(self) -> OrderStamp:
        """Return the next stamp."""
        with self._lock:
            last, now = self._last, self._clock()
            if now > last.time_ns:
                stamp = OrderStamp(now, last.writer, 0)
            elif last.count < _LARGEST_COUNT:
                stamp = OrderStamp(last.time_ns, last.writer, last.count + 1)
            else:
                stamp = OrderStamp(last.time_ns + 1, last.writer, 0)
            self._last = stamp
            return stamp
