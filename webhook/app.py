"""The webhook's application: its routes, and the way of one review from request to answer."""

import logging
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus

from common.serving.app import JSON, TEXT, Application, HttpRequest, HttpResponse
from common.serving.errors import BadRequest, Unverified
from common.text import cut
from webhook.access_log import AccessLog
from webhook.admission.decision import Decision
from webhook.admission.reviews import (
    LARGEST_BODY,
    Review,
    decode_review,
    encode_review,
)
from webhook.admission.routes import Routes
from webhook.metrics import Metrics

INTERNAL = "internal error, see the log of the webhook"

_log = logging.getLogger(__name__)
_LONGEST_LOGGED = 253  # of a sender's text; the longest name in Kubernetes


class ReviewHandler:
    """The handler of reviews: decides, counts and logs each.

    Args:
        routes: the decision of each path.
        only_verified: refuse clients without a valid certificate.
        metrics: counts; those of this process alone when not given.
        access: writes one line per review; to standard error when not given.
        clock: monotonic seconds, for durations.
    """

    def __init__(
        self,
        routes: Routes,
        *,
        only_verified: bool = False,
        metrics: Metrics | None = None,
        access: AccessLog | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.routes = routes
        self.metrics = metrics or Metrics()
        self._only_verified = only_verified
        self._access = access or AccessLog()
        self._clock = clock

    def handle(self, route: str, request: HttpRequest) -> HttpResponse:
        """Answer a request to one of :attr:`routes`; *route* is its path."""
        started = self._clock()
        try:
            if self._only_verified and not request.verified:
                raise Unverified("client certificate: Required value: of the CA in --client-ca")
            review = decode_review(request.json_body())
            verdict = self.routes[route](review)
            body = encode_review(review, verdict)
            self._record(route, review, verdict, self._clock() - started)
        except BadRequest as error:
            return self.refuse(route, error.status, str(error))
        except Exception:  # noqa: BLE001 - our own mistake: its trace is for us only
            _log.exception("failed", extra={"path": route})
            return self.refuse(route, HTTPStatus.INTERNAL_SERVER_ERROR, INTERNAL)
        return HttpResponse(HTTPStatus.OK, JSON, body)

    def refuse(self, path: str, status: HTTPStatus, reason: str) -> HttpResponse:
        """Return one line of text as the answer; count and log the refusal."""
        self.metrics.refused(status.value)
        path = cut(path, _LONGEST_LOGGED)
        _log.warning("refused", extra={"path": path, "status": status.value, "reason": reason})
        return HttpResponse(status, TEXT, f"{reason}\n".encode())

    def _record(self, route: str, review: Review, verdict: Decision, seconds: float) -> None:
        label, rules = verdict.label, verdict.rules
        self.metrics.reviewed(route, label, rules, seconds)
        self._access.write(
            "reviewed",
            uid=review.uid,
            path=route,
            kind=cut(str(review.target), _LONGEST_LOGGED),
            namespace=cut(review.namespace, _LONGEST_LOGGED),
            name=cut(review.name, _LONGEST_LOGGED),
            operation=cut(review.operation, _LONGEST_LOGGED),
            dry_run=review.dry_run,
            verdict=label,
            rules=rules,
            warnings=len(verdict.warnings),
            duration_ms=round(seconds * 1000, 3),
        )


def create_app(handler: ReviewHandler, *, is_ready: Callable[[], str] = lambda: "") -> Application:
    """Make the ASGI application: reviews, probes and metrics.

    Args:
        handler: answers reviews.
        is_ready: returns why new requests are not welcome; empty when they are.
    """
    app = Application(handler.refuse, INTERNAL, LARGEST_BODY)
    app.add_status(handler.metrics, is_ready=is_ready)
    for route in handler.routes:
        app.add(route, "POST", partial(handler.handle, route))
    return app
