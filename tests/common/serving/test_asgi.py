"""The adapter: what reaches a Flask application, and what becomes of its answer."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.serving import asgi
from common.serving.asgi import Adapter
from common.serving.environ import VERIFIED
from tests.common.serving.through import FakeClient, Message, NoMetrics, call, scope_of

LARGEST = 1000
REQUEST = {"REQUEST_METHOD": "POST", "PATH_INFO": "/a", "QUERY_STRING": "b=1"}


class App:
    """A WSGI application that remembers what it was called with, and echoes the body."""

    def __init__(self) -> None:
        self.environ: Message = {}
        self.thread = 0
        self.closed = 0

    def __call__(self, environ: Message, start_response: Any) -> Any:
        self.environ, self.thread = environ, threading.get_ident()
        start_response("200 OK", [("X-Length", environ["CONTENT_LENGTH"])])
        return Body(self, environ["wsgi.input"].read())


class Body:
    def __init__(self, app: App, body: bytes) -> None:
        self._app, self._body = app, body

    def __iter__(self) -> Any:
        return iter((self._body[:1], self._body[1:]))

    def close(self) -> None:
        self._app.closed += 1


def ask(
    app: Any,
    *pieces: Any,
    request: Message = REQUEST,
    client: FakeClient | None = None,
    **options: Any,
) -> list[Message]:
    """Return what is sent in answer to one request."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    adapter = Adapter(app, NoMetrics(), **({"largest": LARGEST} | options))
    scope = scope_of(request)
    asyncio.run(call(adapter, scope, pieces or (b"",), send, client or FakeClient()))
    return sent


def test_a_request_becomes_a_wsgi_environment() -> None:
    app, client = App(), FakeClient(verified=True)
    request = {**REQUEST, "PATH_INFO": "/caf\u00c3\u00a9 %", "HTTP_X_A": "1", "CONTENT_TYPE": "t/t"}
    start, body = ask(app, b"bo", b"dy", request=request, client=client)
    expected = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/caf\u00c3\u00a9 %",  # WSGI has the bytes as latin-1
        "QUERY_STRING": "b=1",
        "CONTENT_TYPE": "t/t",
        "CONTENT_LENGTH": "4",
        "HTTP_X_A": "1",
        "REMOTE_ADDR": "192.0.2.1",
        "SERVER_NAME": "192.0.2.2",
        "SERVER_PORT": "8443",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.url_scheme": "https",
        VERIFIED: True,
    }
    assert expected.items() <= app.environ.items()
    assert start == {
        "type": "http.response.start",
        "status": 200,
        "headers": [(b"Server", b"gpu-turnstile"), (b"X-Length", b"4")],
    }
    assert body == {"type": "http.response.body", "body": b"body", "more_body": False}
    assert (client.kept, app.closed) == (True, 1)


def test_fields_of_the_same_name_are_one() -> None:
    app = App()
    scope = scope_of(REQUEST)
    scope["headers"] = [(b"accept", b"a"), (b"accept", b"b")]
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(call(Adapter(app, NoMetrics(), largest=9), scope, (b"",), send, FakeClient()))
    assert app.environ["HTTP_ACCEPT"] == "a,b"


@given(pieces=st.lists(st.binary(max_size=LARGEST // 2), min_size=1, max_size=8))
def test_a_body_arrives_whole_or_is_refused_by_its_length(pieces: list[bytes]) -> None:
    app, client = App(), FakeClient()
    _, *bodies = ask(app, *pieces, client=client)
    whole = b"".join(pieces)
    echoed = b"".join(each["body"] for each in bodies)
    assert client.kept == (len(whole) <= LARGEST)
    if client.kept:
        assert echoed == whole
    else:
        assert echoed == b""
        assert int(app.environ["CONTENT_LENGTH"]) > LARGEST


def test_a_client_that_goes_away_is_not_answered() -> None:
    app, metrics = App(), NoMetrics()
    adapter = Adapter(app, metrics, largest=LARGEST)
    gone = asyncio.run(_breaks_off(adapter))
    assert (gone, app.environ, metrics.open) == ([], {}, 0)


async def _breaks_off(adapter: Adapter) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    with pytest.raises(asyncio.CancelledError):
        await adapter(scope_of(REQUEST), receive, send)
    return sent


def test_the_largest_of_too_many_bodies_is_ended() -> None:
    async def run() -> list[str]:
        adapter = Adapter(App(), NoMetrics(), largest=LARGEST, all_bodies=1000)
        clients = [FakeClient() for _ in range(3)]
        goes_on = asyncio.Event()

        async def rest() -> bytes:
            await goes_on.wait()
            return b"."

        async def send(_: Message) -> None: ...

        tasks = []
        for client, size in zip(clients, (300, 500, 201), strict=True):
            pieces = (bytes(size), rest())
            run = call(adapter, scope_of(REQUEST), pieces, send, client)
            tasks.append(asyncio.create_task(run))
            await asyncio.sleep(0)
        goes_on.set()
        await asyncio.gather(*tasks)
        return [each.ended for each in clients]

    assert asyncio.run(run()) == ["", "memory", ""]


def test_what_may_wait_is_called_on_a_thread_and_probes_are_not() -> None:
    app = App()
    with ThreadPoolExecutor(1) as threads:
        for path, elsewhere in (("/a", True), ("/healthz", False)):
            request = {**REQUEST, "PATH_INFO": path}
            ask(app, request=request, threads=threads, quick=("/healthz",))
            assert (app.thread != threading.get_ident()) == elsewhere


class Stream:
    """An answer in pieces, whose head comes with the first."""

    def __init__(self, pieces: list[bytes], start_response: Any) -> None:
        self._pieces, self._start, self.closed = pieces, start_response, False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        await asyncio.sleep(0)
        if not self._pieces:
            raise StopAsyncIteration
        self._start("201 Created", [])
        return self._pieces.pop(0)

    async def aclose(self) -> None:
        self.closed = True


def test_an_answer_that_waits_is_sent_piece_by_piece() -> None:
    streams: list[Stream] = []

    def app(_: Message, start_response: Any) -> Stream:
        streams.append(Stream([b"one", b"two"], start_response))
        return streams[-1]

    start, *bodies = ask(app, keeps=lambda: False)
    assert start["status"] == 201
    assert start["headers"][-1] == (b"Connection", b"close")
    assert [(each["body"], each["more_body"]) for each in bodies] == [
        (b"one", True),
        (b"two", True),
        (b"", False),
    ]
    assert streams[0].closed


def test_a_client_that_does_not_take_its_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "_WRITE_SECONDS", 0.01)

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.sleep(60)

    client, metrics = FakeClient(), NoMetrics()
    adapter = Adapter(App(), metrics, largest=2**20)
    asyncio.run(call(adapter, scope_of(REQUEST), [bytes(2**16)], send, client))
    assert (client.ended, client.kept, metrics.open) == ("write-timeout", None, 0)


def test_nothing_but_http_is_served() -> None:
    async def run(kind: str) -> None:
        await Adapter(App(), NoMetrics(), largest=1)({"type": kind}, None, None)

    for kind in ("lifespan", "websocket"):
        asyncio.run(run(kind))
