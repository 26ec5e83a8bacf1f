"""A connection of a client: what it waits for, what it is granted, what it brings and gets."""

import selectors
import ssl
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from webhook.server.framing import Framer


class State(Enum):
    """What a connection is waiting for, and the word for it in metrics."""

    HANDSHAKE = "handshake"
    FRESH = "fresh"  # for its first request
    READING = "reading"  # for the rest of a request
    WRITING = "writing"  # for its client to take the answer
    IDLE = "idle"  # for its next request
    LINGERING = "lingering"  # for its client to have read the last answer


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client is granted.

    Attributes:
        connections: how many at once.
        buffered: bytes of unanswered requests, of all connections together.
        body: bytes of a body that are read; a larger one is answered without the rest.
        seconds: how long a connection may be in each state.
        parting: seconds that connections without a request are kept after the last accept.
    """

    connections: int
    buffered: int
    body: int
    seconds: dict[State, float] = field(
        default_factory=lambda: {
            State.HANDSHAKE: 10,
            # The API server keeps idle connections for 90 s. Closing first would race with
            # the review it is about to send, which it may not send again.
            State.FRESH: 120,
            State.IDLE: 120,
            State.READING: 15,
            State.WRITING: 10,
            State.LINGERING: 5,
        }
    )
    parting: float = 1.0


@dataclass(frozen=True, slots=True)
class Peer:
    """Who has sent a request.

    Attributes:
        address: of the client.
        local: the address it called.
        verified: whether it proved who it is by a certificate.
    """

    address: tuple[str, int]
    local: tuple[str, int]
    verified: bool


@dataclass(frozen=True, slots=True)
class Reply:
    """What to send, and whether the connection goes on after it."""

    content: bytes
    keep: bool


class Observer(Protocol):
    """Is told what happens, for metrics."""

    def in_flight(self, change: int) -> None:
        """Note that so many more requests have begun to arrive, or were answered or lost."""
        ...

    def connected(self, change: int) -> None:
        """Note that so many more connections are open."""
        ...

    def ended(self, state: State, why: str) -> None:
        """Note that a connection was ended before its client did."""
        ...


class Connection:
    """One client. Whatever can change is the front's to change."""

    __slots__ = (
        "deadline",
        "discarded",
        "framer",
        "interest",
        "keep",
        "outgoing",
        "peer",
        "sock",
        "state",
        "told_to_continue",
    )

    def __init__(self, sock: ssl.SSLSocket, peer: Peer, limits: Limits) -> None:
        self.sock = sock
        self.peer = peer
        self.framer = Framer(largest_body=limits.body)
        self.state = State.HANDSHAKE
        self.deadline = 0.0
        self.interest = selectors.EVENT_READ
        self.outgoing = b""
        self.keep = True
        self.told_to_continue = False
        self.discarded = 0
