"""The HTTP face: routes, limits and status codes. The one module that knows Flask.

Reviews are answered before Flask sees them: its contexts and routing cost as much as a
review does. Everything else, and every refusal of a path or method, is Flask's.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from contract.names import Names
from contract.stamps import OrderStamp
from webhook.bindings import mutate_binding
from webhook.errors import BadRequest, TooLarge, Unverified
from webhook.logs import AccessLog, fields
from webhook.metrics import Metrics
from webhook.pods import mutate_pod
from webhook.reviews import LARGEST_BODY, Review, check_media, decode_review, encode_review
from webhook.verdicts import Verdict, cut
from webhook.workloads import validate_workload

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

VERIFIED = "gpu_turnstile.verified"
"""In the WSGI environment: whether the client proved who it is by a certificate."""

_log = logging.getLogger(__name__)
_LONGEST_LOGGED = 253  # of what a sender chooses; the longest name Kubernetes has
_BROKEN = "body: breaks off, or its chunks are broken"
_INTERNAL = "internal error, see the log of the webhook"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the application has around it; each has a default that does for a test.

    Attributes:
        is_ready: whether new requests are welcome.
        only_verified: answer reviews only to clients that proved who they are.
        metrics: counts; those of this process alone when not given.
        access: gets a line for every review.
        clock: measures durations, in seconds.
    """

    is_ready: Callable[[], bool] = lambda: True
    only_verified: bool = False
    metrics: Metrics | None = None
    access: AccessLog | None = None
    clock: Callable[[], float] = time.perf_counter


def create_app(
    *,
    names: Names,
    stamp: Callable[[], OrderStamp],
    largest_card: int = 0,
    surroundings: Surroundings | None = None,
) -> Flask:
    """Make the WSGI application.

    Args:
        names: resources and annotations.
        stamp: gives places in line; unique to this process, safe between threads.
        largest_card: memory blocks of the largest card there is; 0 when that is not known.
        surroundings: what else it needs.
    """
    reviews: dict[str, Callable[[Review], Verdict]] = {
        "/mutate/pods": partial(mutate_pod, names=names, stamp=stamp, largest_card=largest_card),
        "/mutate/bindings": partial(mutate_binding, names=names, stamp=stamp),
        "/validate/workloads": partial(validate_workload, names=names, largest_card=largest_card),
    }
    return _Webhook(reviews, surroundings or Surroundings())


class _Webhook(Flask):
    """The application; see :func:`create_app`."""

    def __init__(
        self, reviews: Mapping[str, Callable[[Review], Verdict]], around: Surroundings
    ) -> None:
        super().__init__(__name__, static_folder=None)
        self._reviews = reviews
        self._metrics = around.metrics or Metrics()
        self._access = around.access or AccessLog()
        self._clock = around.clock
        self._only_verified = around.only_verified
        self.url_map.merge_slashes = False  # a webhook is never redirected
        for path in reviews:  # for the refusal of other methods
            self._route(path, "POST", lambda: _line(HTTPStatus.NOT_FOUND, "no such path"))
        self._route("/healthz", "GET", partial(_probe, lambda: True))
        self._route("/readyz", "GET", partial(_probe, around.is_ready))
        self._route("/metrics", "GET", self._show_metrics)
        self.register_error_handler(HTTPException, self._refuse_http)

    def wsgi_app(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        """Answer a request: a review here, anything else by Flask."""
        route = environ["PATH_INFO"]
        decide = self._reviews.get(route) if environ["REQUEST_METHOD"] == "POST" else None
        if decide is None:
            answered: Iterable[bytes] = super().wsgi_app(environ, start_response)
            return answered
        status, media = HTTPStatus.OK, "application/json"
        try:
            body = self._review(route, decide, environ)
        except BadRequest as error:
            status, media = error.status, "text/plain; charset=utf-8"
            body = f"{error}\n".encode()
            self._settle(route, status, str(error))
        except Exception:  # noqa: BLE001 - as Flask does: the trace for us, not for the sender
            _log.exception("failed", extra=fields(path=route))
            status, media = HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8"
            body = f"{_INTERNAL}\n".encode()
            self._settle(route, status, _INTERNAL)
        headers = [("Content-Type", media), ("Content-Length", str(len(body)))]
        start_response(f"{status.value} {status.phrase}", headers)
        return (body,)

    def _review(
        self, route: str, decide: Callable[[Review], Verdict], environ: "WSGIEnvironment"
    ) -> bytes:
        started = self._clock()
        if self._only_verified and not environ.get(VERIFIED):
            raise Unverified("client certificate: Required value: of the CA in --client-ca")
        review = decode_review(_body(environ))
        verdict = decide(review)
        body = encode_review(review, verdict)
        seconds = self._clock() - started
        rules = verdict.rules
        self._metrics.reviewed(route, verdict.label, rules, seconds)
        self._access.write(
            "reviewed",
            uid=review.uid,
            path=route,
            kind=cut(str(review.target), _LONGEST_LOGGED),
            namespace=cut(review.namespace, _LONGEST_LOGGED),
            name=cut(review.name, _LONGEST_LOGGED),
            operation=cut(review.operation, _LONGEST_LOGGED),
            dry_run=review.dry_run,
            verdict=verdict.label,
            rules=rules,
            warnings=len(verdict.warnings),
            duration_ms=round(seconds * 1000, 3),
        )
        return body

    def _show_metrics(self) -> Response:
        return Response(self._metrics.render(), content_type=Metrics.content_type)

    def _refuse_http(self, error: HTTPException) -> Response:
        """Word what Flask refuses (unknown path, wrong method) on one line."""
        answer = error.get_response()
        status = HTTPStatus(answer.status_code)
        reason = {
            HTTPStatus.NOT_FOUND: "no such path",
            HTTPStatus.METHOD_NOT_ALLOWED: f"{cut(request.method, 16)} is not allowed here",
            HTTPStatus.INTERNAL_SERVER_ERROR: _INTERNAL,
        }.get(status, "the request could not be read")
        self._settle(request.path, status, reason)
        line = _line(status, reason)
        if allowed := answer.headers.get("Allow"):  # RFC 9110 wants it with a 405
            line.headers["Allow"] = allowed
        return line

    def _settle(self, path: str, status: HTTPStatus, reason: str) -> None:
        """Do what every refusal needs: a count, a line in the log."""
        self._metrics.refused(status.value)
        path = cut(path, _LONGEST_LOGGED)
        _log.warning("refused", extra=fields(path=path, status=status.value, reason=reason))

    def _route(self, path: str, method: str, view: Callable[[], Response]) -> None:
        self.add_url_rule(
            path,
            endpoint=path,
            view_func=view,
            methods=[method],
            provide_automatic_options=False,
        )


def _body(environ: "WSGIEnvironment") -> bytes:
    """Read the body.

    Raises:
        BadRequest: it is too large, not JSON by its headers, or broken.
    """
    media, _, _ = str(environ.get("CONTENT_TYPE", "")).partition(";")
    check_media(media.strip(), environ.get("HTTP_CONTENT_ENCODING"))
    given = environ.get("CONTENT_LENGTH", "")
    length = int(given) if given.isdecimal() else 0
    if length > LARGEST_BODY:
        raise TooLarge(f"body: must be at most {LARGEST_BODY} bytes")
    try:
        body: bytes = environ["wsgi.input"].read(LARGEST_BODY + 1)
    except OSError as error:
        raise BadRequest(_BROKEN) from error
    if len(body) < length:
        raise BadRequest(_BROKEN)
    return body


def _probe(is_well: Callable[[], bool]) -> Response:
    if is_well():
        return _line(HTTPStatus.OK, "ok")
    return _line(HTTPStatus.SERVICE_UNAVAILABLE, "shutting down")


def _line(status: HTTPStatus, text: str) -> Response:
    return Response(f"{text}\n", status=status, mimetype="text/plain")
