"""The listener of a worker: accepts connections and has asyncio shake hands on them."""

import asyncio
import contextlib
import errno
import socket
import ssl
from asyncio import sslproto
from collections.abc import Callable, Iterable
from functools import partial

from common.serving.connections import State
from common.serving.protocol import HttpConnection, Service
from common.serving.tls import ON_FAILED_HANDSHAKE

_MOST_ACCEPTS = 16  # before others have their turn
_PARTING_SECONDS = 1.0
_POLL_SECONDS = 0.05

# asyncio's buffer per connection, by default 256 KiB: a thousand clients would fill the pod.
sslproto.SSLProtocol.max_size = 2**14


class Listener:
    """A listener on several sockets, inside a running event loop.

    Args:
        sockets: the listening sockets.
        service: for the connections.
        context: returns the TLS context for the next connection.
        handshake_seconds: for each handshake.
    """

    def __init__(
        self,
        sockets: Iterable[socket.socket],
        service: Service,
        *,
        context: Callable[[], ssl.SSLContext],
        handshake_seconds: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._service = service
        self._connections = service.connections
        self._context = context
        self._handshake_seconds = handshake_seconds
        self._handshakes: set[asyncio.Task[None]] = set()
        self._sockets = list(sockets)
        for each in self._sockets:
            each.settimeout(0)
            self._loop.add_reader(each.fileno(), self._accept_some, each)

    async def drain(self, seconds: float) -> None:
        """Accept no more, answer the requests that are on their way, then close everything.

        Idle connections end at once. Those without a request may have been opened for one,
        and others may not have read their answer yet: both get a moment.
        """
        self._stop()
        began = self._loop.time()
        while self._connections and (passed := self._loop.time() - began) < seconds:
            self._connections.close(State.IDLE)
            if passed >= _PARTING_SECONDS:
                self._connections.close(State.HANDSHAKE, State.FRESH, State.LINGERING)
            await asyncio.sleep(_POLL_SECONDS)
            self._connections.end_overdue()
        self._connections.close(*State)
        if self._handshakes:
            await asyncio.wait(self._handshakes, timeout=_PARTING_SECONDS)

    def _stop(self) -> None:
        """Take the connections that the kernel has accepted already, and no more."""
        for each in self._sockets:
            while self._accept(each):
                pass
            self._loop.remove_reader(each.fileno())
            each.close()
        self._sockets.clear()

    def _accept_some(self, listening: socket.socket) -> None:
        for _ in range(_MOST_ACCEPTS):
            if not self._accept(listening):
                break

    def _accept(self, listening: socket.socket) -> bool:
        try:
            accepted, _ = listening.accept()
        except OSError as error:  # gone again, or taken by another worker
            if error.errno in {errno.EMFILE, errno.ENFILE}:
                self._connections.make_room()
            return False
        task = self._loop.create_task(self._shake_hands(accepted))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)
        return True

    async def _shake_hands(self, accepted: socket.socket) -> None:
        connection = HttpConnection(self._service, lambda: _hang_up(accepted))
        # Later: by then asyncio has sent the alert.
        part = partial(self._loop.call_soon, self._part, accepted, connection)
        ON_FAILED_HANDSHAKE.set(part)
        try:
            accepted.settimeout(0)
            await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._context(),
                ssl_handshake_timeout=self._handshake_seconds,
            )
        except OSError as error:
            if isinstance(error, ConnectionAbortedError):
                self._connections.end(connection, "timeout")
            self._connections.remove(connection)  # or the client is gone
            # asyncio's frames and this error refer to each other, and keep TLS in memory.
            error.__traceback__ = None

    def _part(self, accepted: socket.socket, connection: HttpConnection) -> None:
        """Send no more after a failed handshake; the client closes when it has read the alert."""
        self._connections.part(connection, "tls")
        with contextlib.suppress(OSError):
            accepted.shutdown(socket.SHUT_WR)


def _hang_up(accepted: socket.socket) -> None:
    """End a handshake: asyncio reads the end of the stream, and closes."""
    with contextlib.suppress(OSError):
        accepted.shutdown(socket.SHUT_RDWR)
