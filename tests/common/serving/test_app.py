"""Routes where no program's own test covers them, verified clients, and WSGI applications."""

import asyncio
import io
import threading
from asyncio import Transport
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.serving.app import TEXT, Application, HttpRequest, HttpResponse
from common.serving.connection import is_verified
from common.serving.wsgi import Wsgi
from tests.common.serving.through import Message, call, client_of, scope_of


def application() -> Application:
    return Application(lambda _, status, text: HttpResponse(status, TEXT, text.encode()), "ours", 9)


def test_a_waiting_view_continues_after_its_client_disconnects() -> None:
    async def run() -> None:
        started, continues, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def view(_: HttpRequest) -> HttpResponse:
            started.set()
            await continues.wait()
            done.set()
            return HttpResponse(HTTPStatus.OK, TEXT, b"")

        app = application()
        app.add("/", "POST", view)
        scope = scope_of({"REQUEST_METHOD": "POST", "PATH_INFO": "/"})
        request = asyncio.create_task(call(app, scope, [b""]))
        await started.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        continues.set()
        await asyncio.wait_for(done.wait(), 60)

    asyncio.run(run())


def test_a_head_response_has_its_length_and_no_body() -> None:
    app = application()
    app.add("/", "GET", lambda _: HttpResponse(HTTPStatus.OK, TEXT, b"text"))
    response = client_of(app).head("/")
    assert (response.status_code, response.headers["Content-Length"]) == (200, "4")
    assert response.data == b""


CERTIFICATE = {"subject": ()}


class Peer(Transport):
    def __init__(self, address: str, *, tls: bool = False, certificate: Any = None) -> None:
        peer = (address, 40000) if address else None
        super().__init__({"peername": peer, "sslcontext": tls or None, "peercert": certificate})


@pytest.mark.parametrize(
    ("peer", "verified"),
    [
        (Peer("10.0.0.7", tls=True, certificate=CERTIFICATE), True),
        (Peer("10.0.0.7", tls=True), False),
        (Peer("127.0.0.1", tls=True), False),
        (Peer("127.0.0.1"), True),
        (Peer("::1"), True),
        (Peer("::ffff:127.0.0.1"), True),
        (Peer("10.0.0.7"), False),
        (Peer("::ffff:10.0.0.7"), False),
        (Peer("fe80::1%eth0"), False),
        (Peer(""), False),
    ],
)
def test_a_client_is_verified_by_its_certificate_or_without_tls_by_its_address(
    peer: Peer, verified: bool
) -> None:
    assert is_verified(peer) is verified


LARGEST = 1000
REQUEST = {"REQUEST_METHOD": "POST", "PATH_INFO": "/a", "QUERY_STRING": "b=1"}


class App:
    """A WSGI application that remembers what it was called with, and echoes the body."""

    def __init__(self) -> None:
        self.environ: Message = {}
        self.thread = 0
        self.content = io.BytesIO()

    def __call__(self, environ: Message, start_response: Any) -> Any:
        self.environ, self.thread = environ, threading.get_ident()
        start_response("200 OK", [("X-Length", environ["CONTENT_LENGTH"])])
        self.content = io.BytesIO(environ["wsgi.input"].read())
        return self.content


def send(app: Any, *pieces: bytes, request: Message = REQUEST) -> list[Message]:
    with ThreadPoolExecutor(1) as threads:
        wsgi = Wsgi(application=app, largest=LARGEST, threads=threads, quick=("/healthz",))
        return asyncio.run(call(wsgi, scope_of(request), pieces or (b"",)))


def test_a_request_becomes_a_wsgi_environment() -> None:
    app = App()
    request = {**REQUEST, "PATH_INFO": "/caf\u00c3\u00a9 %", "HTTP_X_A": "1", "CONTENT_TYPE": "t/t"}
    start, body = send(app, b"bo", b"dy", request=request)
    expected = request | {  # WSGI has the bytes of a path as latin-1
        "CONTENT_LENGTH": "4",
        "REMOTE_ADDR": "192.0.2.1",
        "SERVER_NAME": "192.0.2.2",
        "SERVER_PORT": "8443",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.url_scheme": "https",
    }
    assert expected.items() <= app.environ.items()
    assert (start["status"], start["headers"]) == (
        200,
        [(b"X-Length", b"4"), (b"Server", b"gpu-turnstile")],
    )
    assert (body["body"], app.content.closed) == (b"body", True)


@given(pieces=st.lists(st.binary(max_size=LARGEST // 2), min_size=1, max_size=8))
def test_a_body_arrives_whole_or_is_refused_by_its_length(pieces: list[bytes]) -> None:
    app, whole = App(), b"".join(pieces)
    _, *bodies = send(app, *pieces)
    fits = len(whole) <= LARGEST
    assert b"".join(each["body"] for each in bodies) == (whole if fits else b"")
    assert (int(app.environ["CONTENT_LENGTH"]) <= LARGEST) == fits


def test_blocking_pages_run_on_a_thread_and_probes_do_not() -> None:
    app = App()
    for path, elsewhere in (("/a", True), ("/healthz", False)):
        send(app, request={**REQUEST, "PATH_INFO": path})
        assert (app.thread != threading.get_ident()) == elsewhere


def test_a_waiting_response_is_sent_in_pieces() -> None:
    stream = MagicMock(aclose=AsyncMock())
    stream.__aiter__.return_value = [b"one", b"two"]

    def app(_: Message, start_response: Any) -> MagicMock:
        start_response("201 Created", [])
        return stream

    start, *bodies = send(app)
    assert start["status"] == 201
    assert [(each.get("body"), each.get("more_body")) for each in bodies] == [
        (b"one", True),
        (b"two", True),
        (None, None),
    ]
    stream.aclose.assert_awaited_once()
