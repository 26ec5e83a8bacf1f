"""Debug containers that are added to a pod."""

import copy

from hypothesis import given

from contract.names import Names
from tests.webhook.admission.building import ANY, Json, review_of
from webhook.admission.debugging import validate_ephemeral_containers
from webhook.admission.decision import Decision
from webhook.admission.options import AdmissionOptions
from webhook.admission.privileged import Privileged
from webhook.admission.reviews import ReviewedResource

TARGET = ReviewedResource("", "v1", "pods", "Pod", "ephemeralcontainers")
DENY = AdmissionOptions(privileged=Privileged.DENY)
WARNED = "container dbg: privileged, it sees every card of its node"


def _validate(new: Json, old: Json | None, options: AdmissionOptions = DENY) -> Decision:
    review = review_of(TARGET, new, operation="UPDATE", old_object=old)
    return validate_ephemeral_containers(review, names=Names(), options=options)


def _debugged(pod: Json, *contexts: object) -> Json:
    """The pod with a debug container for each security context."""
    pod = copy.deepcopy(pod)
    pod["spec"]["ephemeralContainers"] = [
        {"name": "dbg", "image": "x", "targetContainerName": "main", "securityContext": each}
        for each in contexts
    ]
    return pod


def test_a_privileged_debug_container_of_a_gpu_pod_is_denied_or_warned_of(pod: Json) -> None:
    new = _debugged(pod, None, {"privileged": False}, {"privileged": True})
    verdict = _validate(new, pod)
    (error,) = verdict.errors
    assert str(error) == (
        "spec.ephemeralContainers[2].securityContext.privileged: Invalid value: true: a privileged "
        "container sees every card of its node, and this cluster denies it in GPU pods: remove it"
    )
    assert verdict.rules == ("privileged",)
    assert _validate(new, pod, AdmissionOptions()) == Decision(warnings=(WARNED,))
    del pod["spec"]["containers"][0]["resources"]
    assert _validate(_debugged(pod, {"privileged": True}), pod) == Decision()


def test_only_containers_that_the_update_adds_are_checked(pod: Json) -> None:
    """A debug container can never be removed: an older one must not keep out all others."""
    pod["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    old = _debugged(pod, {"privileged": True})
    for options in (DENY, AdmissionOptions()):
        assert _validate(_debugged(pod, {"privileged": True}, {}), old, options) == Decision()
    assert len(_validate(_debugged(pod, *[{"privileged": True}] * 2), old).errors) == 1


@given(ANY, ANY)
def test_any_pod_has_a_verdict_without_a_patch(new: object, old: object) -> None:
    limits = {"limits": {"tencent.com/vcuda-core": "100"}}
    spec = {"containers": [{"resources": limits}], "ephemeralContainers": new}
    assert _validate({"spec": spec}, {"spec": old}).patch == ()
