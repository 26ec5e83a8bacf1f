"""The connections of a worker: a bound on their number, and deadlines for requests.

gunicorn bounds neither the connections of its ``asgi`` worker nor the time until a first header has
arrived. Both are added by what asyncio would bring: the server, and the protocol of a connection.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
from asyncio import BaseTransport, sslproto
from collections.abc import Callable
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any

from gunicorn.asgi.protocol import ASGIProtocol

from common.serving.metrics import Observer

# The API server keeps idle connections for 90 s. A server that closes first may close while a
# review is on its way, and not every review is sent again.
IDLE_SECONDS = 120
ARRIVAL_SECONDS = 15.0  # of a whole request, from its first byte on
HANDSHAKE_SECONDS = 10.0
_SHUTDOWN_SECONDS = 5.0  # for a client to take its last answer, and to confirm the end
_AT_ONCE = 16  # accepted before others have their turn

# asyncio's buffer per connection, by default 256 KiB: a thousand clients would fill the pod.
sslproto.SSLProtocol.max_size = 2**14


def _refusal(status: HTTPStatus, text: str) -> bytes:
    return (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nServer: gpu-turnstile\r\nConnection: close\r\n"
        f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(text)}\r\n\r\n{text}"
    ).encode("ascii")


_REFUSALS = {
    "timeout": _refusal(
        HTTPStatus.REQUEST_TIMEOUT, f"a request must arrive within {ARRIVAL_SECONDS:.0f} s\n"
    ),
    "memory": _refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many large requests are arriving\n"),
}


class Client:
    """A client of a gunicorn that another set up: nothing of it is noted, and it is not ended."""

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
"""The client whose request is being answered."""


class Listener:
    """Accepts the connections of a worker, and holds a bounded number of them open.

    An honest client has its first answer within milliseconds. So the connection that has waited
    longest without any answer is closed first, and one with an answer only when no other is left,
    the longest idle first.

    It stands in for asyncio's server, which bounds nothing.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: "Callable[[Listener], Connection]",
        observer: Observer,
        *,
        most: int,
        tls: ssl.SSLContext | None,
    ) -> None:
        """Begin to accept, on the running event loop.

        Args:
            listening: closed by :meth:`close`.
            make: makes the protocol of a connection.
            observer: counts those that are closed for others.
            most: connections.
            tls: for them; ``None`` for plain TCP.
        """
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._make = make
        self._observer = observer
        self._most = most
        self._options: dict[str, Any] = {"ssl": tls}
        if tls is not None:
            self._options["ssl_handshake_timeout"] = HANDSHAKE_SECONDS
            self._options["ssl_shutdown_timeout"] = _SHUTDOWN_SECONDS
        self._handshakes: set[asyncio.Task[None]] = set()
        self._waiting: dict[int, socket.socket] = {}  # by descriptor; longest first
        self._answered: dict[int, socket.socket] = {}
        self._loop.add_reader(listening.fileno(), self._accept)

    def answered(self, number: int) -> None:
        """Note that a connection has an answer; *number* is its descriptor."""
        found = self._waiting.pop(number, None) or self._answered.pop(number, None)
        if found is not None:
            self._answered[number] = found

    def close(self) -> None:
        """Accept no more than what the kernel has accepted already."""
        self._accept()
        self._loop.remove_reader(self._listening.fileno())
        self._listening.close()

    async def wait_closed(self) -> None:
        """Return at once: gunicorn itself waits for the connections."""

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, _ = self._listening.accept()
            except OSError as error:  # gone again, or taken by another worker
                if error.errno in {errno.EMFILE, errno.ENFILE}:
                    self._close_one()
                return
            accepted.settimeout(0)
            number = accepted.fileno()
            self._answered.pop(number, None)  # is closed, or its number would not be free
            self._waiting.pop(number, None)
            self._waiting[number] = accepted
            if len(self._waiting) + len(self._answered) > self._most:
                self._make_room()
            task = self._loop.create_task(self._shake_hands(accepted))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make(self), accepted, **self._options
            )
        except OSError as error:
            # asyncio's frames and this error refer to each other, and keep TLS in memory.
            error.__traceback__ = None

    def _make_room(self) -> None:
        for sockets in (self._waiting, self._answered):
            for number in [each for each, held in sockets.items() if held.fileno() != each]:
                del sockets[number]  # has been closed meanwhile
        if len(self._waiting) + len(self._answered) > self._most:
            self._close_one()

    def _close_one(self) -> None:
        if sockets := self._waiting or self._answered:
            held = sockets.pop(next(iter(sockets)))
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
        self.transport: Any = None
        self.idle = True
        self.due: float | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        """Register the connection; the handshake is done."""
        self._number = transport.get_extra_info("socket").fileno()
        self.verified = bool(transport.get_extra_info("peercert"))
        self._set_deadline(IDLE_SECONDS)
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
            self._set_deadline(ARRIVAL_SECONDS)
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self._known.discard(self)
        self._observer.connected(-1)
        self._number = -1  # may soon be another's
        super().connection_lost(exc)
        # This object and its parser refer to each other until garbage is collected, and would
        # keep some 50 KiB of TLS in memory.
        self.transport = self.writer = self._flow_control = None

    def begin(self) -> None:
        """Note that the header of a request has arrived."""
        if self.idle:  # it came behind another one
            self.idle = False
            self._set_deadline(ARRIVAL_SECONDS)

    def received(self) -> None:
        """Note that a request has arrived whole: what follows is for us to do."""
        self.due = None

    def answered(self, *, keep: bool) -> None:
        """Note that a request is answered; end the connection where it is not kept."""
        self.idle = True
        self._set_deadline(IDLE_SECONDS)
        self._listener.answered(self._number)
        if not keep:
            self.close()

    def close(self) -> None:
        """End the connection when what was sent has been taken."""
        self.transport.close()

    def end(self, why: str) -> None:
        """End the connection now, with a refusal where a request has not arrived whole."""
        self._observer.ended(why)
        arriving = self.due is not None and not self.idle
        self.due = None
        if arriving:
            self.transport.write(_REFUSALS[why])
            self.close()
        else:
            self.transport.abort()

    def _set_deadline(self, seconds: float) -> None:
        self.due = self.worker.loop.time() + seconds
