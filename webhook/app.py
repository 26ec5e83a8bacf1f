"""The HTTP face: routes, limits and status codes. The one module that knows Flask."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import IO

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from contract.names import Names
from contract.stamps import OrderStamp
from webhook.errors import BadRequest
from webhook.logs import fields
from webhook.pods import mutate_pod
from webhook.reviews import LARGEST_BODY, Review, check_media, decode_review, encode_review
from webhook.verdicts import Verdict, cut

_log = logging.getLogger(__name__)
_MOST_DISCARDED, _PIECE = 4 * LARGEST_BODY, 2**16
_LONGEST_LOGGED = 253  # of what a sender chooses; the longest name Kubernetes has


def create_app(
    *,
    names: Names,
    stamp: Callable[[], OrderStamp],
    is_ready: Callable[[], bool] = lambda: True,
    clock: Callable[[], float] = time.perf_counter,
) -> Flask:
    """Make the WSGI application.

    Args:
        names: resources and annotations.
        stamp: gives places in line; unique to this process, safe between threads.
        is_ready: whether new requests are welcome.
        clock: measures durations, in seconds.
    """
    app = Flask(__name__, static_folder=None)
    # Flask refuses a Content-Length above this, but silently cuts a chunked body here:
    # with one byte to spare, decode_review still sees that it was too long.
    app.config["MAX_CONTENT_LENGTH"] = LARGEST_BODY + 1
    app.url_map.merge_slashes = False  # a webhook is never redirected
    reviews: dict[str, Callable[[Review], Verdict]] = {
        "/mutate/pods": partial(mutate_pod, names=names, stamp=stamp),
    }
    for path, decide in reviews.items():
        app.add_url_rule(
            path,
            endpoint=path,
            view_func=partial(_answer, decide, clock),
            methods=["POST"],
            provide_automatic_options=False,
        )
    probes: dict[str, Callable[[], bool]] = {"/healthz": lambda: True, "/readyz": is_ready}
    for path, is_well in probes.items():
        app.add_url_rule(
            path,
            endpoint=path,
            view_func=partial(_probe, is_well),
            methods=["GET"],
            provide_automatic_options=False,
        )
    app.register_error_handler(BadRequest, _refuse)
    app.register_error_handler(HTTPException, _refuse_http)
    return app


def _answer(decide: Callable[[Review], Verdict], clock: Callable[[], float]) -> Response:
    started = clock()
    check_media(request.mimetype, request.headers.get("Content-Encoding"))
    review = decode_review(request.get_data(cache=False))
    verdict = decide(review)
    body = encode_review(review, verdict)
    _log.info(
        "reviewed",
        extra=fields(
            uid=review.uid,
            path=request.path,
            kind=cut(str(review.target), _LONGEST_LOGGED),
            namespace=cut(review.namespace, _LONGEST_LOGGED),
            name=cut(review.name, _LONGEST_LOGGED),
            operation=cut(review.operation, _LONGEST_LOGGED),
            dry_run=review.dry_run,
            verdict=verdict.label,
            rules=verdict.rules,
            warnings=len(verdict.warnings),
            duration_ms=round((clock() - started) * 1000, 3),
        ),
    )
    return Response(body, mimetype="application/json")


def _probe(is_well: Callable[[], bool]) -> Response:
    if is_well():
        return _line(HTTPStatus.OK, "ok")
    return _line(HTTPStatus.SERVICE_UNAVAILABLE, "shutting down")


def _refuse(error: BadRequest) -> Response:
    _settle(error.status, str(error))
    return _line(error.status, str(error))


def _refuse_http(error: HTTPException) -> Response:
    """Word what Flask refuses (unknown path, wrong method, large or broken body) on one line."""
    answer = error.get_response()
    status = HTTPStatus(answer.status_code)
    reason = {
        HTTPStatus.NOT_FOUND: "no such path",
        HTTPStatus.METHOD_NOT_ALLOWED: f"{cut(request.method, 16)} is not allowed here",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE: f"body: must be at most {LARGEST_BODY} bytes",
        HTTPStatus.INTERNAL_SERVER_ERROR: "internal error, see the log of the webhook",
    }.get(status, "the request could not be read")
    _settle(status, reason)
    line = _line(status, reason)
    if allowed := answer.headers.get("Allow"):  # RFC 9110 wants it with a 405
        line.headers["Allow"] = allowed
    return line


def _settle(status: HTTPStatus, reason: str) -> None:
    """Do what every refusal needs: the body out of the way, a line in the log."""
    _discard_body()
    path = cut(request.path, _LONGEST_LOGGED)
    _log.warning("refused", extra=fields(path=path, status=status.value, reason=reason))


def _discard_body() -> None:
    """Read what is left of the body: many clients look for an answer only after sending it all.

    Within reason; whoever sends more finds the connection closed.
    """
    body: IO[bytes] = request.environ["wsgi.input"]
    with suppress(OSError):  # it broke off, or was no body in the first place
        for _ in range(_MOST_DISCARDED // _PIECE):
            if not body.read(_PIECE):
                break


def _line(status: HTTPStatus, text: str) -> Response:
    return Response(f"{text}\n", status=status, mimetype="text/plain")
