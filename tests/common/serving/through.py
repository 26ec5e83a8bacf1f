"""An ASGI application as a WSGI one, for werkzeug's test client: no server, no socket."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from werkzeug.test import Client as TestClient
from werkzeug.wrappers import Response

from common.serving.asgi import Adapter
from common.serving.client import CLIENT, Client
from common.serving.environ import VERIFIED

Message = dict[str, Any]


@dataclass(eq=False)
class FakeClient(Client):
    """A client that remembers what becomes of it."""

    verified: bool = False
    kept: bool | None = None
    ended: str = ""

    def answered(self, *, keep: bool) -> None:
        self.kept = keep

    def end(self, why: str) -> None:
        self.ended = why


class NoMetrics:
    """An observer of nothing."""

    def __init__(self) -> None:
        self.open = 0

    def in_flight(self, change: int) -> None:
        self.open += change

    def connected(self, change: int) -> None: ...

    def ended(self, why: str) -> None: ...


def scope_of(environ: Message) -> Message:
    """Return the scope of a request that a WSGI environment tells of."""
    headers = [
        (key.removeprefix("HTTP_").replace("_", "-").lower().encode(), str(value).encode())
        for key, value in environ.items()
        if key.startswith("HTTP_") or key in {"CONTENT_TYPE", "CONTENT_LENGTH"}
    ]
    return {
        "type": "http",
        "http_version": "1.1",
        "method": environ["REQUEST_METHOD"],
        "scheme": "https",
        "path": environ["PATH_INFO"],
        "raw_path": environ["PATH_INFO"].encode("latin-1").replace(b"%", b"%25"),
        "query_string": environ.get("QUERY_STRING", "").encode(),
        "headers": headers,
        "server": ("192.0.2.2", 8443),
        "client": ("192.0.2.1", 1234),
    }


async def call(
    adapter: Adapter,
    scope: Message,
    pieces: Iterable[bytes | Awaitable[bytes]],
    send: Callable[[Message], Awaitable[None]],
    client: Client,
) -> None:
    """Send one request; the client goes away after its last piece, where that is empty."""
    arriving = list(pieces)

    async def receive() -> Message:
        if not arriving:
            return {"type": "http.disconnect"}
        piece = arriving.pop(0)
        body = piece if isinstance(piece, bytes) else await piece
        return {"type": "http.request", "body": body, "more_body": bool(arriving)}

    token = CLIENT.set(client)
    try:
        await adapter(scope, receive, send)
    finally:
        CLIENT.reset(token)


def client_of(adapter: Adapter) -> TestClient:
    """Return a client whose requests go through *adapter*."""

    def application(environ: Message, start_response: Any) -> list[bytes]:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        client = FakeClient(bool(environ.get(VERIFIED)))
        body = environ["wsgi.input"].read()
        asyncio.run(call(adapter, scope_of(environ), [body], send, client))
        start, *rest = sent
        fields = [(name.decode(), value.decode()) for name, value in start["headers"]]
        start_response(f"{start['status']} _", fields)
        return [each["body"] for each in rest]

    return TestClient(application, Response)
