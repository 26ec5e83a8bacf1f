"""The components for preemption: permissions that they add, and their limits."""

import pytest

from scheduler.nominations import CONDITION
from tests.deploy.kustomize import build_components
from tests.deploy.manifests import Json, containers, environment, find, pod_specs
from tests.deploy.policies import Update, denials

ACCOUNT = "system:serviceaccount:gpu-turnstile:gpu-turnstile-scheduler"
SCHEDULED = {"type": "PodScheduled", "status": "False"}
OURS = {"type": CONDITION, "status": "True"}
POD: Json = {
    "metadata": {"name": "p", "namespace": "team", "labels": {"a": "b"}},
    "spec": {"containers": []},
    "status": {"phase": "Pending", "conditions": [SCHEDULED]},
}


def _objects(*names: str) -> list[Json]:
    return build_components("scheduler-extender", *names)


def _rules(objects: list[Json]) -> list[Json]:
    return [
        rule
        for each in objects
        if each["kind"] == "ClusterRole" and "scheduler" in each["metadata"]["name"]
        for rule in each["rules"]
    ]


def test_no_pod_is_evicted_without_the_component() -> None:
    (container,) = containers(pod_specs(_objects())["Deployment/gpu-turnstile-scheduler"])
    assert "GPU_TURNSTILE_SCHEDULER_PREEMPT" not in environment(container)
    resources = {each for rule in _rules(_objects()) for each in rule["resources"]}
    assert resources == {"nodes", "pods", "pods/binding"}


def test_the_extender_with_the_component_evicts_pods_and_may_not_delete_them() -> None:
    objects = _objects("scheduler-extender-preemption")
    (container,) = containers(pod_specs(objects)["Deployment/gpu-turnstile-scheduler"])
    assert environment(container)["GPU_TURNSTILE_SCHEDULER_PREEMPT"] == "on"
    verbs = {
        (each, verb)
        for rule in _rules(objects)
        for each in rule["resources"]
        for verb in rule["verbs"]
    }
    assert ("pods/eviction", "create") in verbs
    assert {verb for each, verb in verbs if each == "pods"} == {"get", "list", "watch"}
    assert {verb for each, verb in verbs if each == "pods/status"} == {"patch"}


def test_beside_a_kube_scheduler_it_needs_only_the_right_to_evict() -> None:
    objects = build_components("scheduler-own", "scheduler-preemption")
    specs = pod_specs(objects)["Deployment/gpu-turnstile-kube-scheduler"]
    (container,) = (each for each in containers(specs) if each["name"] == "scheduler")
    assert environment(container)["GPU_TURNSTILE_SCHEDULER_PREEMPT"] == "on"
    rules = [(rule["resources"], rule["verbs"]) for rule in _rules(objects)]
    assert rules == [(["pods/eviction"], ["create"])]


CONDITIONS = "the extender may change only the condition gpu-turnstile.io/CardsNominated of a pod"
STATUS = "the extender may change only nominatedNodeName and its condition in the status of a pod"
METADATA = "the extender may change neither annotations nor labels of a pod"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"status": {"nominatedNodeName": "n1", "conditions": [SCHEDULED, OURS]}}, []),
        ({"status": {"conditions": [OURS]}}, [CONDITIONS]),
        (
            {"status": {"conditions": [SCHEDULED, {"type": "Ready", "status": "True"}]}},
            [CONDITIONS],
        ),
        ({"status": {"phase": "Failed", "conditions": [SCHEDULED]}}, [STATUS]),
        ({"status": {"podIP": "10.0.0.1"}}, [STATUS]),
        ({"status": {"containerStatuses": []}}, [STATUS]),
        ({"metadata": {"annotations": {"tencent.com/gpu-allocation": "x"}}}, [METADATA]),
        ({"metadata": {"labels": {"a": "c"}}}, [METADATA]),
    ],
)
def test_the_extender_may_nominate_a_pod_and_change_nothing_else(
    change: Json, found: list[str]
) -> None:
    policy = find(
        _objects("scheduler-extender-preemption"),
        "ValidatingAdmissionPolicy",
        "gpu-turnstile-nominations",
    )
    changed = {**POD, **{key: {**POD[key], **value} for key, value in change.items()}}
    assert denials(policy, Update(ACCOUNT, POD, changed, "status")) == found
    assert denials(policy, Update("other-user", POD, changed, "status")) == []
