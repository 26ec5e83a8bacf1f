"""The decision about a new pod: validate it, stamp it, remove stamps copied from another pod."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from contract.claims import make_claim
from contract.demand import PodDemand
from contract.errors import InvalidStamp
from contract.names import Names
from contract.requests import annotations_of
from contract.spelling import advise_wishes
from contract.stamps import OrderStamp, decode_time
from contract.wishes import read_wishes
from webhook.admission.annotations import (
    about_dropped,
    about_supplied,
    changes_at_create,
    changes_without_gpus,
)
from webhook.admission.claims import Claims, about_claims, add_claim, drop_claims, keep_away
from webhook.admission.decision import Decision, Operation, bounded
from webhook.admission.defaults import adjust_memory, choose_runtime_class, choose_scheduler
from webhook.admission.dialects.translation import translate
from webhook.admission.options import DEFAULTS, AdmissionOptions
from webhook.admission.patches import patch_annotations
from webhook.admission.reviews import Review, allow_unchecked
from webhook.admission.validation import read_pod
from webhook.admission.warnings import about_environment, about_memory, about_runtime_class, advise

_SECOND = 10**9
_LONGEST_REQUEST = 60 * _SECOND
"""More time than any request takes with all its webhooks."""


def mutate_pod(
    review: Review,
    *,
    names: Names,
    stamp: Callable[[], OrderStamp],
    options: AdmissionOptions = DEFAULTS,
) -> Decision:
    """Decide a review sent to ``/mutate/pods`` or ``/mutate/pods/dialects``.

    Only the creation of a core/v1 pod is checked. Anything else means that the webhook
    configuration sends too much: it is allowed, with a warning about that.
    """
    is_pod = review.target.parts in {("", "v1", "pods", ""), ("", "v1", "Pod", "")}
    if review.operation != "CREATE" or not is_pod or review.object is None:
        return allow_unchecked(review, "gpu-turnstile checks only CREATE of v1/pods here")
    return decide_pod(review.object, names=names, stamp=stamp, options=options)


def decide_pod(
    pod: Mapping[str, Any],
    *,
    names: Names,
    stamp: Callable[[], OrderStamp],
    options: AdmissionOptions = DEFAULTS,
) -> Decision:
    """Decide about a new pod.

    *stamp* returns the next order stamp; it is called once at most.

    Returns:
        All errors; without errors, the patch with the stamps and the fields that the pod left out.
        For a pod without GPUs, the patch that removes annotations of GPU pods, if it has any.
    """
    translated = translate(pod, names=names, options=options)
    if translated.errors:
        return Decision(errors=translated.errors, warnings=bounded(translated.warnings))
    adjusted = adjust_memory(translated.pod, names=names, options=options)
    claims = options.claims
    found = read_pod(adjusted.pod, names, privileged=options.privileged, claims=claims)
    if found is None:
        return _drop_what_is_ours(pod, names=names, stamp=stamp, claims=claims)
    demand, errors, warnings = found
    warnings = (*translated.warnings, *warnings)
    if errors:
        return Decision(errors=errors, warnings=bounded(warnings))
    if not demand:
        dropped = _drop_what_is_ours(pod, names=names, stamp=stamp, claims=claims)
        return replace(dropped, warnings=bounded((*warnings, *dropped.warnings)))
    given = annotations_of(pod)
    order_stamp = stamp()
    # After an earlier call of ours the stamps are not the author's: no warning of them.
    ours = _is_reinvocation(given, names, order_stamp)
    changes = changes_at_create(given, names, order_stamp, reinvoked=ours)
    again = ours and names.translated_from in given
    return Decision(
        patch=(
            *patch_annotations(pod.get("metadata"), {**changes, **translated.changes}),
            *translated.patch,
            *adjusted.patch,
            # Kube-scheduler chooses the cards of claims. A second one would not see its choices in
            # time, and the extender does not decide about them.
            *(
                choose_scheduler(translated.pod["spec"], options.scheduler_name)
                if claims is not Claims.ON
                else ()
            ),
            *choose_runtime_class(pod["spec"], options.runtime_class),
            *(_add_claim(adjusted.pod, demand, names) if claims is Claims.ON else ()),
            *(keep_away(pod["spec"]) if claims is Claims.AWAY else ()),
        ),
        warnings=bounded(
            (
                *warnings,
                *adjusted.warnings,
                *about_memory(
                    demand, options.largest_card, in_blocks=not (translated.changes or again)
                ),
                *advise(demand, annotations_of(adjusted.pod), names=names),
                *about_environment(pod.get("spec"), demand, translated=again),
                *about_runtime_class(pod["spec"], options.runtime_class),
                *(about_claims(pod["spec"], demand) if claims is Claims.ON else ()),
                *advise_wishes(adjusted.pod, names),
                *about_supplied(given, names, only_dropped=ours),
            )
        ),
    )


def _add_claim(pod: Mapping[str, Any], demand: PodDemand, names: Names) -> tuple[Operation, ...]:
    wishes, _ = read_wishes(annotations_of(pod), names)
    return add_claim(pod["spec"], make_claim(demand, wishes, names))


def _drop_what_is_ours(
    pod: Mapping[str, Any], *, names: Names, stamp: Callable[[], OrderStamp], claims: Claims
) -> Decision:
    """Remove what would make a pod without GPUs look like a GPU pod, or get it a card."""
    given = annotations_of(pod)
    changes = changes_without_gpus(given, names)
    patch, warnings = drop_claims(pod) if claims is not Claims.OFF else ((), ())
    if not changes:
        return Decision(patch=patch, warnings=bounded(warnings))
    # If another webhook removed the GPU request after our first call, the stamps are ours.
    ours = _is_reinvocation(given, names, stamp())
    return Decision(
        patch=(*patch_annotations(pod.get("metadata"), changes), *patch),
        warnings=bounded((*about_dropped(changes, names, stamped=ours), *warnings)),
    )


def _is_reinvocation(given: Mapping[str, Any], names: Names, order_stamp: OrderStamp) -> bool:
    """Return whether the three annotations are from an earlier call for the same request.

    The API server calls again if another webhook changed the pod. Nothing marks the second call,
    but consistent stamps that are only seconds old were hardly copied by hand. The stamps are
    overwritten either way. The result affects warnings, and ``translated-from``, which nothing
    decides by.
    """
    time, order = given.get(names.predicate_time), given.get(names.admission_order)
    if given.get(names.gpu_assigned) != "false":
        return False
    if not isinstance(time, str) or not isinstance(order, str):
        return False
    try:
        earlier = OrderStamp.decode(order)
        return (
            decode_time(time) == earlier.time_ns
            and 0 <= order_stamp.time_ns - earlier.time_ns < _LONGEST_REQUEST
        )
    except InvalidStamp:
        return False
