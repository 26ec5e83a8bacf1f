"""An ASGI application as a WSGI one, for werkzeug's test client: no server, no socket."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import Any

from werkzeug.test import Client as TestClient
from werkzeug.wrappers import Response

from common.serving.app import VERIFIED

Message = dict[str, Any]


def scope_of(environ: Message) -> Message:
    headers = [
        (key.removeprefix("HTTP_").replace("_", "-").lower().encode(), str(value).encode("latin-1"))
        for key, value in environ.items()
        if key.startswith("HTTP_") or (key in {"CONTENT_TYPE", "CONTENT_LENGTH"} and value)
    ]
    path = environ["PATH_INFO"].encode("latin-1")
    return {
        "type": "http",
        "http_version": "1.1",
        "method": environ["REQUEST_METHOD"],
        "scheme": "https",
        "path": path.decode(errors="replace"),
        "raw_path": path.replace(b"%", b"%25"),
        "query_string": environ.get("QUERY_STRING", "").encode(),
        "headers": headers,
        "server": ("192.0.2.2", 8443),
        "client": ("192.0.2.1", 1234),
        VERIFIED: bool(environ.get(VERIFIED)),
    }


async def call(application: Any, scope: Message, pieces: Iterable[bytes]) -> list[Message]:
    arriving, sent = list(pieces), list[Message]()

    async def receive() -> Message:
        if not arriving:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": arriving.pop(0), "more_body": bool(arriving)}

    async def send(message: Message) -> None:
        sent.append(message)

    await application(scope, receive, send)
    return sent


def client_of(application: Any) -> TestClient:
    def through(environ: Message, start_response: Any) -> list[bytes]:
        body = environ["wsgi.input"].read()
        start, *rest = asyncio.run(call(application, scope_of(environ), [body]))
        fields = [(name.decode(), value.decode()) for name, value in start["headers"]]
        start_response(f"{start['status']} _", fields)
        return [each.get("body", b"") for each in rest]

    return TestClient(through, Response)


def fetch(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
