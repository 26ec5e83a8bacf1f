"""Serves a WSGI application (PEP 3333), such as the page's Flask, as an ASGI application.

It is called on threads, after the body has arrived completely: a slow client takes a coroutine, not
a thread. A response with an asynchronous iterator, such as the page's events, waits on the event
loop.
"""

import asyncio
import io
import sys
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from common.serving.app import SERVER, read_body


@dataclass(frozen=True, kw_only=True)
class Wsgi:
    """An ASGI application that calls a WSGI one.

    Attributes:
        application: the WSGI application.
        largest: most bytes of a body; of a larger one the application gets only its length.
        threads: threads that call it; ``None`` for asyncio's.
        quick: paths for which it is called on the event loop, because it never waits there.
    """

    application: Callable[[dict[str, Any], Any], Any]
    largest: int
    threads: ThreadPoolExecutor | None = None
    quick: Collection[str] = ()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Handle one request; WebSockets and lifespan events are not served."""
        if scope["type"] != "http":
            return
        size, body = await read_body(dict(scope["headers"]), receive, self.largest)
        environ = _environ(scope) | {"CONTENT_LENGTH": str(size), "wsgi.input": io.BytesIO(body)}
        if scope["path"] in self.quick:
            status, fields, content = self._call(environ)
        else:
            run = asyncio.get_running_loop().run_in_executor
            status, fields, content = await run(self.threads, self._call, environ)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
        headers.append(SERVER)
        await send({"type": "http.response.start", "status": int(status[:3]), "headers": headers})
        if isinstance(content, bytes):
            await send({"type": "http.response.body", "body": content})
            return
        try:
            async for piece in content:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body"})
        finally:
            await content.aclose()

    def _call(self, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], Any]:
        head: list[Any] = []  # status and headers
        found = self.application(environ, lambda *given: head.extend(given[:2]))
        status, fields = head
        if hasattr(found, "__aiter__"):
            return status, fields, found
        try:
            return status, fields, b"".join(found)
        finally:
            getattr(found, "close", int)()


def _environ(scope: dict[str, Any]) -> dict[str, Any]:
    """Return the environment of a request, without its body."""
    host, port = scope["server"] or ("", 0)
    environ = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(scope["raw_path"] or b"/").decode("latin-1"),
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "SERVER_NAME": host,
        "SERVER_PORT": str(port),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "REMOTE_ADDR": (scope["client"] or ("",))[0],
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope["scheme"],
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").upper().replace("-", "_"), value.decode("latin-1")
        key = key if key == "CONTENT_TYPE" else f"HTTP_{key}"
        environ[key] = f"{environ[key]},{text}" if key in environ else text
    return environ
