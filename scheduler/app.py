"""The routes of the extender: kube-scheduler's verbs, probes and metrics."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from http import HTTPStatus
from typing import Any

from common.serving.app import TEXT, Application, HttpRequest, HttpResponse, View
from scheduler.binding import Binder
from scheduler.handler import INTERNAL, ExtenderHandler
from scheduler.metrics import BIND, FILTER, PREEMPT, PRIORITIZE
from scheduler.protocol import LARGEST_NODES

_LARGE = 2**20

ONLY_CERTIFIED = "a client certificate issued by --client-ca is needed"
ONLY_LOCAL = "only requests from the same pod are handled"


def create_app(
    handler: ExtenderHandler,
    *,
    is_ready: Callable[[], str],
    is_broken: Callable[[], str] = lambda: "",
    needed: str = "",
) -> Application:
    """Make the ASGI application.

    Args:
        handler: handles kube-scheduler's requests.
        is_ready: returns why this replica is not ready; empty if it is.
        is_broken: returns why this replica must be restarted; empty if it need not.
        needed: refuse kube-scheduler's requests with this text, unless their client is verified;
            empty to handle all.
    """
    app = Application(_refuse, INTERNAL, LARGEST_NODES)

    def add(verb: str, view: View) -> None:
        def checked(request: HttpRequest) -> HttpResponse | Coroutine[Any, Any, HttpResponse]:
            if needed and not request.verified:
                return _refuse(verb, HTTPStatus.FORBIDDEN, needed)
            return view(request)

        app.add(f"/{verb}", "POST", checked)

    for verb in (FILTER, PRIORITIZE, PREEMPT):
        add(verb, partial(_decide, handler, verb))
    add(BIND, lambda request: handler.bind(request.json_body))
    app.add_status(handler.metrics, is_ready=is_ready, is_broken=is_broken)
    return app


def _decide(
    handler: ExtenderHandler, verb: str, request: HttpRequest
) -> HttpResponse | Coroutine[Any, Any, HttpResponse]:
    decide = partial(handler.decide, verb, request.json_body)
    waits, large = verb == FILTER and handler.binder.is_full, request.size > _LARGE
    if waits or large:
        return _decide_later(handler.binder, decide, waits=waits, large=large)
    return decide()


async def _decide_later(
    binder: Binder, decide: Callable[[], HttpResponse], *, waits: bool, large: bool
) -> HttpResponse:
    if waits:
        await binder.wait_for_room()
    # Whole nodes take long to read: in a thread, so that other requests need not wait.
    return await asyncio.to_thread(decide) if large else decide()


def _refuse(_path: str, status: HTTPStatus, reason: str) -> HttpResponse:
    return HttpResponse(status, TEXT, f"{reason}\n".encode())
