"""The HTTP face: routes, limits and status codes. The one module that knows Flask."""

from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from webhook.admission.reviews import LARGEST_BODY
from webhook.admission.verdicts import cut
from webhook.errors import BadRequest, TooLarge
from webhook.handler import INTERNAL, TEXT, Answer, Handler, Request
from webhook.metrics import Metrics
from webhook.server.wsgi import VERIFIED


def create_app(handler: Handler, *, is_ready: Callable[[], bool] = lambda: True) -> Flask:
    """Make the WSGI application.

    Args:
        handler: answers reviews.
        is_ready: whether new requests are welcome.
    """
    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False  # a webhook is never redirected
    views: dict[str, tuple[str, Callable[[], Response]]] = {
        "/healthz": ("GET", partial(_probe, lambda: True)),
        "/readyz": ("GET", partial(_probe, is_ready)),
        "/metrics": ("GET", partial(_show, handler.metrics)),
    }
    views |= {route: ("POST", partial(_review, handler, route)) for route in handler.routes}
    for path, (method, view) in views.items():
        app.add_url_rule(
            path,
            endpoint=path,
            view_func=view,
            methods=[method],
            provide_automatic_options=False,
        )
    app.register_error_handler(HTTPException, partial(_refuse, handler))
    return app


def _review(handler: Handler, route: str) -> Response:
    environ = request.environ  # read directly: Flask's proxies cost a tenth of a review
    asked = Request(
        environ.get("CONTENT_TYPE", ""),
        environ.get("HTTP_CONTENT_ENCODING", ""),
        partial(_read_body, environ),
        verified=bool(environ.get(VERIFIED)),
    )
    return _response(handler.answer(route, asked))


def _read_body(environ: Mapping[str, Any]) -> bytes:
    """Read the body as it was sent: Flask would cut a chunked one without a word.

    Raises:
        BadRequest: it is too large, or does not come to its end.
    """
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if length > LARGEST_BODY:
        raise TooLarge(f"body: must be at most {LARGEST_BODY} bytes")
    try:
        body: bytes = environ["wsgi.input"].read(LARGEST_BODY + 1)
    except OSError as error:
        raise BadRequest(_BROKEN) from error
    if len(body) < length:
        raise BadRequest(_BROKEN)
    return body


_BROKEN = "body: breaks off, or its chunks are broken"


def _probe(is_well: Callable[[], bool]) -> Response:
    if is_well():
        return _response(Answer(HTTPStatus.OK, TEXT, b"ok\n"))
    return _response(Answer(HTTPStatus.SERVICE_UNAVAILABLE, TEXT, b"shutting down\n"))


def _show(metrics: Metrics) -> Response:
    return Response(metrics.render(), content_type=metrics.content_type)


def _refuse(handler: Handler, error: HTTPException) -> Response:
    """Word what Flask refuses (unknown path, wrong method) on one line."""
    answer = error.get_response()
    status = HTTPStatus(answer.status_code)
    reason = {
        HTTPStatus.NOT_FOUND: "no such path",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{cut(request.method, 16)} is not allowed here",
        HTTPStatus.INTERNAL_SERVER_ERROR: INTERNAL,
    }.get(status, "the request could not be read")
    line = _response(handler.refuse(request.path, status, reason))
    if allowed := answer.headers.get("Allow"):  # RFC 9110 wants it with a 405
        line.headers["Allow"] = allowed
    return line


def _response(answer: Answer) -> Response:
    return Response(answer.body, status=answer.status.value, content_type=answer.media)
