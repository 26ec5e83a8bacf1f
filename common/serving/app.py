"""Flask's routes, served as an ASGI application on the event loop."""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeAlias, cast

from flask import Flask
from werkzeug.exceptions import MethodNotAllowed, NotFound

from common.serving.errors import BadRequest
from common.serving.metrics import ServerMetrics
from common.text import cut

JSON, TEXT = "application/json", "text/plain; charset=utf-8"
SERVER = (b"Server", b"gpu-turnstile")
VERIFIED = "gpu_turnstile.verified"
"""Key of a scope: whether the client has a valid certificate; without TLS, whether it is local."""

_log = logging.getLogger(__name__)
_LONGEST_PATH, _LONGEST_METHOD, _LONGEST_QUOTE = 253, 16, 64  # of a sender's text


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An HTTP response without its framing."""

    status: HTTPStatus
    media: str
    body: bytes


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request that has arrived completely.

    Attributes:
        headers: the headers, by lower-case name.
        verified: whether the client has a valid certificate. Without TLS, whether its address is a
            loopback address: containers of one pod reach each other so, and nobody else does.
        largest: most bytes that a body may have.
        size: bytes of the body.
    """

    headers: Mapping[bytes, bytes]
    verified: bool
    largest: int
    size: int
    _body: bytes

    def header(self, name: bytes) -> str:
        """Return a header's value; empty without the header."""
        return self.headers.get(name, b"").decode("latin-1")

    def body(self) -> bytes:
        """Return the body.

        Raises:
            BadRequest: it has more than :attr:`largest` bytes.
        """
        if self.size > self.largest:
            text = f"body: must be at most {self.largest} bytes"
            raise BadRequest(text, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return self._body

    def json_body(self) -> bytes:
        """Return the body of a request whose headers announce uncompressed JSON.

        Raises:
            BadRequest: the headers announce another type or a compressed body, or it has more than
                :attr:`largest` bytes.
        """
        media = self.header(b"content-type").partition(";")[0].strip()
        if media.lower() != "application/json":
            raise _unsupported("Content-Type", media, "must be application/json")
        encoding = self.header(b"content-encoding")
        if encoding.lower() not in {"", "identity"}:
            raise _unsupported("Content-Encoding", encoding, "compressed bodies are not read")
        return self.body()


def _unsupported(header: str, value: str, rule: str) -> BadRequest:
    quoted = json.dumps(cut(value, _LONGEST_QUOTE))
    text = f"{header}: Invalid value: {quoted}: {rule}"
    return BadRequest(text, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)


View: TypeAlias = Callable[[HttpRequest], HttpResponse | Coroutine[Any, Any, HttpResponse]]


class Application(Flask):
    """Flask's paths, methods and view functions; a view takes a request and returns a response.

    A view that must wait returns a coroutine, which continues even if its client disconnects.
    Flask's contexts, request and response would cost half as much as a whole review, which does not
    need them. So :meth:`__call__` is ASGI's, and finds views by Flask's own map of URLs.

    Args:
        refuse: returns the response to a request without a route, by path, status and reason.
        internal: the reason if a view fails because of a bug.
        largest: most bytes of a body.
    """

    def __init__(
        self, refuse: Callable[[str, HTTPStatus, str], HttpResponse], internal: str, largest: int
    ) -> None:
        super().__init__(__name__, static_folder=None)
        self.url_map.merge_slashes = False  # nobody is ever redirected
        self._urls = self.url_map.bind("")
        self._refuse = refuse
        self._internal = internal
        self._largest = largest
        self._waiting: set[asyncio.Task[HttpResponse]] = set()

    def add(self, path: str, method: str, view: View) -> None:
        """Add a route."""
        self.add_url_rule(
            path, path, cast("Any", view), methods=[method], provide_automatic_options=False
        )

    def add_status(
        self,
        metrics: ServerMetrics,
        *,
        is_ready: Callable[[], str],
        is_broken: Callable[[], str] = lambda: "",
    ) -> None:
        """Add the probes and the metrics.

        Args:
            metrics: the metrics to show.
            is_ready: returns why the program is not ready; empty if it is.
            is_broken: returns why the process must be restarted; empty if it need not.
        """
        self.add("/healthz", "GET", lambda _: _probe(is_broken()))
        self.add("/readyz", "GET", lambda _: _probe(is_ready()))
        shown = metrics.content_type
        self.add("/metrics", "GET", lambda _: HttpResponse(HTTPStatus.OK, shown, metrics.render()))

    async def __call__(  # type: ignore[override]  # Flask's own is WSGI's
        self, scope: dict[str, Any], receive: Any, send: Any
    ) -> None:
        """Handle one request; WebSockets and lifespan events are not served."""
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        size, body = await read_body(headers, receive, self._largest)
        request = HttpRequest(headers, scope.get(VERIFIED, False), self._largest, size, body)
        path, method = scope["path"], scope["method"]
        fields = [SERVER]
        try:
            rule, _ = self._urls.match(path, method, return_rule=True)
            if rule.rule != path:  # the map reads "//path" as "/path"
                raise NotFound
            found = cast("View", self.view_functions[rule.endpoint])(request)
            response = found if isinstance(found, HttpResponse) else await self._finish(found)
        except NotFound:
            response = self._refuse(path, HTTPStatus.NOT_FOUND, "no such path")
        except MethodNotAllowed as error:
            fields.append((b"Allow", ", ".join(sorted(error.valid_methods or ())).encode()))
            reason = f"{cut(method, _LONGEST_METHOD)} is not allowed here"
            response = self._refuse(path, HTTPStatus.METHOD_NOT_ALLOWED, reason)
        except Exception:  # noqa: BLE001 -- a bug: its trace goes only to the log
            _log.exception("failed", extra={"path": cut(path, _LONGEST_PATH)})
            response = self._refuse(path, HTTPStatus.INTERNAL_SERVER_ERROR, self._internal)
        fields += [
            (b"Content-Type", response.media.encode()),
            (b"Content-Length", str(len(response.body)).encode()),
        ]
        await send(
            {"type": "http.response.start", "status": int(response.status), "headers": fields}
        )
        await send(
            {"type": "http.response.body", "body": b"" if method == "HEAD" else response.body}
        )

    async def _finish(self, view: Coroutine[Any, Any, HttpResponse]) -> HttpResponse:
        task = asyncio.create_task(view)
        self._waiting.add(task)  # asyncio itself keeps no reference
        task.add_done_callback(self._waiting.discard)
        return await asyncio.shield(task)


async def read_body(
    headers: Mapping[bytes, bytes], receive: Any, largest: int
) -> tuple[int, bytes]:
    """Return the size of a request's body, and the body.

    A body with more than *largest* bytes is read up to twice that size and dropped, because its
    sender may send all of it before it reads the response. If the sender waits for "100 Continue"
    first, nothing is read.
    """
    length, size, more = int(headers.get(b"content-length", 0)), 0, True
    if length > largest and b"expect" in headers:
        return length, b""
    parts: list[bytes] = []
    while more and size <= 2 * largest:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise asyncio.CancelledError
        size, more = size + len(event["body"]), event["more_body"]
        parts.append(event["body"])
        if size > largest:
            parts.clear()
    return size, b"".join(parts)


def _probe(problem: str) -> HttpResponse:
    status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
    return HttpResponse(status, TEXT, f"{problem or 'ok'}\n".encode())
