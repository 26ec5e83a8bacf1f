"""The decision about debug containers that are added to a pod: a privileged one sees every card."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

from contract.errors import FieldError
from contract.names import Names
from contract.requests import asks_for_gpus
from webhook.admission.decision import Decision, bounded
from webhook.admission.options import DEFAULTS, AdmissionOptions
from webhook.admission.privileged import check_privileged
from webhook.admission.reviews import Review, allow_unchecked

_TARGETS = {("", "v1", each, "ephemeralcontainers") for each in ("pods", "Pod")}


def validate_ephemeral_containers(
    review: Review, *, names: Names, options: AdmissionOptions = DEFAULTS
) -> Decision:
    """Decide a review sent to ``/validate/ephemeralcontainers``.

    Only containers that the update adds are judged: the API server lets nobody remove older ones.

    Anything but UPDATE of v1/pods/ephemeralcontainers means that the webhook configuration sends
    too much: it is allowed, with a warning about that.
    """
    if review.operation != "UPDATE" or review.target.parts not in _TARGETS or not review.object:
        rule = "gpu-turnstile checks only UPDATE of v1/pods/ephemeralcontainers here"
        return allow_unchecked(review, rule)
    if not asks_for_gpus(review.object.get("spec"), names):
        return Decision()
    errors, warnings = _check(review.object, options)
    before = {*chain.from_iterable(_check(review.old_object or {}, options))}
    return Decision(
        errors=tuple(each for each in errors if each not in before),
        warnings=bounded(each for each in warnings if each not in before),
    )


def _check(
    pod: Mapping[str, Any], options: AdmissionOptions
) -> tuple[tuple[FieldError, ...], tuple[str, ...]]:
    fields = ("ephemeralContainers",)
    return check_privileged(pod.get("spec"), options.privileged, path="spec", fields=fields)
