"""matchConditions as shipped: exactly pods that request our resources reach the webhook (K14)."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.names import Names
from contract.other_systems import NVIDIA, REQUESTS, RESOURCES
from contract.requests import asks_for_gpus
from contract.stamps import OrderStamp
from tests.deploy.cel import condition_holds
from tests.deploy.manifests import Json, base, find
from tests.examples import share
from webhook.admission.decision import Decision
from webhook.admission.pods import decide_pod

NAMES = Names()
OBJECTS = base()
BASE = "deploy/base/webhook/configurations.yaml"
PODS = "pods.gpu-turnstile.io"
STEPS = {
    PODS: "spec",
    "workloads.gpu-turnstile.io": "spec.template.spec",
    "jobs.gpu-turnstile.io": "spec.template.spec",
    "cronjobs.gpu-turnstile.io": "spec.jobTemplate.spec.template.spec",
    "replicationcontrollers.gpu-turnstile.io": "spec.template.spec",
    "podtemplates.gpu-turnstile.io": "template.spec",
}
"""Where each entry looks for the pod's spec."""


def _webhooks() -> dict[str, Json]:
    kinds = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    return {
        each["name"]: each
        for kind in kinds
        for each in find(OBJECTS, kind, "gpu-turnstile")["webhooks"]
    }


def reaches(entry: str, obj: Any) -> bool:
    """Return whether the API server would send an object."""
    conditions = _webhooks()[entry]["matchConditions"]
    return all(condition_holds(each["expression"], obj) for each in conditions)


def wrap(steps: str, spec: Json) -> Json:
    made = spec
    for step in reversed(steps.split(".")):
        made = {step: made}
    return made


def _container(**resources: Json) -> Json:
    return {"name": "c", "image": "none", "resources": resources}


PLAIN = {"name": "main", "image": "none"}
GPU = {NAMES.core: "30", NAMES.memory: "8"}

SENT: dict[str, Json] = {
    "cores in limits": {"containers": [_container(limits={NAMES.core: "100"})]},
    "a request without a limit, which is an error": {
        "containers": [_container(requests={NAMES.core: "30"})]
    },
    "an init container": {"containers": [PLAIN], "initContainers": [_container(limits=GPU)]},
    "the last of many": {"containers": [PLAIN] * 20 + [_container(limits=GPU)]},
}
NOT_SENT: dict[str, Json] = {
    "a plain pod": {"containers": [PLAIN]},
    **{
        f"GPUs of another system, {name}": {"containers": [_container(limits={name: "1"})]}
        for name in (*NVIDIA, "nvidia.com/mig-1g.10gb", "amd.com/gpu", "example.com/gpu")
    },
    "no container": {},
    "resource claims": {"containers": [PLAIN | {"resources": {"claims": [{"name": "gpu"}]}}]},
}


@pytest.mark.parametrize("entry", STEPS)
def test_only_requests_for_gpus_reach_the_webhook(entry: str) -> None:
    for what, spec in {**SENT, **NOT_SENT}.items():
        assert reaches(entry, wrap(STEPS[entry], spec)) == (what in SENT), what


MISSPELT = "misspelt.gpu-turnstile.io"
NEARLY = {
    "another domain": {"containers": [_container(limits={"example.com/vcuda-core": "1"})]},
    "a wrong name": {"containers": [PLAIN, _container(limits={"tencent.com/vcuda-cores": "1"})]},
    "in requests of an init container": {
        "initContainers": [_container(requests={"tencent.com/vcuda-mem": "1"})]
    },
    **{
        f"another system's, or nearly: {name}": {
            "containers": [PLAIN, _container(limits={name: "1"})]
        }
        for name in (*RESOURCES.keys() - {*NVIDIA}, "tencent.com/gpu", "tencent.com/VCUDA-core")
    },
}


def _annotated(key: str) -> Json:
    return {"metadata": {"annotations": {key: "0.5"}}, "spec": {"containers": [PLAIN]}}


@pytest.mark.parametrize("entry", STEPS)
def test_misspelt_names_reach_the_webhook_except_in_pods(entry: str) -> None:
    for what, spec in NEARLY.items():
        found = reaches(entry, wrap(STEPS[entry], spec))
        assert found == (entry != PODS), f"{BASE}: {entry}: {what}"
    template = STEPS[entry].removesuffix(".spec").removesuffix("spec")
    for key in REQUESTS:
        pod = _annotated(key)
        found = reaches(entry, wrap(template, pod) if template else pod)
        assert found == (entry != PODS), f"{BASE}: {entry}: {key}"


def test_pods_with_misspelt_names_reach_the_entry_that_warns() -> None:
    for what, spec in {**SENT, **NOT_SENT, **NEARLY}.items():
        found = reaches(MISSPELT, {"spec": spec})
        assert found == (what in NEARLY), f"{BASE}: {MISSPELT}: {what}"
    for key in REQUESTS:
        assert reaches(MISSPELT, _annotated(key)), f"{BASE}: {MISSPELT}: {key}"


@pytest.mark.parametrize("entry", STEPS)
def test_an_object_that_ends_early_is_no_error(entry: str) -> None:
    """An error of a condition would refuse the object under failurePolicy Fail."""
    steps = STEPS[entry].split(".")
    for count in range(len(steps)):
        assert not reaches(entry, wrap(".".join(steps[:count]), {}) if count else {})


ONLY_ON_GPU_PODS = (
    NAMES.gpu_assigned,
    NAMES.gpu_allocation,
    NAMES.admission_order,
    NAMES.predicate_gpu_idx(0),
    NAMES.predicate_gpu_idx(12),
)


_LISTING = st.dictionaries(
    st.sampled_from([NAMES.core, NAMES.memory, "cpu", "example.com/core", "nvidia.com/gpu"]),
    st.sampled_from(["0", "1", "50", "100", "many"]),
    max_size=3,
)
_CONTAINER = st.fixed_dictionaries(
    {"name": st.just("c")},
    optional={
        "resources": st.fixed_dictionaries({}, optional={"limits": _LISTING, "requests": _LISTING})
    },
)
_SPEC = st.fixed_dictionaries(
    {"containers": st.lists(_CONTAINER, max_size=3)},
    optional={"initContainers": st.lists(_CONTAINER, max_size=3)},
)


_NOTES = st.dictionaries(
    st.sampled_from(
        [
            *ONLY_ON_GPU_PODS,
            *sorted(NAMES.wishes),
            *(NAMES.predicate_time, NAMES.bind_order, NAMES.predicate_node),
            *("tencent.com/vcuda-core", "tencent.com/other", "example.com/gpu-assigned", "a"),
        ]
    ),
    st.just("x"),
    max_size=3,
)


@settings(max_examples=share(60))
@given(_SPEC, _NOTES)
def test_the_condition_and_the_webhook_agree_about_every_pod(spec: Json, notes: Json) -> None:
    pod = {"metadata": {"annotations": notes}, "spec": spec}
    stamp = OrderStamp(1, "w", 0)
    is_ignored = decide_pod(pod, names=NAMES, stamp=lambda: stamp) == Decision()
    assert reaches(PODS, pod) == (not is_ignored)
    assert reaches(PODS, {"spec": spec}) == asks_for_gpus(spec, NAMES)


DEBUGGING = "ephemeralcontainers.gpu-turnstile.io"


def test_of_debug_containers_only_privileged_ones_of_gpu_pods_wait_for_the_webhook() -> None:
    privileged = {"name": "d", "securityContext": {"privileged": True}}
    plain = ({"name": "d"}, {"name": "d", "securityContext": {"privileged": False}})
    for what, spec in {**SENT, **NOT_SENT}.items():
        requests_gpus = asks_for_gpus({"containers": [], **spec}, NAMES) and "requests" not in str(
            spec
        )
        debugged = spec | {"ephemeralContainers": [*plain, privileged]}
        assert reaches(DEBUGGING, {"spec": debugged}) == requests_gpus, what
        assert not reaches(DEBUGGING, {"spec": spec | {"ephemeralContainers": [*plain]}}), what
        assert not reaches(DEBUGGING, {"spec": spec}), what


def test_a_pod_waits_for_its_stamps_and_nothing_else_waits_for_the_webhook() -> None:
    assert {name: each["failurePolicy"] for name, each in _webhooks().items()} == {
        "pods.gpu-turnstile.io": "Fail",
        "bindings.gpu-turnstile.io": "Ignore",
        DEBUGGING: "Fail",
        MISSPELT: "Ignore",
        **{name: "Ignore" for name in STEPS if name != PODS},
    }


def test_every_entry_sets_all_fields_that_have_defaults() -> None:
    for name, each in _webhooks().items():
        assert each["sideEffects"] == "None"
        assert each["matchPolicy"] == "Equivalent"
        assert each["admissionReviewVersions"] == ["v1"]
        assert each["timeoutSeconds"] <= (2 if name == "bindings.gpu-turnstile.io" else 10)
        ((expression),) = each["namespaceSelector"]["matchExpressions"]
        assert expression == {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": ["kube-system", *_namespaces()],
        }


def _namespaces() -> list[str]:
    return [each["metadata"]["name"] for each in OBJECTS if each["kind"] == "Namespace"]
