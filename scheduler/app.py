"""The routes: paths, methods and status codes. The one module that knows Flask."""

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from contract.errors import quote
from scheduler.errors import BadRequest, TooLarge
from scheduler.handler import INTERNAL, TEXT, Answer, Handler
from scheduler.metrics import VERBS
from scheduler.protocol import LARGEST_NODES

_log = logging.getLogger(__name__)


def create_app(
    handler: Handler,
    *,
    is_ready: Callable[[], str],
    is_verified: Callable[[dict[str, Any]], bool] = lambda _: True,
) -> Flask:
    """Make the WSGI application.

    Args:
        handler: answers kube-scheduler.
        is_ready: returns why this replica is not ready; empty when it is.
        is_verified: whether a client may ask, by the environment of its request.
    """
    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False

    def verb(name: str) -> Response:
        if not is_verified(request.environ):
            text = b"a client certificate of --client-ca is needed\n"
            return _response(Answer(HTTPStatus.FORBIDDEN, TEXT, text))
        return _response(handler.answer(name, _read_body))

    for each in VERBS:
        app.add_url_rule(
            f"/{each}",
            each,
            lambda each=each: verb(each),
            methods=["POST"],
            provide_automatic_options=False,
        )

    @app.get("/healthz", provide_automatic_options=False)
    def healthz() -> Response:
        return _response(Answer(HTTPStatus.OK, TEXT, b"ok\n"))

    @app.get("/readyz", provide_automatic_options=False)
    def readyz() -> Response:
        why = is_ready()
        status = HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK
        return _response(Answer(status, TEXT, f"{why or 'ok'}\n".encode()))

    @app.get("/metrics", provide_automatic_options=False)
    def metrics() -> Response:
        return _response(
            Answer(HTTPStatus.OK, handler.metrics.content_type, handler.metrics.render())
        )

    @app.errorhandler(HTTPException)
    def refuse(error: HTTPException) -> Response:
        status = HTTPStatus(error.code or HTTPStatus.INTERNAL_SERVER_ERROR)
        reason = {
            HTTPStatus.NOT_FOUND: "no such path",
            HTTPStatus.METHOD_NOT_ALLOWED: "this method is not allowed here",
        }.get(status, "the request could not be read")
        response = _response(Answer(status, TEXT, f"{reason}\n".encode()))
        for key, value in error.get_headers(request.environ):
            if key == "Allow":
                response.headers[key] = value
        return response

    @app.errorhandler(Exception)
    def fail(_error: Exception) -> Response:
        _log.exception("failed", extra={"path": request.path[:253]})
        return _response(Answer(HTTPStatus.INTERNAL_SERVER_ERROR, TEXT, f"{INTERNAL}\n".encode()))

    return app


def _read_body() -> bytes:
    media = request.mimetype
    if media != "application/json":
        raise BadRequest(f"Content-Type: Invalid value: {quote(media)}: must be application/json")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise BadRequest("Content-Encoding: compressed bodies are not read")
    if (request.content_length or 0) > LARGEST_NODES:
        raise TooLarge(f"body: must be at most {LARGEST_NODES} bytes")
    try:
        body: bytes = request.stream.read(LARGEST_NODES + 1)
    except OSError as error:
        raise BadRequest(_BROKEN) from error
    if len(body) < (request.content_length or 0):
        raise BadRequest(_BROKEN)
    return body


_BROKEN = "body: breaks off, or its chunks are broken"


def _response(answer: Answer) -> Response:
    return Response(answer.body, answer.status, content_type=answer.media)
