"""The routes of the webhook: paths, methods and status codes. The one module that knows Flask."""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from flask import Flask
from werkzeug.exceptions import HTTPException

from webhook.admission.reviews import LARGEST_BODY
from webhook.admission.verdicts import cut
from webhook.errors import BadRequest, TooLarge
from webhook.handler import INTERNAL, TEXT, Answer, Handler, Request
from webhook.metrics import Metrics
from webhook.server.wsgi import VERIFIED

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

    View = Callable[[WSGIEnvironment], Answer]

_log = logging.getLogger(__name__)


def create_app(handler: Handler, *, is_ready: Callable[[], bool] = lambda: True) -> Flask:
    """Make the WSGI application.

    Args:
        handler: answers reviews.
        is_ready: returns whether new requests are welcome.
    """
    app = _Application(handler)
    app.add("/healthz", "GET", lambda _: _probe(ready=True))
    app.add("/readyz", "GET", lambda _: _probe(ready=is_ready()))
    app.add("/metrics", "GET", lambda _: _show(handler.metrics))
    for route in handler.routes:
        app.add(route, "POST", partial(_review, handler, route))
    return app


class _Application(Flask):
    """Flask's routes and methods; views take the environment and return an answer.

    Flask's contexts, request and response would cost half as much as a whole review, which
    has no use for them.
    """

    def __init__(self, handler: Handler) -> None:
        super().__init__(__name__, static_folder=None)
        self.url_map.merge_slashes = False  # a webhook is never redirected
        self._adapter = self.url_map.bind("")
        self._handler = handler
        self._views: dict[str, View] = {}

    def add(self, path: str, method: str, view: "View") -> None:
        """Add a route."""
        self.add_url_rule(path, path, methods=[method], provide_automatic_options=False)
        self._views[path] = view

    def wsgi_app(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        """Answer one request."""
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        extra: list[tuple[str, str]] = []
        try:
            endpoint, _ = self._adapter.match(path, method)
            answer = self._views[endpoint](environ)
        except HTTPException as error:
            answer = self._refuse(path, method, error)
            extra = [each for each in error.get_headers(environ) if each[0] == "Allow"]
        except Exception:  # noqa: BLE001 - our own mistake: its trace is for us only
            _log.exception("failed", extra={"path": cut(path, 253)})
            answer = self._handler.refuse(path, HTTPStatus.INTERNAL_SERVER_ERROR, INTERNAL)
        headers = [("Content-Type", answer.media), ("Content-Length", str(len(answer.body)))]
        start_response(f"{answer.status.value} {answer.status.phrase}", headers + extra)
        return [] if method == "HEAD" else [answer.body]

    def _refuse(self, path: str, method: str, error: HTTPException) -> Answer:
        """Return the refusal of a request that no route takes."""
        status = HTTPStatus(error.code or HTTPStatus.INTERNAL_SERVER_ERROR)
        reason = {
            HTTPStatus.NOT_FOUND: "no such path",
            HTTPStatus.METHOD_NOT_ALLOWED: f"{cut(method, 16)} is not allowed here",
        }.get(status, "the request could not be read")
        return self._handler.refuse(path, status, reason)


def _review(handler: Handler, route: str, environ: dict[str, Any]) -> Answer:
    request = Request(
        environ.get("CONTENT_TYPE", ""),
        environ.get("HTTP_CONTENT_ENCODING", ""),
        partial(_read_body, environ),
        verified=bool(environ.get(VERIFIED)),
    )
    return handler.answer(route, request)


def _read_body(environ: dict[str, Any]) -> bytes:
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if length > LARGEST_BODY:
        raise TooLarge(f"body: must be at most {LARGEST_BODY} bytes")
    try:
        body: bytes = environ["wsgi.input"].read(LARGEST_BODY + 1)
    except OSError as error:  # of servers that read while the application does
        raise BadRequest(_BROKEN) from error
    if len(body) < length:
        raise BadRequest(_BROKEN)
    return body


_BROKEN = "body: breaks off, or its chunks are broken"


def _probe(*, ready: bool) -> Answer:
    if ready:
        return Answer(HTTPStatus.OK, TEXT, b"ok\n")
    return Answer(HTTPStatus.SERVICE_UNAVAILABLE, TEXT, b"shutting down\n")


def _show(metrics: Metrics) -> Answer:
    return Answer(HTTPStatus.OK, metrics.content_type, metrics.render())
