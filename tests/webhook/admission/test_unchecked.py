"""Reviews of other objects than a route is for pass unread, with a warning."""

from collections.abc import Callable
from typing import Any

import pytest

from contract.names import Names
from tests.webhook.admission.building import Json, no_stamp, review_of
from webhook.admission.bindings import mutate_binding
from webhook.admission.debugging import validate_ephemeral_containers
from webhook.admission.decision import Decision, bounded
from webhook.admission.options import DEFAULTS
from webhook.admission.pods import mutate_pod
from webhook.admission.reviews import ReviewedResource
from webhook.admission.workloads import validate_workload

NAMES = Names()
POD = ReviewedResource("", "v1", "pods", "Pod", "")
BINDING = ReviewedResource("", "v1", "pods", "Binding", "binding")
DEBUG = ReviewedResource("", "v1", "pods", "Pod", "ephemeralcontainers")
SCALE = ReviewedResource("apps", "v1", "deployments", "Scale", "scale")
BETA = ReviewedResource("apps", "v1beta1", "deployments", "Deployment", "")
RAY = ReviewedResource("ray.io", "v1", "jobs", "Job", "")
ONLY_DEBUG = "checks only UPDATE of v1/pods/ephemeralcontainers"
ONLY_TEMPLATES = "checks only objects with a pod template"
Route = Callable[..., Decision]


def pods(review: Any) -> Decision:
    return mutate_pod(review, names=NAMES, stamp=no_stamp)


def bindings(review: Any) -> Decision:
    return mutate_binding(review, names=NAMES, stamp=no_stamp)


def debugging(review: Any) -> Decision:
    return validate_ephemeral_containers(review, names=NAMES, options=DEFAULTS)


def workloads(review: Any) -> Decision:
    return validate_workload(review, names=NAMES, options=DEFAULTS)


@pytest.mark.parametrize(
    ("route", "checks", "reviewed", "found"),
    [
        (pods, "checks only CREATE of v1/pods", ("UPDATE", POD), "v1/pods"),
        (pods, "checks only CREATE of v1/pods", ("CREATE", BINDING), "v1/pods/binding"),
        (bindings, "stamps only CREATE of v1/pods/binding", ("UPDATE", BINDING), "v1/pods/binding"),
        (bindings, "stamps only CREATE of v1/pods/binding", ("CREATE", POD), "v1/pods"),
        (debugging, ONLY_DEBUG, ("CREATE", DEBUG), None),
        (
            debugging,
            ONLY_DEBUG,
            ("UPDATE", POD),
            "v1/pods",
        ),
        (workloads, ONLY_TEMPLATES, ("CREATE", SCALE), None),
        (workloads, ONLY_TEMPLATES, ("CREATE", BETA), None),
        (workloads, ONLY_TEMPLATES, ("CREATE", RAY), "ray.io/v1/jobs"),
    ],
)
def test_another_object_or_operation_passes_unread_with_a_warning(
    pod: Json, route: Route, checks: str, reviewed: tuple[str, ReviewedResource], found: str
) -> None:
    operation, target = reviewed
    what = f"{operation} of {found or target} is allowed unchecked"
    assert route(review_of(target, pod, operation=operation)) == Decision(
        warnings=bounded([f"gpu-turnstile {checks} here: {what}"])
    )
