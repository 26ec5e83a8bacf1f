"""The reviewer: which decision answers which path."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from contract.names import Names
from contract.stamps import OrderStamp
from webhook.admission.bindings import mutate_binding
from webhook.admission.options import DEFAULTS, Options
from webhook.admission.pods import mutate_pod
from webhook.admission.reviews import Review, check_media, decode_review, encode_review
from webhook.admission.verdicts import Verdict
from webhook.admission.workloads import validate_workload


@dataclass(frozen=True, slots=True)
class Reviewed:
    """A decided review.

    Attributes:
        review: the request.
        verdict: the decision.
        body: the AdmissionReview to answer with.
    """

    review: Review
    verdict: Verdict
    body: bytes


class Reviewer:
    """The decisions of reviews, chosen by the path that they were sent to.

    Args:
        names: resources and annotations.
        stamp: returns the next order stamp, unique to this process.
        options: the operator's.
    """

    def __init__(
        self,
        *,
        names: Names,
        stamp: Callable[[], OrderStamp],
        options: Options = DEFAULTS,
    ) -> None:
        self.routes: Mapping[str, Callable[[Review], Verdict]] = {
            "/mutate/pods": partial(mutate_pod, names=names, stamp=stamp, options=options),
            "/mutate/bindings": partial(mutate_binding, names=names, stamp=stamp),
            "/validate/workloads": partial(validate_workload, names=names, options=options),
        }

    def review(
        self, route: str, content_type: str, encoding: str, read_body: Callable[[], bytes]
    ) -> Reviewed:
        """Decide one review.

        Args:
            route: one of :attr:`routes`.
            content_type: the ``Content-Type`` header, empty when absent.
            encoding: the ``Content-Encoding`` header, empty when absent.
            read_body: returns the body, after the headers have been checked.

        Raises:
            BadRequest: the headers or the body are not those of an AdmissionReview.
        """
        check_media(content_type.partition(";")[0].strip(), encoding)
        review = decode_review(read_body())
        verdict = self.routes[route](review)
        return Reviewed(review, verdict, encode_review(review, verdict))
