"""Requests from an event loop, over connections that are kept.

For requests that are made in great numbers, many at the same time: a thread for each would take
turns with the loop, and cost more than the request. What :class:`common.apiserver.client.Client`
raises is raised here.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httptools

from common.apiserver.client import Client, Json, decode, refusal
from common.errors import Unavailable

MOST_AT_ONCE = 32
"""Requests of one event loop; further ones wait for their turn."""


class ConcurrentClient:
    """A client for one event loop. Safe to share between tasks."""

    def __init__(self, client: Client, *, at_once: int = MOST_AT_ONCE) -> None:
        """Ask with the credentials of *client*; nothing is asked yet.

        Args:
            client: is used itself where a proxy stands between.
            at_once: requests, and connections.
        """
        self._client = client
        self._at_once = at_once
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns = asyncio.Semaphore(at_once)
        self._idle: list[_Connection] = []

    async def call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        timeout: float,  # noqa: ASYNC109 - as Client.call
        query: Mapping[str, str] | None = None,
    ) -> Json:
        """Make one request and return the object of the answer.

        Args:
            method: such as ``GET``.
            path: absolute, quoted.
            body: a JSON object; of ``PATCH`` a merge patch.
            timeout: seconds to wait, the turn of this request included.
            query: parameters.

        Raises:
            Gone: 410.
            Rejected: another 4xx but 429.
            Unavailable: no usable answer in time.
        """
        rest = self._client.rest
        if rest.proxied:
            return await asyncio.to_thread(
                self._client.call, method, path, body, timeout=timeout, query=query
            )
        try:
            async with asyncio.timeout(timeout):
                status, reason, content = await self._ask(method, path, query, body)
        except TimeoutError as error:
            raise Unavailable(f"API server: no answer in {timeout:g} s") from error
        except OSError as error:
            raise Unavailable(f"API server: {error}") from error
        if not 200 <= status < 300:
            raise refusal(status, reason, content)
        return decode(content)

    def close(self) -> None:
        """Close the connections that wait for the next request; from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def _ask(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Json | None
    ) -> tuple[int, str, bytes]:
        rest = self._client.rest
        target, fields = rest.prepare(method, path, query, body=body)
        content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        fields |= {"Host": rest.host, "Content-Length": str(len(content))}
        head = "".join([f"{name}: {value}\r\n" for name, value in fields.items()])
        request = f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + content
        self._begin()
        async with self._turns:
            connection = self._take_idle() or await self._connect()
            try:
                answer = await connection.ask(request)
            finally:
                # One whose answer has not arrived whole is of no use to the next request.
                if connection.is_free:
                    self._idle.append(connection)
                else:
                    connection.close()
        return answer

    def _begin(self) -> None:
        """Forget the connections of an event loop that has ended."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._turns, self._idle = loop, asyncio.Semaphore(self._at_once), []

    def _take_idle(self) -> "_Connection | None":
        while self._idle:
            connection = self._idle.pop()
            if connection.is_free:
                return connection
        return None

    async def _connect(self) -> "_Connection":
        rest = self._client.rest
        _, connection = await asyncio.get_running_loop().create_connection(
            _Connection,
            rest.server,
            rest.port,
            ssl=rest.tls(),
            server_hostname=rest.server_name,
        )
        return connection


class _Connection(asyncio.Protocol):
    """One connection: a request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[tuple[int, str, bytes]] | None = None
        self._reason = b""
        self._body = bytearray()
        self._open = False

    @property
    def is_free(self) -> bool:
        """Whether the next request may be made."""
        return self._open and self._answer is None

    async def ask(self, request: bytes) -> tuple[int, str, bytes]:
        """Send a request; return status, reason and body of the answer.

        Raises:
            OSError: the connection broke, or the answer is none.
        """
        self._answer = asyncio.get_running_loop().create_future()
        if self._transport is not None:
            self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Close at once."""
        self._open = False
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be ready for the first request."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - a stream's
        self._transport = transport
        self._open = True

    def data_received(self, data: bytes) -> None:
        """Read the answer."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"answered with something that is no HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the answer that has not arrived."""
        self._fail(str(exc or "the connection was closed"))

    # What the parser calls.

    def on_status(self, reason: bytes) -> None:
        """Read the reason."""
        self._reason += reason

    def on_body(self, body: bytes) -> None:
        """Read more of the body."""
        self._body += body

    def on_message_complete(self) -> None:
        """Return the answer."""
        status = self._parser.get_status_code()
        answer, self._answer = self._answer, None
        found: Any = status, self._reason.decode("latin-1"), bytes(self._body)
        self._reason, self._body = b"", bytearray()
        self._open = self._open and answer is not None and self._parser.should_keep_alive()
        if answer is not None and not answer.done():
            answer.set_result(found)

    def _fail(self, text: str) -> None:
        self._open = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(text))
