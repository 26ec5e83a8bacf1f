"""The routes of the extender: the verbs, its probes and its metrics."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from http import HTTPStatus
from typing import Any, TypeAlias

from common.serving.app import TEXT, Answer, Application, Request
from contract.errors import quote
from scheduler.errors import BadRequest, TooLarge
from scheduler.handler import INTERNAL, Handler
from scheduler.metrics import BIND, DECISIONS
from scheduler.protocol import LARGEST_NODES

Check: TypeAlias = Callable[[Request], Answer | None]

_LARGE = 2**20


def create_app(
    handler: Handler,
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
    handler: Handler, verb: str, check: Check, request: Request
) -> Answer | Coroutine[Any, Any, Answer]:
    answer = partial(handler.decide, verb, partial(_read_body, request))
    if request.size > _LARGE:
        # Whole nodes, which take long to read: others are answered meanwhile.
        return check(request) or asyncio.to_thread(answer)
    return check(request) or answer()


def _bind(handler: Handler, check: Check, request: Request) -> Answer | Coroutine[Any, Any, Answer]:
    return check(request) or handler.bind(partial(_read_body, request))


def _refuse_unverified(request: Request) -> Answer | None:
    if request.verified:
        return None
    text = b"a client certificate of --client-ca is needed\n"
    return Answer(HTTPStatus.FORBIDDEN, TEXT, text)


def _refuse(_path: str, status: HTTPStatus, reason: str) -> Answer:
    return Answer(status, TEXT, f"{reason}\n".encode())


def _read_body(request: Request) -> bytes:
    media = request.header(b"content-type").partition(";")[0].strip().lower()
    if media != "application/json":
        raise BadRequest(f"Content-Type: Invalid value: {quote(media)}: must be application/json")
    if request.header(b"content-encoding").lower() not in {"", "identity"}:
        raise BadRequest("Content-Encoding: compressed bodies are not read")
    return request.body(too_large=TooLarge)
