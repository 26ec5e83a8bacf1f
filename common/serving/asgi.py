"""A Flask application as gunicorn's ``asgi`` worker calls it: the adapter of all our servers.

A body is read whole before the application is called: a slow client costs a coroutine, no thread.
What the application returns is sent as it is, or piece by piece where it is iterated
asynchronously: then the response may be started as late as with the first piece.
"""

import asyncio
import io
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from common.serving.client import CLIENT, Client
from common.serving.environ import make_environ
from common.serving.metrics import Observer

_WRITE_SECONDS = 20.0
_SHORT = 2**14  # bytes that the buffer of a connection takes without waiting


@dataclass(eq=False)
class Adapter:
    """An ASGI application that calls a WSGI one (PEP 3333).

    Attributes:
        application: the WSGI application. Of a body of more than *largest* bytes it is given the
            ``CONTENT_LENGTH`` alone, and must refuse the request.
        observer: counts requests.
        largest: bytes of a body.
        all_bodies: bytes of all bodies that are arriving; above, the largest one is ended.
        keeps: returns whether connections are kept after an answer.
        threads: call the application; without them it is called on the event loop, and must not
            wait for anything.
        quick: paths for which it is called on the event loop all the same.
    """

    application: Callable[[dict[str, Any], Any], Any]
    observer: Observer
    _: KW_ONLY
    largest: int
    all_bodies: int = 2**26
    keeps: Callable[[], bool] = lambda: True
    threads: Executor | None = None
    quick: Collection[str] = ()
    _arriving: dict[Client, int] = field(default_factory=dict, init=False)  # bytes of bodies

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer one request; WebSockets and lifespan events are not served."""
        if scope["type"] != "http":
            return
        client = CLIENT.get()
        client.begin()
        self.observer.in_flight(1)
        try:
            environ = make_environ(scope, verified=client.verified)
            body, size = await self._read(receive, client, environ)
            environ |= {"CONTENT_LENGTH": str(size), "wsgi.input": io.BytesIO(body)}
            if self.threads is None or scope["path"] in self.quick:
                head, answer = self._call(environ)
            else:
                run = asyncio.get_running_loop().run_in_executor
                head, answer = await run(self.threads, self._call, environ)
            keep = size <= self.largest and self.keeps()
            await _send(send, head, answer, keep=keep)
            client.answered(keep=keep)
        except TimeoutError:
            client.end("write-timeout")
        finally:
            self.observer.in_flight(-1)

    async def _read(self, receive: Any, client: Client, environ: Any) -> tuple[bytes, int]:
        """Return a body and its size; of one that is too large some is read, and dropped.

        Its sender may send all of it before it reads the answer.
        """
        length, size, more = int(environ.get("CONTENT_LENGTH", 0)), 0, True
        if length > self.largest and "HTTP_EXPECT" in environ:
            return b"", length
        parts: list[bytes] = []
        try:
            while more and size <= 2 * self.largest:
                event = await receive()
                if event["type"] == "http.disconnect":
                    raise asyncio.CancelledError
                parts.append(event["body"])
                size, more = size + len(event["body"]), event["more_body"]
                if size > self.largest:
                    parts.clear()
                elif more:
                    self._arriving[client] = size
                    if sum(self._arriving.values()) > self.all_bodies:
                        max(self._arriving, key=self._arriving.__getitem__).end("memory")
        finally:
            self._arriving.pop(client, None)
        client.received()
        return b"".join(parts), size

    def _call(self, environ: dict[str, Any]) -> tuple[list[Any], Any]:
        head: list[Any] = []  # status and headers
        found = self.application(environ, lambda *given: head.extend(given[:2]))
        if hasattr(found, "__aiter__"):
            return head, found
        try:
            return head, b"".join(found)
        finally:
            getattr(found, "close", int)()


async def _send(send: Any, head: list[Any], answer: Any, *, keep: bool) -> None:
    if isinstance(answer, bytes):
        await send(_start(head, keep=keep))
        await _write(send, answer, more=False)
        return
    try:
        begun = False
        async for piece in answer:
            if not begun:
                await send(_start(head, keep=keep))
            begun = True
            await _write(send, piece, more=True)
        await _write(send, b"", more=False)
    finally:
        await answer.aclose()


def _start(head: list[Any], *, keep: bool) -> dict[str, Any]:
    status, headers = head
    fields = [("Server", "gpu-turnstile"), *headers, *(() if keep else [("Connection", "close")])]
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
    return {"type": "http.response.start", "status": int(status[:3]), "headers": encoded}


async def _write(send: Any, body: bytes, *, more: bool) -> None:
    message = {"type": "http.response.body", "body": body, "more_body": more}
    if len(body) <= _SHORT and not more:
        await send(message)
    else:  # a client may not take it
        async with asyncio.timeout(_WRITE_SECONDS):
            await send(message)
