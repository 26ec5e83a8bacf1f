"""The routes of the webhook: its reviews, its probes and its metrics."""

from collections.abc import Callable
from functools import partial
from typing import Any

from common.serving.answer import Answer
from common.serving.app import Application, read_body
from common.serving.environ import VERIFIED
from webhook.admission.reviews import LARGEST_BODY
from webhook.errors import TooLarge
from webhook.handler import INTERNAL, Handler, Request


def create_app(handler: Handler, *, is_ready: Callable[[], str] = lambda: "") -> Application:
    """Make the WSGI application.

    Args:
        handler: answers reviews.
        is_ready: returns why new requests are not welcome; empty when they are.
    """
    app = Application(handler.refuse, INTERNAL)
    app.add_status(handler.metrics, is_ready=is_ready)
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
