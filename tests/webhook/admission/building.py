"""Reviews, stamps and hostile JSON for the tests of decisions."""

from collections.abc import Callable
from typing import Any

import jsonpatch
from hypothesis import strategies as st

from contract.names import Names
from contract.stamps import OrderStamp
from tests.agent.builders import raising
from webhook.admission.decision import Decision
from webhook.admission.options import DEFAULTS, AdmissionOptions
from webhook.admission.pods import decide_pod
from webhook.admission.reviews import Review, ReviewedResource
from webhook.admission.workloads import validate_workload

Json = dict[str, Any]
TIME = 1_700_000_000_000_000_000
ORDER = "01700000000000000000-w1-00000000"
SCALAR = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
ANY = st.recursive(
    SCALAR | st.sampled_from(["false", "", "100", "150", "1"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
)


def stamp() -> OrderStamp:
    return OrderStamp(TIME, "w1", 0)


no_stamp = raising(AssertionError("no stamp is due"))


def decide(
    pod: Json, options: AdmissionOptions = DEFAULTS, *, stamp: Callable[[], OrderStamp] = stamp
) -> Decision:
    return decide_pod(pod, names=Names(), stamp=stamp, options=options)


def decide_template(
    template: object, before: object = None, options: AdmissionOptions = DEFAULTS
) -> Decision:
    """Decide about a Deployment with this template, or about its update."""
    new, old = ({"metadata": {}, "spec": {"template": each}} for each in (template, before))
    review = review_of(
        ReviewedResource("apps", "v1", "deployments", "Deployment", ""),
        new,
        operation="UPDATE" if before else "CREATE",
        old_object=old if before else None,
    )
    return validate_workload(review, names=Names(), options=options)


def review_of(target: ReviewedResource, content: Json | None, /, **changes: Any) -> Review:
    whole: Json = {
        "uid": "u",
        "target": target,
        "operation": "CREATE",
        "namespace": "team",
        "name": "train",
        "dry_run": False,
        "object": content,
    }
    return Review(**(whole | changes))


def applied(content: Json, verdict: Decision) -> Json:
    operations: Any = [dict(each) for each in verdict.patch]
    patched: Json = jsonpatch.apply_patch(content, operations)
    return patched
