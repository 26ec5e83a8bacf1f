"""The routes of a server: paths, methods and status codes. The one module that knows Flask."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias

from flask import Flask
from werkzeug.exceptions import HTTPException

from common.serving.answer import TEXT, Answer
from common.serving.metrics import ServerMetrics
from common.text import cut

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

    View: TypeAlias = Callable[[WSGIEnvironment], Answer | Coroutine[Any, Any, Answer]]

_log = logging.getLogger(__name__)
_LONGEST_PATH, _LONGEST_METHOD = 253, 16  # of a sender's text


class Application(Flask):
    """Flask's routes and methods; views take the environment and return an answer.

    A view whose answer waits for something returns a coroutine; it goes on when its client leaves.
    Its answer is iterated asynchronously, which only :mod:`common.serving.asgi` does.

    Flask's contexts, request and response would cost half as much as a whole request, which
    has no use for them.

    Args:
        refuse: returns the answer to a request that no route takes, by path, status and reason.
        internal: the reason when a view fails: our own mistake.
    """

    def __init__(self, refuse: Callable[[str, HTTPStatus, str], Answer], internal: str) -> None:
        super().__init__(__name__, static_folder=None)
        self.url_map.merge_slashes = False  # nobody is ever redirected
        self._adapter = self.url_map.bind("")
        self._views: dict[str, View] = {}
        self._known: dict[tuple[str, str], View] = {}  # what needs no search
        self._waiting: set[asyncio.Task[Answer]] = set()
        self._refuse = refuse
        self._internal = internal

    def add(self, path: str, method: str, view: "View") -> None:
        """Add a route."""
        self.add_url_rule(path, path, methods=[method], provide_automatic_options=False)
        self._views[path] = self._known[method, path] = view

    def add_status(
        self,
        metrics: ServerMetrics,
        *,
        is_ready: Callable[[], str],
        is_broken: Callable[[], str] = lambda: "",
    ) -> None:
        """Add the probes and the metrics.

        Args:
            metrics: to show.
            is_ready: returns why new requests are not welcome; empty when they are.
            is_broken: returns why the process must be started again; empty when it need not.
        """
        self.add("/healthz", "GET", lambda _: _probe(is_broken()))
        self.add("/readyz", "GET", lambda _: _probe(is_ready()))
        self.add("/metrics", "GET", lambda _: _show(metrics))

    def wsgi_app(  # type: ignore[override]  # Flask's own waits for nothing
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes] | AsyncIterator[bytes]:
        """Answer one request."""
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        extra: list[tuple[str, str]] = []
        try:
            view = self._known.get((method, path))
            if view is None:
                endpoint, _ = self._adapter.match(path, method)
                view = self._views[endpoint]
            found = view(environ)
            if not isinstance(found, Answer):
                return self._later(path, found, start_response)
            answer = found
        except HTTPException as error:
            status = HTTPStatus(error.code or HTTPStatus.INTERNAL_SERVER_ERROR)
            answer = self._refuse(path, status, _reason(status, method))
            extra = [each for each in error.get_headers(environ) if each[0] == "Allow"]
        except Exception:  # noqa: BLE001 - our own mistake: its trace is for us only
            answer = self._fail(path)
        start_response(answer.status_line, answer.headers + extra)
        return [] if method == "HEAD" else [answer.body]

    async def _later(
        self, path: str, found: Coroutine[Any, Any, Answer], start_response: "StartResponse"
    ) -> AsyncIterator[bytes]:
        task = asyncio.create_task(found)
        self._waiting.add(task)  # asyncio itself does not keep it
        task.add_done_callback(self._waiting.discard)
        try:
            answer = await asyncio.shield(task)
        except Exception:  # noqa: BLE001 - our own mistake: its trace is for us only
            answer = self._fail(path)
        start_response(answer.status_line, answer.headers)
        yield answer.body

    def _fail(self, path: str) -> Answer:
        _log.exception("failed", extra={"path": cut(path, _LONGEST_PATH)})
        return self._refuse(path, HTTPStatus.INTERNAL_SERVER_ERROR, self._internal)


def read_body(environ: dict[str, Any], largest: int, *, too_large: type[Exception]) -> bytes:
    """Return the body of a request.

    Args:
        environ: of the request.
        largest: how many bytes it may have.
        too_large: raised, with one line for the sender, where it has more.
    """
    if int(environ.get("CONTENT_LENGTH") or 0) > largest:
        raise too_large(f"body: must be at most {largest} bytes")
    body: bytes = environ["wsgi.input"].read()
    return body


def _probe(why_not: str) -> Answer:
    status = HTTPStatus.SERVICE_UNAVAILABLE if why_not else HTTPStatus.OK
    return Answer(status, TEXT, f"{why_not or 'ok'}\n".encode())


def _show(metrics: ServerMetrics) -> Answer:
    return Answer(HTTPStatus.OK, metrics.content_type, metrics.render())


def _reason(status: HTTPStatus, method: str) -> str:
    return {
        HTTPStatus.NOT_FOUND: "no such path",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{cut(method, _LONGEST_METHOD)} is not allowed here",
    }.get(status, "the request could not be read")
