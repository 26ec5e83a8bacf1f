"""The connections of a worker: how long each may stay, and which one goes when it is full.

An honest client has its first answer within milliseconds. So the connection that has waited
longest without any answer is closed first, and those with an answer only when no other is
left, the longest idle first. No I/O: a connection closes itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


class State(Enum):
    """The event that a connection waits for; its value is the label in metrics."""

    HANDSHAKE = "handshake"
    FRESH = "fresh"  # the first request
    READING = "reading"  # the rest of a request
    ANSWERING = "answering"  # an answer that waits for something
    WRITING = "writing"  # the client reads the answer
    IDLE = "idle"  # the next request
    LINGERING = "lingering"  # the client has read the last answer


BUSY = (State.READING, State.ANSWERING, State.WRITING)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds for the clients of one worker."""

    connections: int
    buffered: int  # bytes of all unanswered requests together
    seconds: dict[State, float] = field(
        default_factory=lambda: {
            State.HANDSHAKE: 10,
            # The API server keeps idle connections for 90 s. A server that closes first may
            # close while a review is on its way, and not every review is sent again.
            State.FRESH: 120,
            State.IDLE: 120,
            State.READING: 15,
            State.ANSWERING: 60,
            State.WRITING: 10,
            State.LINGERING: 5,
        }
    )


class Connection(Protocol):
    """A connection that can be closed at once."""

    def abort(self) -> None: ...  # noqa: D102


class Observer(Protocol):
    """The metrics of connections: changes of two gauges, and a counter."""

    def in_flight(self, change: int) -> None: ...  # noqa: D102
    def connected(self, change: int) -> None: ...  # noqa: D102
    def ended(self, state: str, why: str) -> None: ...  # noqa: D102


class Connections:
    """The open connections of one worker. Not safe between threads."""

    def __init__(self, limits: Limits, *, clock: Callable[[], float], observer: Observer) -> None:
        self._limits = limits
        self._clock = clock
        self._observer = observer
        self._states: dict[Connection, State] = {}
        # All stay equally long in a state: the first in line is the first overdue.
        self._deadlines: dict[State, dict[Connection, float]] = {each: {} for each in State}
        self._unanswered: dict[Connection, None] = {}
        self._buffered: dict[Connection, int] = {}

    def __len__(self) -> int:
        return len(self._states)

    def holds(self, connection: Connection) -> bool:
        """Return whether a connection is open."""
        return connection in self._states

    def add(self, connection: Connection) -> None:
        """Add a new connection; close others until there is room for it."""
        while len(self) >= self._limits.connections:
            self.make_room()
        self._unanswered[connection] = None
        self._observer.connected(1)
        self._enter(connection, State.HANDSHAKE)

    def move(self, connection: Connection, state: State) -> None:
        """Change the state of an open connection; LINGERING is the last one."""
        if (before := self._states.get(connection, State.LINGERING)) is not State.LINGERING:
            del self._deadlines[before][connection]
            self._enter(connection, state)
            if change := (state in BUSY) - (before in BUSY):
                self._observer.in_flight(change)

    def answered(self, connection: Connection) -> None:
        """Record that its requests are answered."""
        self._unanswered.pop(connection, None)
        self._buffered.pop(connection, None)

    def hold(self, connection: Connection, size: int) -> None:
        """Record the bytes of its requests; close the largest when all have too many."""
        if connection in self._states:
            self._buffered[connection] = size
            if sum(self._buffered.values()) > self._limits.buffered:
                self.end(max(self._buffered, key=self._buffered.__getitem__), "memory")

    def remove(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        if (state := self._states.pop(connection, None)) is not None:
            del self._deadlines[state][connection]
            self.answered(connection)
            self._observer.in_flight(-(state in BUSY))
            self._observer.connected(-1)

    def end(self, connection: Connection, why: str) -> None:
        """Close an open connection before its client does."""
        if connection in self._states:
            self._observer.ended(self._states[connection].value, why)
            self.remove(connection)
            connection.abort()

    def part(self, connection: Connection, why: str) -> None:
        """Count the end of a connection whose client has still to read the reason."""
        if (state := self._states.get(connection, State.LINGERING)) is not State.LINGERING:
            self._observer.ended(state.value, why)
            self.move(connection, State.LINGERING)

    def make_room(self) -> None:
        """Close the connection that is least missed."""
        lingering, idle = self._deadlines[State.LINGERING], self._deadlines[State.IDLE]
        if line := self._unanswered or lingering or idle or self._states:
            self.end(next(iter(line)), "no-room")

    def end_overdue(self) -> None:
        """Close every connection that has been in its state for too long."""
        now = self._clock()
        for line in self._deadlines.values():
            while line and (first := next(iter(line.items())))[1] <= now:
                self.end(first[0], "timeout")

    def close(self, *states: State) -> None:
        """Close every connection in one of these states."""
        for connection in [each for each, state in self._states.items() if state in states]:
            self.remove(connection)
            connection.abort()

    def _enter(self, connection: Connection, state: State) -> None:
        self._states[connection] = state
        self._deadlines[state][connection] = self._clock() + self._limits.seconds[state]
