"""The HTTP endpoint of agent and proxy: ``/healthz``, ``/readyz``, ``/metrics``.

One request a connection, all of them on one thread: a slow client costs a coroutine, and its
connection ends after ten seconds. Slow pages are made on a thread of their own.
"""

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

from common.listener import Listener

log = logging.getLogger(__name__)

Page = Callable[[], tuple[int, str, bytes]]
"""Gives status, content type and body."""

MOST_CONNECTIONS = 64
DEADLINE_SECONDS = 10.0

_LARGEST_HEADER = 8 * 1024
_SHARE = 0.1
_TEXT = "text/plain"


class StatusServer:
    """Serves a few pages on one port, whatever its clients do."""

    def __init__(  # noqa: PLR0913 -- what may be used up, by keyword
        self,
        host: str,
        port: int,
        pages: dict[str, Page],
        *,
        slow: Collection[str],
        connections: int = MOST_CONNECTIONS,
        deadline: float = DEADLINE_SECONDS,
    ) -> None:
        """Bind and serve.

        Pages at *slow* paths are made one at a time, beside all others, which wait for nothing. Of
        more open *connections* the oldest is closed; each one is after *deadline* seconds, however
        busy.

        Raises:
            OSError: the port cannot be bound.
        """
        self._listening = _listen(host, port)
        self.port: int = self._listening.getsockname()[1]
        self._pages = {path: paced(page) if path in slow else page for path, page in pages.items()}
        self._slow = frozenset(slow)
        self._deadline = deadline
        self._listener = Listener(self._listening, self._serve, most=connections)
        self._maker = ThreadPoolExecutor(1, "pages")
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and free the port."""
        with contextlib.suppress(RuntimeError):  # has been stopped
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5)

    def _run(self) -> None:
        with self._listening, asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._accept())
            self._maker.shutdown(wait=False, cancel_futures=True)

    async def _accept(self) -> None:
        accepting = asyncio.create_task(self._listener.run())
        await self._stop.wait()
        accepting.cancel()

    async def _serve(self, client: socket.socket) -> None:
        # TimeoutError is an OSError; nor is a client that goes away any news.
        with client, contextlib.suppress(OSError):
            async with asyncio.timeout(self._deadline):
                head = b""
                while b"\r\n\r\n" not in head and len(head) < _LARGEST_HEADER:
                    piece = await self._loop.sock_recv(client, _LARGEST_HEADER)
                    if not piece:
                        return
                    head += piece
                await self._loop.sock_sendall(client, await self._answer(head))
                # Were something left unread, the kernel would take the answer back.
                client.shutdown(socket.SHUT_WR)
                await self._loop.sock_recv(client, _LARGEST_HEADER)

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        page = self._pages.get(path)
        if b"\r\n\r\n" not in head:
            found = _refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the header is too large")
        elif method != "GET":
            found = _refusal(HTTPStatus.NOT_IMPLEMENTED, "only GET is served")
        elif page is None:
            found = _refusal(HTTPStatus.NOT_FOUND, "not found")
        else:
            try:
                slow = path in self._slow
                found = await self._loop.run_in_executor(self._maker, page) if slow else page()
            except Exception:
                log.exception("failed", extra={"path": path})
                found = _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error, see the log")
        status, kind, body = found
        lines = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "Server: gpu-turnstile",
            "Connection: close",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
        )
        return "\r\n".join((*lines, "", "")).encode() + body


def probe(why_not: Callable[[], str]) -> Page:
    """Make a page that answers 200 ``ok``, or 503 with the reason if there is one."""

    def page() -> tuple[int, str, bytes]:
        reason = why_not()
        if reason:
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        return HTTPStatus.OK, _TEXT, b"ok\n"

    return page


def paced(page: Page, *, clock: Callable[[], float] = time.monotonic) -> Page:
    """Make *page* again only as often as takes a tenth of a CPU; serve the last one between.

    The calls of the kubelet share the interpreter with whoever asks for metrics all the time.
    """
    last: tuple[int, str, bytes] | None = None
    fresh_until = 0.0

    def again() -> tuple[int, str, bytes]:
        nonlocal last, fresh_until
        began = clock()
        if last is None or began >= fresh_until:
            last = page()
            ended = clock()
            fresh_until = ended + (ended - began) / _SHARE
        return last

    return again


def _listen(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    return socket.create_server((str(address[0]), port), family=family)


def _refusal(status: HTTPStatus, text: str) -> tuple[int, str, bytes]:
    return status, _TEXT, f"{text}\n".encode()
