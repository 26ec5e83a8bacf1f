"""gunicorn's worker as we set it up, spoken to in bytes over TLS."""

import asyncio
import contextlib
import socket
import ssl
import warnings
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from common.serving.app import TEXT, Application, HttpRequest, HttpResponse
from common.serving.errors import BadRequest
from common.serving.metrics import ServerMetrics
from common.serving.server import GunicornServer
from common.serving.tls import Files, ServedCertificate
from tests.agent.fakes import eventually
from tests.common.serving.in_process import InProcessServer, served

GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /length HTTP/1.1\r\nHost: localhost\r\n"
LARGEST = 2**20
CONNECTIONS = 12


def _ok(body: bytes) -> HttpResponse:
    return HttpResponse(HTTPStatus.OK, TEXT, body)


def _length(request: HttpRequest) -> HttpResponse:
    try:
        return _ok(str(len(request.body())).encode())
    except BadRequest as error:
        return HttpResponse(error.status, TEXT, str(error).encode())


class Program(GunicornServer):
    """A server with a few routes; ``/late`` waits for *gate*."""

    def __init__(self, certificate: ServedCertificate | None) -> None:
        self.gate = asyncio.Event()
        super().__init__(
            "test",
            "127.0.0.1",
            1,
            ServerMetrics("test_", tls=certificate is not None),
            certificate,
            connections=CONNECTIONS,
            all_bodies=2 * LARGEST,
            drain_delay=2.0,
        )

    def load(self) -> Application:
        refuse = lambda _, status, text: HttpResponse(status, TEXT, text.encode())  # noqa: E731
        app = Application(refuse, "ours", LARGEST)
        app.add("/length", "POST", _length)
        app.add("/late", "GET", self._late)
        app.add("/large", "GET", lambda _: _ok(bytes(2**25)))
        app.add_status(self.metrics, is_ready=self.not_ready)
        return app

    async def _late(self, _: HttpRequest) -> HttpResponse:
        await self.gate.wait()
        return _ok(b"late")


@pytest.fixture
def program(certificates: Path) -> Program:
    files = Files(certificates / "tls.crt", certificates / "tls.key")
    return Program(ServedCertificate(files))


@pytest.fixture
def https(program: Program, certificates: Path) -> Iterator[InProcessServer]:
    """The server; at its end no connection is left, and no error was logged."""
    metrics = program.metrics
    with served(program, certificates) as found:
        yield found
        eventually(lambda: metrics.connections == metrics.requests == 0, "nothing is left")
    assert found.log.errors == []


@pytest.fixture
def plain(certificates: Path) -> Iterator[InProcessServer]:
    with served(Program(None), certificates) as found:
        yield found


def ended(server: InProcessServer, reason: str) -> float:
    name = "test_connections_ended_total"
    return server.app.metrics.registry.get_sample_value(name, {"reason": reason}) or 0.0


def _read_response(client: socket.socket) -> tuple[bytes, bytes]:
    head = b""
    while b"\r\n\r\n" not in head:
        piece = client.recv(65536)
        assert piece, head
        head += piece
    head, _, body = head.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        piece = client.recv(65536)
        assert piece, head
        body += piece
    return head, body


def _rest(client: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionResetError, ssl.SSLEOFError):
        while piece := client.recv(65536):
            received += piece
    return received


@pytest.mark.parametrize(
    "request_",
    [
        POST + b"Content-Length: 5\r\n\r\nabcde",
        POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    ],
)
def test_a_connection_is_kept_after_a_response(https: InProcessServer, request_: bytes) -> None:
    with https.connect() as client:
        client.sendall(request_ * 2)  # the second is sent before the first has a response
        for _ in range(2):
            head, body = _read_response(client)
            assert head.startswith(b"HTTP/1.1 200 OK\r\nServer: gpu-turnstile\r\n")
            assert (b"close" in head, body) == (False, b"5")
        for byte in request_:
            client.sendall(bytes([byte]))
        assert _read_response(client)[1] == b"5"


@pytest.mark.parametrize(
    ("bytes_", "status"),
    [
        (b"\x16\x03\x01\x00\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * 9000 + b"\r\n\r\n", b"431"),
        (POST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
    ],
)
def test_bytes_that_are_no_http_are_refused_and_their_connection_closed(
    https: InProcessServer, bytes_: bytes, status: bytes
) -> None:
    with https.connect() as client:
        client.sendall(bytes_)
        assert _rest(client).startswith(b"HTTP/1.1 " + status)


def test_tls_1_1_is_refused(https: InProcessServer) -> None:
    context = https.tls()
    context.set_ciphers("ALL:@SECLEVEL=0")  # or our own side would refuse first
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError, match=r"EOF|reset"):  # by the other side
        https.connect(context)


@pytest.mark.parametrize(
    ("begun", "trickle"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n", b""),
        (POST + b"Content-Length: 5\r\n\r\nabc", b""),
        (b"GET /metrics HTTP/1.1\r\n", b"A: b\r\n"),
    ],
    ids=["header", "body", "bytes that trickle"],
)
def test_a_request_must_arrive_within_15_seconds(
    https: InProcessServer, begun: bytes, trickle: bytes
) -> None:
    with https.connect() as client:
        client.sendall(begun)
        seconds, received = https.advance_until_received(client, sends=trickle)
        assert seconds >= 15
        assert received.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert received.endswith(b"\r\n\r\na request must arrive within 15 s\n")
        for _ in range(3):
            https.advance(1)  # the client has not closed yet
        assert ended(https, "timeout") == 1, "it is counted once"


@pytest.mark.parametrize("sent", [b"", POST + b"Content-Length: 0\r\n\r\n"])
def test_a_connection_without_a_request_is_closed_after_120_seconds(
    https: InProcessServer, sent: bytes
) -> None:
    with https.connect() as client:
        client.sendall(sent)
        if sent:
            assert _read_response(client)[1] == b"0"
        seconds, received = https.advance_until_received(client, step=5)
        assert seconds >= 120
        assert received == b""
        assert ended(https, "timeout") == 1


def test_a_client_that_does_not_read_its_response_is_disconnected(plain: InProcessServer) -> None:
    with plain.plain() as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.recv(1)
        for _ in range(19):
            plain.advance(1)
            assert ended(plain, "write-timeout") == 0
        for _ in range(2):
            plain.advance(1)
        assert ended(plain, "write-timeout") == 1


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"])
def test_a_handshake_has_10_seconds(https: InProcessServer, sent: bytes) -> None:
    with https.plain() as stalled:
        stalled.sendall(sent)
        seconds, received = https.advance_until_received(stalled)
        assert seconds >= 10
        assert received == b""


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: %d\r\n\r\n" % (2 * LARGEST) + bytes(2 * LARGEST),
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % (LARGEST + 1)
        + bytes(LARGEST + 1)
        + b"\r\n0\r\n\r\n",
        b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % (LARGEST + 1),
    ],
    ids=["length", "chunks", "100-continue"],
)
def test_a_client_that_sends_too_much_gets_the_reason(
    https: InProcessServer, framing: bytes
) -> None:
    with https.connect() as client:
        client.sendall(POST + framing)  # all of it, before anything is read
        head, body = _read_response(client)
        assert head.startswith(b"HTTP/1.1 413 ")
        assert body == b"body: must be at most 1048576 bytes"


def test_the_largest_of_too_many_bodies_is_ended(https: InProcessServer) -> None:
    with contextlib.ExitStack() as held:
        clients = [held.enter_context(https.connect()) for _ in range(4)]
        for client, size in zip(clients, (300, 1000, 300, 600), strict=True):
            client.sendall(POST + b"Content-Length: %d\r\n\r\n" % LARGEST + bytes(size * 1000))
        assert _rest(clients[1]).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        clients[0].sendall(bytes(LARGEST - 300_000))
        assert _read_response(clients[0])[1] == b"%d" % LARGEST


def test_the_client_waiting_longest_without_a_response_is_ended(https: InProcessServer) -> None:
    with contextlib.ExitStack() as held:
        good = held.enter_context(https.connect())
        good.sendall(POST + b"Content-Length: 0\r\n\r\n")
        assert _read_response(good)[1] == b"0"
        stalled = [held.enter_context(https.plain()) for _ in range(3 * CONNECTIONS)]
        assert _rest(stalled[0]) == b""
        assert ended(https, "no-room") > 0
        good.sendall(POST + b"Content-Length: 0\r\n\r\n")
        assert _read_response(good)[1] == b"0"


def test_a_waiting_response_delays_no_other(https: InProcessServer, program: Program) -> None:
    with https.connect() as one, https.connect() as other:
        one.sendall(b"GET /late HTTP/1.1\r\nHost: localhost\r\n\r\n")
        eventually(lambda: program.metrics.requests == 1, "the request waits")
        other.sendall(GET)
        assert b"test_requests_in_flight 2.0" in _read_response(other)[1]
        https.call(program.gate.set)
        assert _read_response(one)[1] == b"late"


def test_a_failed_handshake_is_counted(https: InProcessServer) -> None:
    with https.plain() as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"HTTP" not in _rest(client)
    eventually(lambda: ended(https, "tls") == 1, "it is counted")


def test_readiness_ends_first_and_late_requests_are_still_served(https: InProcessServer) -> None:
    with https.connect() as kept:
        kept.sendall(POST + b"Content-Length: 0\r\n\r\n")
        assert b"close" not in _read_response(kept)[0]
        https.drain()
        https.advance(1)
        assert https.get("/readyz") == (503, "shutting down\n")
        kept.sendall(POST + b"Content-Length: 1\r\n\r\na")
        head, body = _read_response(kept)
        assert (b"Connection: close" in head, body) == (True, b"1")
        assert _rest(kept) == b""


def test_a_drain_waits_for_requests_in_progress_and_closes_idle_connections(
    https: InProcessServer, program: Program
) -> None:
    late = b"GET /late HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with https.connect() as idle, https.connect() as silent, https.connect() as busy:
        idle.sendall(POST + b"Content-Length: 0\r\n\r\n")
        assert _read_response(idle)[1] == b"0"
        eventually(lambda: program.metrics.requests == 0, "the first request has ended")
        busy.sendall(late)
        eventually(lambda: program.metrics.requests == 1, "the second request waits")
        https.drain()
        for client in (idle, silent):
            assert https.advance_until_received(client)[1] == b""
        https.call(program.gate.set)
        head, body = _read_response(busy)
        assert (b"Connection: close" in head, body) == (True, b"late")
        assert _rest(busy) == b""
    assert https.ends()
    with pytest.raises(ConnectionRefusedError):
        https.connect()
