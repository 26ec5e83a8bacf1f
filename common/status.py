"""The HTTP endpoint of agent and proxy: ``/healthz``, ``/readyz``, ``/metrics``.

One request per connection, all on one thread: a slow client takes only a coroutine, and its
connection ends after ten seconds. Slow pages are made on their own thread.
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

from common.errors import SettingsError
from common.listener import Listener, listen, plain_response, shown_address

log = logging.getLogger(__name__)

Page = Callable[[], tuple[int, str, bytes]]
"""Returns status, content type and body."""

MOST_CONNECTIONS = 64
DEADLINE_SECONDS = 10.0

_LARGEST_HEADER = 8 * 1024
_SHARE = 0.1
_TEXT = "text/plain"


class StatusServer:
    """Serves a few pages on one port, with bounds for its clients."""

    def __init__(  # noqa: PLR0913 -- bounds, by keyword
        self,
        host: str,
        port: int,
        pages: dict[str, Page],
        *,
        slow: Collection[str],
        connections: int = MOST_CONNECTIONS,
        deadline: float = DEADLINE_SECONDS,
    ) -> None:
        """Bind and serve; port 0 is a free one.

        The *slow* paths are of pages that are made one at a time on another thread. Above so many
        *connections* the oldest one is closed, and each is closed after *deadline* seconds, even if
        it is busy.

        Raises:
            SettingsError: the port cannot be bound.
        """
        try:
            self._listening = listen(host, port)
        except OSError as error:
            address = shown_address(host, port)
            raise SettingsError(f"http-port: cannot listen on {address}: {error}") from error
        self.port: int = self._listening.getsockname()[1]
        self._pages = {path: paced(page) if path in slow else page for path, page in pages.items()}
        self._slow = frozenset(slow)
        self._deadline = deadline
        self._listener = Listener(self._listening, self._serve, most=connections)
        self._page_maker = ThreadPoolExecutor(1, "pages")
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and free the port."""
        with contextlib.suppress(RuntimeError):  # already stopped
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5)

    def _run(self) -> None:
        with self._listening, asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._accept())
            self._page_maker.shutdown(wait=False, cancel_futures=True)

    async def _accept(self) -> None:
        accepting = asyncio.create_task(self._listener.run())
        await self._stop.wait()
        accepting.cancel()

    async def _serve(self, client: socket.socket) -> None:
        # A timeout (an OSError), or a client that disconnects, is not logged.
        with client, contextlib.suppress(OSError):
            async with asyncio.timeout(self._deadline):
                head = b""
                while b"\r\n\r\n" not in head and len(head) < _LARGEST_HEADER:
                    piece = await self._loop.sock_recv(client, _LARGEST_HEADER)
                    if not piece:
                        return
                    head += piece
                await self._loop.sock_sendall(client, await self._respond(head))
                # If data stayed unread, the kernel would reset the connection with the response.
                client.shutdown(socket.SHUT_WR)
                await self._loop.sock_recv(client, _LARGEST_HEADER)

    async def _respond(self, head: bytes) -> bytes:
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
                found = await self._loop.run_in_executor(self._page_maker, page) if slow else page()
            except Exception:
                log.exception("failed", extra={"path": path})
                found = _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error, see the log")
        return plain_response(*found)


def probe(find_problem: Callable[[], str]) -> Page:
    """Make a page that responds 200 ``ok``, or 503 with the problem if there is one."""

    def page() -> tuple[int, str, bytes]:
        reason = find_problem()
        if reason:
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        return HTTPStatus.OK, _TEXT, b"ok\n"

    return page


def paced(page: Page, *, clock: Callable[[], float] = time.monotonic) -> Page:
    """Make *page* so rarely that it takes at most a tenth of a CPU; else return the last one.

    The kubelet's calls run in the same interpreter, and must not wait for too many scrapes.
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


def _refusal(status: HTTPStatus, text: str) -> tuple[int, str, bytes]:
    return status, _TEXT, f"{text}\n".encode()
