"""One client's connection: httptools reads its requests, the WSGI application answers them.

asyncio calls it with decrypted bytes. A request that has arrived whole is answered at once: it
is less than a millisecond of computing and waits for nothing, so threads would only take turns
at it. An answer that does wait for something is a coroutine, and the loop goes on meanwhile.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import httptools

from common.serving.answer import Answer
from common.serving.connections import Connections, State
from common.serving.wsgi import (
    DEFER,
    UNREADABLE,
    Request,
    client_environ,
    make_environ,
    respond,
    write_answer,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

_LARGEST_HEAD = 2**16
_MOST_DISCARDED = 2**25
# More than the last flight of a handshake, which is still unsent in connection_made.
_MOST_UNSENT = 2**14
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Service:
    """The part of a worker that its connections share.

    Attributes:
        connections: the table of them.
        application: answers requests.
        keeps_alive: returns whether connections are kept after an answer.
        largest_body: bytes of a request.
    """

    connections: Connections
    application: "WSGIApplication"
    keeps_alive: Callable[[], bool]
    largest_body: int


class HttpConnection(asyncio.Protocol):
    """One client.

    Args:
        service: shared by all connections.
        hang_up: ends the connection while its handshake is under way.
    """

    def __init__(self, service: Service, hang_up: Callable[[], None]) -> None:
        self._service = service
        self._connections = service.connections
        self._hang_up = hang_up
        self._transport: asyncio.Transport | None = None
        self._client: dict[str, Any] = {}
        self._parser: httptools.HttpRequestParser | None = None
        self._arriving: Request | None = None
        self._waiting: deque[Request] = deque()  # for their answers
        self._last = False  # no further request is accepted
        self._discards = False  # the rest of a body
        self._paused = False  # the client does not take its answers
        self._deferred: asyncio.Task[Answer] | None = None  # an answer that waits
        self._received = 0  # bytes since the last whole request
        self._connections.add(self)

    def abort(self) -> None:
        """Close at once, without sending anything more."""
        if self._transport is None:
            self._hang_up()
        else:
            self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request: the handshake is done."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_MOST_UNSENT)
        self._client = client_environ(transport)
        self._parser = httptools.HttpRequestParser(self)
        self._connections.move(self, State.FRESH)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """Forget the client."""
        self._connections.remove(self)
        self._parser = None  # which refers to this object

    def data_received(self, data: bytes) -> None:
        """Read requests, and answer those that have arrived whole."""
        self._received += len(data)
        try:
            if self._parser is not None:
                self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:  # our own mistake
            raise
        except httptools.HttpParserUpgrade:  # what follows is not HTTP/1.1
            self._last = True
        except httptools.HttpParserError:
            self._give_up()
        if self._arriving is not None and not self._last:
            self._await_rest(self._arriving)
        self._answer()

    def pause_writing(self) -> None:
        """Read and answer no more until the client has taken its answers."""
        self._paused = True
        self._connections.move(self, State.WRITING)
        self._writer.pause_reading()

    def resume_writing(self) -> None:
        """Go on: the client has taken its answers."""
        self._paused = False
        if self._deferred is not None:
            self._connections.move(self, State.ANSWERING)
            return
        self._connections.move(self, State.READING if self._arriving else State.IDLE)
        self._writer.resume_reading()
        self._answer()

    # What the parser calls.

    def on_message_begin(self) -> None:
        """Begin with a request."""
        if not self._last:
            self._arriving = Request()
            self._connections.move(self, State.READING)

    def on_url(self, url: bytes) -> None:
        """Read more of the target."""
        if self._arriving is not None:
            self._arriving.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Read a field; those behind the body are ignored."""
        if self._arriving is not None and not self._arriving.method:
            self._arriving.fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Refuse a body that is too large before it has arrived."""
        request, parser = self._arriving, self._parser
        if request is None or parser is None:
            return
        request.method = parser.get_method().decode("ascii")
        request.version = parser.get_http_version()
        request.keep = parser.should_keep_alive() and not parser.should_upgrade()
        for name, value in request.fields:
            if name == b"expect" and value.lower() == b"100-continue":
                request.waits = True
            elif name == b"content-length" and int(value) > self._service.largest_body:
                self._refuse_body(request)

    def on_body(self, body: bytes) -> None:
        """Read more of the body."""
        if self._arriving is not None:
            self._arriving.body += body
            if len(self._arriving.body) > self._service.largest_body:
                self._refuse_body(self._arriving)

    def on_message_complete(self) -> None:
        """Put a whole request in line for its answer."""
        self._discards = False
        if self._arriving is not None:
            self._received = 0
            self._accept(self._arriving, last=not self._arriving.keep)

    def _accept(self, request: Request, *, last: bool) -> None:
        self._arriving = None
        self._waiting.append(request)
        self._last = last

    def _refuse_body(self, request: Request) -> None:
        """Answer without the body, and discard it: a client may send it all before it reads."""
        request.body.clear()
        request.missing = self._service.largest_body + 1
        self._discards = True
        self._accept(request, last=True)

    def _give_up(self) -> None:
        """Answer bytes that are no HTTP; discard those that follow."""
        self._parser = None
        self._discards = False
        if not self._last:
            headed = self._arriving is not None and self._arriving.method
            request = self._arriving if headed and self._arriving else Request()
            request.missing = 1
            self._accept(request, last=True)

    def _await_rest(self, request: Request) -> None:
        if not request.method and self._received > _LARGEST_HEAD:
            self._give_up()
            return
        if request.method and request.waits:
            request.waits = False
            self._writer.write(_CONTINUE)
        self._connections.hold(self, self._received)

    def _answer(self) -> None:
        while self._waiting and not self._paused and self._deferred is None:
            self._answer_one(self._waiting.popleft())
        if self._last and not self._waiting and not self._paused and self._deferred is None:
            self._connections.move(self, State.LINGERING)
            if not self._discards:
                self._writer.close()
            elif self._received > _MOST_DISCARDED:
                self.abort()

    def _answer_one(self, request: Request) -> None:
        keep = request.keep and not request.missing and self._service.keeps_alive()
        try:
            environ = make_environ(request, self._client)
        except httptools.HttpParserInvalidURLError:
            self._send(UNREADABLE, keep=False)
            return
        deferred: list[Coroutine[Any, Any, Answer]] = []
        environ[DEFER] = deferred.append
        content = respond(self._service.application, environ, keep=keep)
        if not deferred:
            self._send(content, keep=keep)
            return
        # Of what follows nothing is read before: answers keep the order of their requests.
        self._writer.pause_reading()
        self._connections.move(self, State.ANSWERING)
        self._deferred = asyncio.get_running_loop().create_task(deferred[0])
        self._deferred.add_done_callback(partial(self._answered, keep=keep))

    def _answered(self, done: asyncio.Task[Answer], *, keep: bool) -> None:
        self._deferred = None
        if self._connections.holds(self):
            self._send(write_answer(done.result(), keep=keep), keep=keep)
            if not self._paused:
                self._writer.resume_reading()
            self._answer()

    def _send(self, content: bytes, *, keep: bool) -> None:
        if not keep:
            self._last = True
            self._waiting.clear()
            self._arriving = None
        self._connections.answered(self)
        self._writer.write(content)
        if not self._paused:
            self._connections.move(self, State.READING if self._arriving else State.IDLE)

    @property
    def _writer(self) -> asyncio.Transport:
        if self._transport is None:
            raise RuntimeError("no transport before the handshake")
        return self._transport
