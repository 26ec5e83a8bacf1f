"""The HTTP endpoint of agent and proxy: ``/healthz``, ``/readyz``, ``/metrics``.

The only importer of ``waitress``. It was chosen among servers that are kept well because it reads
a request whole on one thread before any thread works on it, so that slow clients cost no threads;
because it is pure Python without dependencies; and because it is the lightest: it is loaded in
20 ms with 1.3 MiB, ``http.server`` of the standard library in 40 ms with 7 MiB, aiohttp in 350 ms
with 24 MiB. cheroot reads requests in its worker threads: slow clients keep all of them busy.

What is added here: one request a connection and a deadline for it, the oldest connection is closed
when there are too many, and slow pages have a thread of their own.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING

from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer
from waitress.task import ThreadedTaskDispatcher, WSGITask

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

log = logging.getLogger(__name__)

Page = Callable[[], tuple[int, str, bytes]]
"""Gives status, content type and body."""

MOST_CONNECTIONS = 64
DEADLINE_SECONDS = 10.0

_QUICK_THREADS = 2
_LARGEST_HEADER = 8 * 1024
_LARGEST_BODY = 1024
_ACCEPT_PAUSE_SECONDS = 0.1
_SHARE = 0.1


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

        Pages at *slow* paths are served one request at a time, beside all others. Of more open
        *connections* the oldest is closed; each one is after *deadline* seconds, however busy.

        Raises:
            OSError: the port cannot be bound.
        """
        listening = _listen(host, port)
        self.port: int = listening.getsockname()[1]
        pages = {path: paced(page) if path in slow else page for path, page in pages.items()}
        self._server = _Server(
            _application(pages),
            listening,
            slow=frozenset(slow),
            connections=connections,
            deadline=deadline,
        )
        self._thread = threading.Thread(target=self._server.serve, name="http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and free the port."""
        self._server.stop()
        self._thread.join(5)


def probe(why_not: Callable[[], str]) -> Page:
    """Make a page that answers 200 ``ok``, or 503 with the reason if there is one."""

    def page() -> tuple[int, str, bytes]:
        reason = why_not()
        if reason:
            return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{reason}\n".encode()
        return HTTPStatus.OK, "text/plain", b"ok\n"

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


def _application(
    pages: dict[str, Page],
) -> Callable[["WSGIEnvironment", "StartResponse"], Iterable[bytes]]:
    """Make the WSGI application that serves *pages*."""

    def application(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        page = pages.get(environ["PATH_INFO"])
        if environ["REQUEST_METHOD"] != "GET":
            status, kind, body = 501, "text/plain", b"only GET is served\n"
        elif page is None:
            status, kind, body = 404, "text/plain", b"not found\n"
        else:
            status, kind, body = page()
        code = HTTPStatus(status)
        headers = [("Content-Type", kind), ("Content-Length", str(len(body)))]
        start(f"{code.value} {code.phrase}", headers)
        return [body]

    return application


class _Task(WSGITask):
    """One request, the last of its connection: it is the connection that has a deadline."""

    def execute(self) -> None:
        self.request.headers["CONNECTION"] = "close"
        super().execute()


class _Channel(HTTPChannel):
    """One connection."""

    task_class = _Task


class _Dispatcher:
    """Hands requests to threads: slow pages to one of their own, all others to the rest."""

    def __init__(self, slow: frozenset[str]) -> None:
        self._slow_paths = slow
        self._quick, self._slow = ThreadedTaskDispatcher(), ThreadedTaskDispatcher()
        self._quick.set_thread_count(_QUICK_THREADS)
        self._slow.set_thread_count(1)

    def add_task(self, task: HTTPChannel) -> None:
        path = getattr(task.requests[0], "path", "")
        (self._slow if path in self._slow_paths else self._quick).add_task(task)

    def shutdown(self) -> None:
        for each in (self._quick, self._slow):
            each.shutdown(timeout=1)


class _Server(TcpWSGIServer):
    """The loop that reads requests and writes answers, on one thread."""

    channel_class = _Channel

    def __init__(
        self,
        application: Callable[["WSGIEnvironment", "StartResponse"], Iterable[bytes]],
        listening: socket.socket,
        *,
        slow: frozenset[str],
        connections: int,
        deadline: float,
    ) -> None:
        # How deep its queue is, is no news; nor is a client that goes away.
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        self._most = connections
        self._deadline = deadline
        self._stopping = threading.Event()
        self._ending = threading.Lock()
        self._ended = False
        super().__init__(
            application,
            _sock=listening,
            sockinfo=(listening.family, listening.type, listening.proto, None),
            bind_socket=False,
            dispatcher=_Dispatcher(slow),
            ident="gpu-turnstile",
            asyncore_use_poll=True,  # select() knows no descriptor above 1023
            connection_limit=2 * connections + 16,  # never reached: see handle_accept
            cleanup_interval=1,
            log_socket_errors=False,
            outbuf_overflow=1 << 30,  # never a temporary file: the file system is read-only
            max_request_header_size=_LARGEST_HEADER,
            max_request_body_size=_LARGEST_BODY,
        )

    def serve(self) -> None:
        """Serve until stopped."""
        while not self._stopping.is_set():
            self.asyncore.loop(timeout=1.0, use_poll=True, map=self._map, count=1)
        self.task_dispatcher.shutdown()
        with self._ending:
            self._ended = True
            self.asyncore.close_all(self._map)

    def stop(self) -> None:
        """Make :meth:`serve` return; does nothing the second time."""
        self._stopping.set()
        with self._ending:
            if not self._ended:  # else its descriptor may be somebody else's by now
                self.pull_trigger()

    def maintenance(self, now: float) -> None:
        """Close the connections whose time is over, whatever they are doing."""
        for channel in tuple(self.active_channels.values()):
            if now - channel.creation_time > self._deadline:
                channel.will_close = True

    def handle_accept(self) -> None:
        """Let another connection in; where there are too many, close the oldest.

        Not the newest: a probe comes, is answered within milliseconds and goes, while those
        that stay are of no use to anybody.
        """
        try:
            accepted = self.accept()
            if accepted is None:  # it has hung up meanwhile
                return
            connection, address = accepted
            self.set_socket_options(connection)
        except OSError as error:  # no descriptors are left
            log.warning("cannot accept a connection", extra={"reason": str(error)})
            self._leave_at_most(self._most // 2)
            self._stopping.wait(_ACCEPT_PAUSE_SECONDS)
            return
        self.channel_class(self, connection, address, self.adj, map=self._map)
        self._leave_at_most(self._most)

    def _leave_at_most(self, connections: int) -> None:
        while len(self.active_channels) > connections:
            oldest = min(self.active_channels.values(), key=lambda each: each.creation_time)
            oldest.handle_close()
