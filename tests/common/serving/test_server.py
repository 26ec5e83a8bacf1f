"""gunicorn as we set it up, in a process of its own, spoken to in bytes over TLS."""

import contextlib
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.common.serving.program import LARGEST
from tests.webhook.serving import DEADLINE, Running, free_port

pytestmark = pytest.mark.slow

GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /length HTTP/1.1\r\nHost: localhost\r\n"
CONNECTIONS = 12


@dataclass
class Server(Running):
    """One that runs; it answers ``/late`` once *gate* is there."""

    gate: Path
    over_tls: bool

    def open(self) -> socket.socket:
        return self.connect() if self.over_tls else self.plain()

    def count(self, metric: str) -> float:
        with self.open() as client:
            client.sendall(GET)
            lines = _read_response(client)[1].decode().splitlines()
        return sum(float(each.rpartition(" ")[2]) for each in lines if each.startswith(metric))


@contextlib.contextmanager
def running(certificates: Path, directory: Path, *, patience: str = "all") -> Iterator[Server]:
    port, log, gate = free_port(), directory / "log", directory / "gate"
    files = (str(certificates / "tls.crt"), str(certificates / "tls.key"))
    command = [sys.executable, "-m", "tests.common.serving.program", str(port), *files]
    with (
        log.open("wb") as stderr,
        subprocess.Popen(
            [*command, str(CONNECTIONS), str(gate), patience], stderr=stderr
        ) as process,
    ):
        server = Server(process, port, certificates, log, gate, patience != "plain")

        def listens() -> bool:
            with contextlib.suppress(OSError), server.open():
                return True
            assert process.poll() is None, log.read_text()
            return False

        try:
            server.wait(listens)
            yield server
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(certificates, tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture(scope="module")
def impatient(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(certificates, tmp_path_factory.mktemp("impatient"), patience="none") as found:
        yield found


def _read_response(client: socket.socket) -> tuple[bytes, bytes]:
    """Read one answer: its head and its body."""
    got = b""
    while b"\r\n\r\n" not in got:
        piece = client.recv(65536)
        assert piece, got
        got += piece
    head, _, body = got.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        piece = client.recv(65536)
        assert piece, got
        body += piece
    return head, body


def _rest(client: socket.socket) -> bytes:
    """Read until the server closes."""
    got = b""
    with contextlib.suppress(ConnectionResetError, ssl.SSLEOFError):
        while piece := client.recv(65536):
            got += piece
    return got


@pytest.mark.parametrize(
    ("request_", "length"),
    [
        (POST + b"Content-Length: 5\r\n\r\nabcde", b"5"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", b"5"),
    ],
)
def test_a_request_is_answered_and_its_connection_kept(
    server: Server, request_: bytes, length: bytes
) -> None:
    with server.connect() as client:
        client.sendall(request_ * 2)  # the second is sent before the first is answered
        for _ in range(2):
            head, body = _read_response(client)
            assert head.startswith(b"HTTP/1.1 200 OK\r\nServer: gpu-turnstile\r\n")
            assert (b"close" in head, body) == (False, length)
        for byte in request_:
            client.sendall(bytes([byte]))
        assert _read_response(client)[1] == length


@pytest.mark.parametrize(
    ("bytes_", "status"),
    [
        (b"\x16\x03\x01\x00\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * 9000 + b"\r\n\r\n", b"431"),
        (POST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
    ],
)
def test_bytes_that_are_no_http_are_refused_and_the_last(
    server: Server, bytes_: bytes, status: bytes
) -> None:
    with server.connect() as client:
        client.sendall(bytes_)
        assert _rest(client).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize(
    "begun",
    [
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n",
        POST + b"Content-Length: 5\r\n\r\nabc",
        b"",
    ],
)
def test_a_request_must_arrive_before_a_deadline(impatient: Server, begun: bytes) -> None:
    before = impatient.count('test_connections_ended_total{reason="timeout"}')
    with impatient.connect() as client:
        client.sendall(begun)
        received = _rest(client)
        if begun:
            assert received.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
            assert received.endswith(b"\r\n\r\na request must arrive within 15 s\n")
        else:
            assert received == b""
    assert impatient.count('test_connections_ended_total{reason="timeout"}') > before


def test_an_ended_client_is_counted_once(impatient: Server) -> None:
    name = 'test_connections_ended_total{reason="timeout"}'
    before = impatient.count(name)
    with impatient.connect() as client:
        client.sendall(b"GET")
        assert _rest(client).startswith(b"HTTP/1.1 408")
        time.sleep(2.5)  # two looks at whoever is overdue; the client has not closed
        assert impatient.count(name) == before + 1


def test_bytes_that_trickle_do_not_prolong_it(impatient: Server) -> None:
    with impatient.connect() as client:
        client.settimeout(0.1)
        client.sendall(b"GET /metrics HTTP/1.1\r\n")
        began = time.monotonic()
        received = b""
        while not received:
            with contextlib.suppress(TimeoutError):
                received = client.recv(4096)
            if not received:
                client.sendall(b"A: b\r\n")
            assert time.monotonic() - began < DEADLINE
        assert received.startswith(b"HTTP/1.1 408")


def test_a_kept_connection_is_closed_when_nothing_comes(impatient: Server) -> None:
    with impatient.connect() as client:
        client.sendall(POST + b"Content-Length: 0\r\n\r\n")
        assert _read_response(client)[1] == b"0"
        assert _rest(client) == b""


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: %d\r\n\r\n" % (2 * LARGEST) + bytes(2 * LARGEST),
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % (LARGEST + 1)
        + bytes(LARGEST + 1)
        + b"\r\n0\r\n\r\n",
        b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % (LARGEST + 1),
    ],
    ids=["length", "chunks", "asks before"],
)
def test_a_client_that_sends_too_much_gets_the_reason(server: Server, framing: bytes) -> None:
    with server.connect() as client:
        client.sendall(POST + framing)  # all of it, before anything is read
        head, body = _read_response(client)
        assert head.startswith(b"HTTP/1.1 413 ")
        assert body == b"body: must be at most 1048576 bytes"


def test_of_too_many_bodies_the_largest_is_ended(server: Server) -> None:
    with contextlib.ExitStack() as held:
        clients = [held.enter_context(server.connect()) for _ in range(4)]
        for client, size in zip(clients, (300, 1000, 300, 600), strict=True):
            client.sendall(POST + b"Content-Length: %d\r\n\r\n" % LARGEST + bytes(size * 1000))
        assert _rest(clients[1]).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        clients[0].sendall(bytes(LARGEST - 300_000))
        assert _read_response(clients[0])[1] == b"%d" % LARGEST


def test_a_waiting_response_delays_no_other(server: Server) -> None:
    with server.connect() as one, server.connect() as other:
        one.sendall(b"GET /late HTTP/1.1\r\nHost: localhost\r\n\r\n")
        other.sendall(GET)
        assert _read_response(other)
        server.gate.touch()
        assert _read_response(one)[1] == b"late"


def test_a_failed_handshake_is_counted(server: Server) -> None:
    before = server.count('test_connections_ended_total{reason="tls"}')
    with server.plain() as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b"HTTP" not in _rest(plain)
    assert server.count('test_connections_ended_total{reason="tls"}') == before + 1


def test_a_client_that_does_not_read_its_response_is_disconnected(
    certificates: Path, tmp_path: Path
) -> None:
    name = 'test_connections_ended_total{reason="write-timeout"}'
    with running(certificates, tmp_path, patience="plain") as server, server.plain() as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        server.wait(lambda: server.count(name) == 1)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"])
def test_a_handshake_has_a_deadline(impatient: Server, sent: bytes) -> None:
    with impatient.plain() as stalled:
        stalled.sendall(sent)
        assert _rest(stalled) == b""


def test_the_client_waiting_longest_without_a_response_is_ended(server: Server) -> None:
    with contextlib.ExitStack() as held:
        good = held.enter_context(server.connect())
        good.sendall(POST + b"Content-Length: 0\r\n\r\n")
        assert _read_response(good)[1] == b"0"
        before = server.count('test_connections_ended_total{reason="no-room"}')
        stalled = [held.enter_context(server.plain()) for _ in range(3 * CONNECTIONS)]
        assert server.count('test_connections_ended_total{reason="no-room"}') > before
        assert _rest(stalled[0]) == b""
        good.sendall(POST + b"Content-Length: 0\r\n\r\n")
        assert _read_response(good)[1] == b"0"


def test_what_ends_leaves_nothing(server: Server) -> None:
    server.wait(lambda: server.count("test_connections ") == 1)
    assert server.count("test_requests_in_flight ") == 1
    assert "Traceback" not in server.log.read_text()
