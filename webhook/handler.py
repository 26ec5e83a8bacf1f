"""The handler of one request: decides it, counts it, logs it, returns the answer.

It knows no HTTP library; :mod:`webhook.server.app` translates.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from common.serving.answer import JSON, TEXT, Answer
from webhook.access_log import AccessLog
from webhook.admission.reviewer import Reviewed, Reviewer
from webhook.admission.verdicts import cut
from webhook.errors import BadRequest, Unverified
from webhook.metrics import Metrics

INTERNAL = "internal error, see the log of the webhook"

_log = logging.getLogger(__name__)
_LONGEST_LOGGED = 253  # of a sender's text; the longest name in Kubernetes


@dataclass(frozen=True, slots=True)
class Request:
    """A request to one of the reviewer's routes.

    Attributes:
        content_type: the ``Content-Type`` header, empty when absent.
        encoding: the ``Content-Encoding`` header, empty when absent.
        read_body: returns the body; raises :class:`BadRequest` for an unreadable one.
        verified: whether the client presented a valid certificate.
    """

    content_type: str
    encoding: str
    read_body: Callable[[], bytes]
    verified: bool


class Handler:
    """The handler of requests.

    Args:
        reviewer: decides reviews.
        only_verified: refuse clients without a valid certificate.
        metrics: counts; those of this process alone when not given.
        access: writes one line per review; to standard error when not given.
        clock: monotonic seconds, for durations.
    """

    def __init__(
        self,
        reviewer: Reviewer,
        *,
        only_verified: bool = False,
        metrics: Metrics | None = None,
        access: AccessLog | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.routes = tuple(reviewer.routes)
        self.metrics = metrics or Metrics()
        self._reviewer = reviewer
        self._only_verified = only_verified
        self._access = access or AccessLog()
        self._clock = clock

    def answer(self, route: str, request: Request) -> Answer:
        """Answer a request to one of :attr:`routes`."""
        started = self._clock()
        try:
            if self._only_verified and not request.verified:
                raise Unverified("client certificate: Required value: of the CA in --client-ca")
            reviewed = self._reviewer.review(
                route, request.content_type, request.encoding, request.read_body
            )
            self._record(route, reviewed, self._clock() - started)
        except BadRequest as error:
            return self.refuse(route, error.status, str(error))
        except Exception:  # noqa: BLE001 - our own mistake: its trace is for us only
            _log.exception("failed", extra={"path": route})
            return self.refuse(route, HTTPStatus.INTERNAL_SERVER_ERROR, INTERNAL)
        return Answer(HTTPStatus.OK, JSON, reviewed.body)

    def refuse(self, path: str, status: HTTPStatus, reason: str) -> Answer:
        """Return one line of text as the answer; count and log the refusal."""
        self.metrics.refused(status.value)
        path = cut(path, _LONGEST_LOGGED)
        _log.warning("refused", extra={"path": path, "status": status.value, "reason": reason})
        return Answer(status, TEXT, f"{reason}\n".encode())

    def _record(self, route: str, reviewed: Reviewed, seconds: float) -> None:
        review, verdict = reviewed.review, reviewed.verdict
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
