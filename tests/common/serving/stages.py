"""The server's parts on a stage: what the tests of one part need of the others."""

import asyncio
import socket
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from common.serving.answer import TEXT, Answer
from common.serving.connections import Connections, Limits
from common.serving.listener import Listener
from common.serving.protocol import HttpConnection, Service
from common.serving.tls import Files, server_context
from common.serving.wsgi import DEFER

DEADLINE = 30
LARGEST_BODY = 2**16
GET = b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Told:
    """Metrics that remember."""

    def __init__(self) -> None:
        self.flying = 0
        self.open = 0
        self.ends: Counter[tuple[str, str]] = Counter()

    def in_flight(self, change: int) -> None:
        self.flying += change

    def connected(self, change: int) -> None:
        self.open += change

    def ended(self, state: str, why: str) -> None:
        self.ends[state, why] += 1


class Transport:
    """asyncio's transport, as far as it is used."""

    def __init__(self, **extra: Any) -> None:
        self.extra = {"peername": ("192.0.2.1", 1), "sockname": ("192.0.2.2", 2), **extra}
        self.sent = b""
        self.closed = self.aborted = self.reading_paused = False

    def get_extra_info(self, name: str) -> Any:
        return self.extra.get(name)

    def set_write_buffer_limits(self, high: int) -> None: ...

    def write(self, data: bytes) -> None:
        self.sent += data

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        self.reading_paused = False

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


class ConnectionStage:
    """A connection, its transport, and the application behind it."""

    def __init__(self, *, keeps_alive: bool = True, **extra: Any) -> None:
        self.told = Told()
        self.environs: list[dict[str, Any]] = []
        self.on_request: Callable[[], None] = lambda: None
        connections = Connections(Limits(10, 10**8), clock=time.monotonic, observer=self.told)
        service = Service(
            connections,
            self._application,
            keeps_alive=lambda: keeps_alive,
            largest_body=LARGEST_BODY,
        )
        self.connection = HttpConnection(service, hang_up=lambda: None)
        self.transport = Transport(**extra)
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]  # a fake

    def _application(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        environ["body"] = environ["wsgi.input"].read(LARGEST_BODY + 1)
        self.environs.append(environ)
        self.on_request()
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    def receive(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.connection.data_received(piece)

    @property
    def answers(self) -> list[bytes]:
        """Their bodies, and "100 Continue" where it was sent."""
        parts = self.transport.sent.split(b"HTTP/1.1 ")[1:]
        return [
            part[:3] if part.startswith(b"1") else part.partition(b"\r\n\r\n")[2] for part in parts
        ]


class ListenerStage:
    """A listener inside a running loop, and its clients."""

    def __init__(self, certificates: Path, limits: Limits, handshake_seconds: float) -> None:
        self.told = Told()
        self.answer = b"answer"
        self.inside, self.go_on = asyncio.Event(), asyncio.Event()
        self.keeps_alive = True
        self.clients: list[socket.socket] = []
        self.pool = ThreadPoolExecutor(16)
        self.connections = Connections(limits, clock=time.monotonic, observer=self.told)
        self._authority = str(certificates / "ca.crt")
        listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = listening.getsockname()
        context = server_context(Files(certificates / "tls.crt", certificates / "tls.key"))
        self.listener = Listener(
            [listening],
            Service(
                self.connections,
                self._application,
                keeps_alive=lambda: self.keeps_alive,
                largest_body=LARGEST_BODY,
            ),
            context=lambda: context,
            handshake_seconds=handshake_seconds,
        )

    def _application(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        if environ["PATH_INFO"] == "/slow":
            environ[DEFER](self._wait())
            return []
        start_response("200 OK", [("Content-Length", str(len(self.answer)))])
        return [self.answer]

    async def _wait(self) -> Answer:
        self.inside.set()
        await self.go_on.wait()
        return Answer(HTTPStatus.OK, TEXT, b"slow")

    async def run(self, client: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.pool, client)

    async def wait(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not holds():  # noqa: ASYNC110 - clients are threads
                await asyncio.sleep(0.01)

    async def plain(self) -> socket.socket:
        before = len(self.connections)
        client: socket.socket = await self.run(
            lambda: socket.create_connection(self.address, timeout=DEADLINE)
        )
        self.clients.append(client)
        await self.wait(lambda: len(self.connections) > before)
        return client

    async def connect(self) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=self._authority)

        def connect() -> ssl.SSLSocket:
            plain = socket.create_connection(self.address, timeout=DEADLINE)
            return context.wrap_socket(plain, server_hostname="localhost")

        client: ssl.SSLSocket = await self.run(connect)
        self.clients.append(client)
        return client

    async def ask(self, client: ssl.SSLSocket, request: bytes = GET) -> bytes:
        def ask() -> bytes:
            client.sendall(request)
            return client.recv(65536).partition(b"\r\n\r\n")[2]

        answer: bytes = await self.run(ask)
        return answer


Make = Callable[..., AbstractAsyncContextManager[ListenerStage]]


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test in an event loop of its own, in which nothing may go wrong unseen."""
    unseen: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, seen: unseen.append(seen))
        await test()

    asyncio.run(watched())
    assert unseen == []
