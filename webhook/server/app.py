"""The routes of the webhook: its reviews, its probes and its metrics."""

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from common.serving.answer import TEXT, Answer
from common.serving.app import Application, read_body
from common.serving.environ import VERIFIED
from webhook.admission.reviews import LARGEST_BODY
from webhook.errors import TooLarge
from webhook.handler import INTERNAL, Handler, Request
from webhook.metrics import Metrics


def create_app(handler: Handler, *, is_ready: Callable[[], bool] = lambda: True) -> Application:
    """Make the WSGI application.

    Args:
        handler: answers reviews.
        is_ready: returns whether new requests are welcome.
    """
    app = Application(handler.refuse, INTERNAL)
    app.add("/healthz", "GET", lambda _: _probe(ready=True))
    app.add("/readyz", "GET", lambda _: _probe(ready=is_ready()))
    app.add("/metrics", "GET", lambda _: _show(handler.metrics))
    for route in handler.routes:
        app.add(route, "POST", partial(_review, handler, route))
    return app


def _review(handler: Handler, route: str, environ: dict[str, Any]) -> Answer:
    request = Request(
        environ.get("CONTENT_TYPE", ""),
        environ.get("HTTP_CONTENT_ENCODING", ""),
        partial(read_body, environ, LARGEST_BODY, too_large=TooLarge),
        verified=bool(environ.get(VERIFIED)),
    )
    return handler.answer(route, request)


def _probe(*, ready: bool) -> Answer:
    if ready:
        return Answer(HTTPStatus.OK, TEXT, b"ok\n")
    return Answer(HTTPStatus.SERVICE_UNAVAILABLE, TEXT, b"shutting down\n")


def _show(metrics: Metrics) -> Answer:
    return Answer(HTTPStatus.OK, metrics.content_type, metrics.render())
