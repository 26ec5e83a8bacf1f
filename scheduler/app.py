"""The routes of the extender: the verbs, its probes and its metrics."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from http import HTTPStatus
from typing import Any, TypeAlias

from common.serving.app import TEXT, Application, HttpRequest, HttpResponse
from scheduler.handler import INTERNAL, ExtenderHandler
from scheduler.metrics import BIND, DECISIONS
from scheduler.protocol import LARGEST_NODES

Check: TypeAlias = Callable[[HttpRequest], HttpResponse | None]

_LARGE = 2**20


def create_app(
    handler: ExtenderHandler,
    *,
    is_ready: Callable[[], str],
    is_broken: Callable[[], str] = lambda: "",
    only_verified: bool = False,
) -> Application:
    """Make the ASGI application.

    Args:
        handler: answers kube-scheduler.
        is_ready: returns why this replica is not ready; empty when it is.
        is_broken: returns why this replica must be started again; empty when it need not.
        only_verified: refuse clients without a valid certificate.
    """
    app = Application(_refuse, INTERNAL, LARGEST_NODES)
    check = _refuse_unverified if only_verified else lambda _: None
    for verb in DECISIONS:
        app.add(f"/{verb}", "POST", partial(_decide, handler, verb, check))
    app.add(f"/{BIND}", "POST", partial(_bind, handler, check))
    app.add_status(handler.metrics, is_ready=is_ready, is_broken=is_broken)
    return app


def _decide(
    handler: ExtenderHandler, verb: str, check: Check, request: HttpRequest
) -> HttpResponse | Coroutine[Any, Any, HttpResponse]:
    answer = partial(handler.decide, verb, request.json_body)
    if request.size > _LARGE:
        # Whole nodes, which take long to read: others are answered meanwhile.
        return check(request) or asyncio.to_thread(answer)
    return check(request) or answer()


def _bind(
    handler: ExtenderHandler, check: Check, request: HttpRequest
) -> HttpResponse | Coroutine[Any, Any, HttpResponse]:
    return check(request) or handler.bind(request.json_body)


def _refuse_unverified(request: HttpRequest) -> HttpResponse | None:
    if request.verified:
        return None
    text = b"a client certificate of --client-ca is needed\n"
    return HttpResponse(HTTPStatus.FORBIDDEN, TEXT, text)


def _refuse(_path: str, status: HTTPStatus, reason: str) -> HttpResponse:
    return HttpResponse(status, TEXT, f"{reason}\n".encode())
