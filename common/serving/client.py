"""The clients of a worker: how many, how long each may take for its first header, who goes first.

gunicorn bounds neither the connections of its ``asgi`` worker nor the time until the first header
has arrived. Both are added by extending what asyncio calls: the listening socket and the protocol.
"""

import contextlib
import socket
from asyncio import BaseTransport
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any

from gunicorn.asgi.protocol import ASGIProtocol

from common.serving.metrics import Observer

# The API server keeps idle connections for 90 s. A server that closes first may close while a
# review is on its way, and not every review is sent again.
IDLE_SECONDS = 120
ARRIVAL_SECONDS = 15.0  # of a whole request, from its first byte on


def _refusal(status: HTTPStatus, text: str) -> bytes:
    return (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nServer: gpu-turnstile\r\nConnection: close\r\n"
        f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(text)}\r\n\r\n{text}"
    ).encode("ascii")


_LAST_WORDS = {
    "timeout": _refusal(
        HTTPStatus.REQUEST_TIMEOUT, f"a request must arrive within {ARRIVAL_SECONDS:.0f} s\n"
    ),
    "memory": _refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many large requests are arriving\n"),
}


class Client:
    """A client of which nothing is known: what servers other than ours have."""

    verified = False

    def begin(self) -> None:
        """Note that the header of a request has arrived."""

    def received(self) -> None:
        """Note that a request has arrived whole."""

    def answered(self, *, keep: bool) -> None:
        """Note that a request is answered; end the connection where it is not kept."""

    def end(self, why: str) -> None:
        """End the connection now; *why* is the label in metrics."""


CLIENT: ContextVar[Client] = ContextVar("CLIENT", default=Client())  # noqa: B039 -- has no state
"""Whose request is being answered."""


class Listener(socket.socket):
    """A listening socket that holds a bounded number of connections open.

    An honest client has its first answer within milliseconds. So the connection that has waited
    longest without any answer is closed first, and one with an answer only when no other is left,
    the longest idle first.
    """

    def bound(self, most: int, observer: Observer) -> "Listener":
        """Hold *most* connections; those that are closed for others are told to *observer*."""
        self._most, self._observer = most, observer
        self._waiting: dict[int, socket.socket] = {}  # by descriptor; longest first
        self._answered: dict[int, socket.socket] = {}
        return self

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, and close another one when there are too many."""
        accepted, address = super().accept()
        self._answered.pop(accepted.fileno(), None)  # closed, or it would not have the number
        self._waiting.pop(accepted.fileno(), None)
        self._waiting[accepted.fileno()] = accepted
        if len(self._waiting) + len(self._answered) > self._most:
            self._make_room()
        return accepted, address

    def answered(self, number: int) -> None:
        """Note that a connection has an answer; *number* is its descriptor."""
        found = self._waiting.pop(number, None) or self._answered.pop(number, None)
        if found is not None:
            self._answered[number] = found

    def _make_room(self) -> None:
        for line in (self._waiting, self._answered):
            for number in [each for each, held in line.items() if held.fileno() != each]:
                del line[number]  # has been closed meanwhile
        if len(self._waiting) + len(self._answered) > self._most:
            line = self._waiting if len(self._waiting) > 1 else self._answered
            held = line.pop(next(iter(line)))
            self._observer.ended("no-room")
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)  # asyncio reads the end of it, and closes


class Connection(ASGIProtocol, Client):  # type: ignore[misc]  # gunicorn has no type information
    """One client of gunicorn's ``asgi`` worker.

    Attributes:
        idle: whether no request is on its way or being answered.
        due: when it is ended, by the clock of the loop; ``None`` while it is being answered.
    """

    def __init__(
        self, worker: Any, listener: Listener, observer: Observer, known: "set[Connection]"
    ) -> None:
        """Prepare; asyncio calls the rest.

        Args:
            worker: of gunicorn.
            listener: that has accepted it.
            observer: of connections.
            known: those of the worker; it is among them while it is open.
        """
        super().__init__(worker)
        self._listener = listener
        self._observer = observer
        self._known = known
        self._number = -1
        self.idle = True
        self.due: float | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        """Begin: the handshake is done."""
        self._number = transport.get_extra_info("socket").fileno()
        self.verified = bool(transport.get_extra_info("peercert"))
        self._allow(IDLE_SECONDS)
        self._known.add(self)
        self._observer.connected(1)
        token = CLIENT.set(self)  # for the tasks that are made now
        try:
            super().connection_made(transport)
        finally:
            CLIENT.reset(token)

    def data_received(self, data: bytes) -> None:
        """Read; a request that has begun must arrive whole soon."""
        if self.idle:
            self.idle = False
            self._allow(ARRIVAL_SECONDS)
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self._known.discard(self)
        self._observer.connected(-1)
        self._number = -1  # may soon be another's
        super().connection_lost(exc)

    def begin(self) -> None:
        """Note that the header of a request has arrived."""
        if self.idle:  # it came behind another one
            self.idle = False
            self._allow(ARRIVAL_SECONDS)

    def received(self) -> None:
        """Note that a request has arrived whole: what follows is for us to do."""
        self.due = None

    def answered(self, *, keep: bool) -> None:
        """Note that a request is answered; end the connection where it is not kept."""
        self.idle = True
        self._allow(IDLE_SECONDS)
        self._listener.answered(self._number)
        if not keep:
            self.close()

    def close(self) -> None:
        """End the connection when what was sent has been taken."""
        self.transport.close()

    def end(self, why: str) -> None:
        """End the connection now, with a word where a request has not arrived whole."""
        self._observer.ended(why)
        if self.due is None or self.idle:
            self.transport.abort()
        else:
            self.transport.write(_LAST_WORDS[why])
            self.close()

    def _allow(self, seconds: float) -> None:
        self.due = self.worker.loop.time() + seconds
