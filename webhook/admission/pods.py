"""The verdict on a new pod: validated, stamped, cleared of copied stamps."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from contract.errors import InvalidStamp
from contract.names import Names
from contract.stamps import OrderStamp, decode_time
from webhook.admission.annotations import (
    about_dropped,
    about_supplied,
    annotations_of,
    changes_at_create,
    changes_without_gpus,
)
from webhook.admission.decision import Decision, bounded
from webhook.admission.defaults import adjust_memory, choose_runtime_class, choose_scheduler
from webhook.admission.options import DEFAULTS, AdmissionOptions
from webhook.admission.patches import patch_annotations
from webhook.admission.reviews import Review, pass_unread
from webhook.admission.validation import read_pod
from webhook.admission.warnings import about_environment, advise

_SECOND = 10**9
_REINVOKED_WITHIN = 60 * _SECOND
"""Longer than any request may take with all its webhooks."""


def mutate_pod(
    review: Review,
    *,
    names: Names,
    stamp: Callable[[], OrderStamp],
    options: AdmissionOptions = DEFAULTS,
) -> Decision:
    """Answer a review sent to ``/mutate/pods``.

    Only the creation of a core/v1 pod is decided. Anything else means that the
    webhook configuration sends too much: allowed, with a warning that says so.
    """
    known = review.target.parts in {("", "v1", "pods", ""), ("", "v1", "Pod", "")}
    if review.operation != "CREATE" or not known or review.object is None:
        return pass_unread(review, "gpu-turnstile decides only CREATE of v1/pods here")
    return decide_pod(
        review.object,
        names=names,
        stamp=stamp,
        options=options,
    )


def decide_pod(
    pod: Mapping[str, Any],
    *,
    names: Names,
    stamp: Callable[[], OrderStamp],
    options: AdmissionOptions = DEFAULTS,
) -> Decision:
    """Decide about a new pod.

    Args:
        pod: the pod as decoded JSON, possibly hostile.
        names: resources and annotations.
        stamp: returns the next order stamp; called once at most.
        options: the operator's.

    Returns:
        Every error, or the patch with the stamps and what the pod left out. For a pod without
        GPUs, the patch that removes annotations of GPU pods; empty when there are none.
    """
    adjusted = adjust_memory(pod, names=names, options=options)
    found = read_pod(adjusted.pod, names, privileged=options.privileged)
    if found is None:
        return _drop_ours(pod, names=names, stamp=stamp)
    demand, errors, warned = found
    if errors:
        return Decision(errors=errors)
    if not demand:
        dropped = _drop_ours(pod, names=names, stamp=stamp)
        return replace(dropped, warnings=bounded((*warned, *dropped.warnings)))
    given = annotations_of(pod)
    order_stamp = stamp()
    changes = changes_at_create(given, names, order_stamp)
    # Those of our own earlier call are not the user's.
    ours = _is_reinvocation(given, names, order_stamp)
    return Decision(
        patch=(
            *patch_annotations(pod.get("metadata"), changes),
            *adjusted.patch,
            *choose_scheduler(pod["spec"], options.scheduler_name),
            *choose_runtime_class(pod["spec"], options.runtime_class),
        ),
        warnings=bounded(
            (
                *warned,
                *adjusted.warnings,
                *advise(demand, given, names=names, largest_card=options.largest_card),
                *about_environment(pod.get("spec"), demand),
                *about_supplied(given, names, only_dropped=ours),
            )
        ),
    )


def _drop_ours(
    pod: Mapping[str, Any], *, names: Names, stamp: Callable[[], OrderStamp]
) -> Decision:
    """Remove annotations by which a pod without GPUs would look like a GPU pod."""
    given = annotations_of(pod)
    changes = changes_without_gpus(given, names)
    if not changes:
        return Decision()
    # Another webhook may have removed the request after our first call: the stamps are ours then.
    ours = _is_reinvocation(given, names, stamp())
    return Decision(
        patch=patch_annotations(pod.get("metadata"), changes),
        warnings=bounded(about_dropped(changes, names, stamped=ours)),
    )


def _is_reinvocation(given: Mapping[str, Any], names: Names, order_stamp: OrderStamp) -> bool:
    """Return whether the three annotations are from an earlier call for the same request.

    The API server calls again when another webhook changed the pod. Nothing marks the
    second call, but stamps that agree and are seconds old were hardly copied by hand.
    It decides about warnings only: the stamps are overwritten either way.
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
            and 0 <= order_stamp.time_ns - earlier.time_ns < _REINVOKED_WITHIN
        )
    except InvalidStamp:
        return False
