"""A listening socket, and a bounded number of clients."""

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_PAUSE_SECONDS = 0.05  # in which ended clients free their descriptors

EVERY_ADDRESS = "::"
"""Every address of the machine, IPv4 and IPv6: probes and clients may use either family."""


def bindable(host: str) -> str:
    """Return *host*, but ``0.0.0.0`` for ``::`` on a kernel without IPv6."""
    none = host == EVERY_ADDRESS and not socket.has_dualstack_ipv6()
    return "0.0.0.0" if none else host  # noqa: S104 -- as asked for


def listen(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket.

    Args:
        host: name or address. For ``::`` it accepts both families, whatever ``net.ipv6.bindv6only``
            is; on a kernel without IPv6 it is IPv4 alone.
        port: 0 for a free one.

    Raises:
        OSError: the host is unknown, or the port cannot be bound.
    """
    found = socket.getaddrinfo(
        bindable(host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, _, _, _, address = found[0]
    return socket.create_server(
        (str(address[0]), port),
        family=family,
        dualstack_ipv6=family == socket.AF_INET6 and socket.has_dualstack_ipv6(),
    )


def plain_response(status: int, media: str, body: bytes) -> bytes:
    """Return an HTTP response after which the connection is closed."""
    lines = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "Server: gpu-turnstile",
        "Connection: close",
        f"Content-Type: {media}",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


def shown_address(host: str, port: int) -> str:
    """Return ``host:port``, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Listener:
    """Accepts clients, and serves each in its own task.

    A usual client has its first response within milliseconds. So if there are too many clients, the
    one that has waited longest for its first response is ended. Clients that had a response are
    ended only if no other is left, the longest idle first. Clients before the end of their TLS
    handshake count too. asyncio's own server has no such bounds.
    """

    def __init__(
        self,
        listening: socket.socket,
        serve: Callable[[socket.socket], Coroutine[Any, Any, None]],
        *,
        most: int,
        on_full: Callable[[], object] = lambda: None,
    ) -> None:
        """Prepare.

        Args:
            listening: the listening socket; it is not closed here.
            serve: serves and closes one client; cancelled to end the client.
            most: most clients at a time.
            on_full: called for each client that is ended because there are too many.
        """
        listening.settimeout(0)
        self._listening = listening
        self._serve = serve
        self._most = most
        self._on_full = on_full
        self._waiting: dict[asyncio.Task[None], None] = {}  # the longest wait first
        self._answered: dict[asyncio.Task[None], None] = {}

    async def run(self) -> None:
        """Accept clients until cancelled; their tasks continue."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    self._end_one()
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if len(self._waiting) + len(self._answered) >= self._most:
                self._end_one()
            task = loop.create_task(self._serve(accepted))
            self._waiting[task] = None
            task.add_done_callback(self._forget)
            await asyncio.sleep(0)  # lets other tasks run, even with many new clients

    def mark_answered(self, task: asyncio.Task[None]) -> None:
        """Note that the client of *task* has had a response."""
        if task in self._waiting or task in self._answered:
            self._forget(task)
            self._answered[task] = None

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._waiting.pop(task, None)
        self._answered.pop(task, None)

    def _end_one(self) -> None:
        if tasks := self._waiting or self._answered:
            task = next(iter(tasks))
            self._forget(task)
            task.cancel()
            self._on_full()
