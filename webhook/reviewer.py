"""A review answered, whatever comes: verdict, status, count and log line. Knows no HTTP library.

Both ways into the webhook end here: the application, and the short way that
:mod:`webhook.express` finds for requests as the API server writes them.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

from contract.names import Names
from contract.stamps import OrderStamp
from webhook.bindings import mutate_binding
from webhook.errors import BadRequest, Unverified
from webhook.logs import AccessLog
from webhook.metrics import Metrics
from webhook.pods import mutate_pod
from webhook.reviews import Review, check_media, decode_review, encode_review
from webhook.verdicts import Verdict, cut
from webhook.workloads import validate_workload

JSON, TEXT = "application/json", "text/plain; charset=utf-8"
INTERNAL = "internal error, see the log of the webhook"

_log = logging.getLogger(__name__)
_LONGEST_LOGGED = 253  # of what a sender chooses; the longest name Kubernetes has


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to one of the routes, as far as it matters here.

    Attributes:
        content_type, encoding: the headers, empty where there are none.
        body: reads the body; raises :class:`BadRequest` for one that cannot be.
        verified: whether the client proved who it is by a certificate.
    """

    content_type: str
    encoding: str
    body: Callable[[], bytes]
    verified: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """What to send back."""

    status: HTTPStatus
    media: str
    body: bytes


class Reviewer:
    """Answers reviews.

    Args:
        names: resources and annotations.
        stamp: gives places in line; unique to this process.
        largest_card: memory blocks of the largest card there is; 0 when that is not known.
        only_verified: answer reviews only to clients that proved who they are.
        metrics: counts; those of this process alone when not given.
        access: gets a line for every review; standard error when not given.
        clock: measures durations, in seconds.
    """

    def __init__(  # noqa: PLR0913 - each is one dependency
        self,
        *,
        names: Names,
        stamp: Callable[[], OrderStamp],
        largest_card: int = 0,
        only_verified: bool = False,
        metrics: Metrics | None = None,
        access: AccessLog | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.metrics = metrics or Metrics()
        self.routes: Mapping[str, Callable[[Review], Verdict]] = {
            "/mutate/pods": partial(
                mutate_pod, names=names, stamp=stamp, largest_card=largest_card
            ),
            "/mutate/bindings": partial(mutate_binding, names=names, stamp=stamp),
            "/validate/workloads": partial(
                validate_workload, names=names, largest_card=largest_card
            ),
        }
        self._only_verified = only_verified
        self._access = access or AccessLog()
        self._clock = clock

    def answer(self, route: str, asked: Asked) -> Answer:
        """Answer a request to one of :attr:`routes`."""
        try:
            return Answer(HTTPStatus.OK, JSON, self._review(route, asked))
        except BadRequest as error:
            return self.refuse(route, error.status, str(error))
        except Exception:  # noqa: BLE001 - a mistake of ours: the trace for us, not for the sender
            _log.exception("failed", extra={"path": route})
            return self.refuse(route, HTTPStatus.INTERNAL_SERVER_ERROR, INTERNAL)

    def refuse(self, path: str, status: HTTPStatus, reason: str) -> Answer:
        """Answer what is no review: one line, a count, and a line in the log."""
        self.metrics.refused(status.value)
        path = cut(path, _LONGEST_LOGGED)
        _log.warning("refused", extra={"path": path, "status": status.value, "reason": reason})
        return Answer(status, TEXT, f"{reason}\n".encode())

    def _review(self, route: str, asked: Asked) -> bytes:
        started = self._clock()
        if self._only_verified and not asked.verified:
            raise Unverified("client certificate: Required value: of the CA in --client-ca")
        check_media(asked.content_type.partition(";")[0].strip(), asked.encoding)
        review = decode_review(asked.body())
        verdict = self.routes[route](review)
        body = encode_review(review, verdict)
        seconds = self._clock() - started
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
        return body
