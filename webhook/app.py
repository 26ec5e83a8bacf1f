"""The webhook's application: its routes, and one review from request to response."""

import logging
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus

from common.serving.app import JSON, TEXT, Application, HttpRequest, HttpResponse
from common.serving.errors import BadRequest
from common.text import cut
from webhook.access_log import AccessLog
from webhook.admission.decision import Decision
from webhook.admission.reviews import LARGEST_BODY, Review, decode_review, encode_review
from webhook.admission.routes import Routes
from webhook.metrics import Metrics

INTERNAL = "internal error, see the log of the webhook"

_log = logging.getLogger(__name__)
_LONGEST_LOGGED = 253  # characters of text from a client; the longest name in Kubernetes


class ReviewHandler:
    """Decides, counts and logs each review.

    If *only_verified*, clients without a valid certificate are refused; *clock* is in monotonic
    seconds.
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
        """Handle a request to one of :attr:`routes`; *route* is its path."""
        started = self._clock()
        try:
            if self._only_verified and not request.verified:
                text = "client certificate: Required value: issued by --client-ca"
                raise BadRequest(text, HTTPStatus.FORBIDDEN)
            review = decode_review(request.json_body())
            decision = self.routes[route](review)
            body = encode_review(review, decision)
            self._report(route, review, decision, self._clock() - started)
        except BadRequest as error:
            return self.refuse(route, error.status, str(error))
        except Exception:  # noqa: BLE001 - a bug of ours: only the log gets the traceback
            _log.exception("failed", extra={"path": route})
            return self.refuse(route, HTTPStatus.INTERNAL_SERVER_ERROR, INTERNAL)
        return HttpResponse(HTTPStatus.OK, JSON, body)

    def refuse(self, path: str, status: HTTPStatus, reason: str) -> HttpResponse:
        """Count and log a refused request; return one line of text as its response."""
        self.metrics.refused(status.value)
        path = cut(path, _LONGEST_LOGGED)
        _log.warning("refused", extra={"path": path, "status": status.value, "reason": reason})
        return HttpResponse(status, TEXT, f"{reason}\n".encode())

    def _report(self, route: str, review: Review, decision: Decision, seconds: float) -> None:
        label, rules = decision.label, decision.rules
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
            warnings=len(decision.warnings),
            duration_ms=round(seconds * 1000, 3),
        )


def create_app(handler: ReviewHandler, *, is_ready: Callable[[], str] = lambda: "") -> Application:
    """Make the ASGI application: reviews, probes and metrics.

    *is_ready* returns why the server is not ready; empty if it is.
    """
    app = Application(handler.refuse, INTERNAL, LARGEST_BODY)
    app.add_status(handler.metrics, is_ready=is_ready)
    for route in handler.routes:
        app.add(route, "POST", partial(handler.handle, route))
    return app
