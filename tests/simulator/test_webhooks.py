"""The shipped configurations before the real webhook's decisions: who is asked, who is not."""

import base64
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
import trustme

from contract.names import Names
from contract.stamps import OrderStamp
from simulator.api.server import ApiServer
from simulator.client import ApiClient, ApiError, Json
from simulator.manifests import read_manifests
from simulator.webhooks import (
    SHIPPED,
    policies_for_new_pods,
    validating_configuration,
    webhook_configuration,
)
from tests.simulator.api_helpers import PODS, Hook, allow, patch_with, running_hook
from tests.simulator.api_helpers import pod as plain_pod
from webhook.admission.bindings import mutate_binding
from webhook.admission.options import Options
from webhook.admission.pods import mutate_pod
from webhook.admission.reviews import Review, decode_review, encode_review
from webhook.admission.verdicts import Verdict
from webhook.admission.workloads import validate_workload

NAMES = Names()
GPU = {NAMES.core: "50", NAMES.memory: "8"}
WRONG = {NAMES.core: "150"}
BINDING = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}
WORKLOADS = [
    ("apps/v1", "Deployment", "deployments", "spec.template"),
    ("apps/v1", "StatefulSet", "statefulsets", "spec.template"),
    ("apps/v1", "DaemonSet", "daemonsets", "spec.template"),
    ("apps/v1", "ReplicaSet", "replicasets", "spec.template"),
    ("v1", "ReplicationController", "replicationcontrollers", "spec.template"),
    ("batch/v1", "Job", "jobs", "spec.template"),
    ("batch/v1", "CronJob", "cronjobs", "spec.jobTemplate.spec.template"),
    ("v1", "PodTemplate", "podtemplates", "template"),
]
"""API version, kind, plural, where the template is."""


def _decide(review: Review) -> Verdict:
    def stamp() -> OrderStamp:
        return OrderStamp(1_700_000_000_000_000_000, "w1", 0)

    if review.target.subresource == "binding":
        return mutate_binding(review, names=NAMES, stamp=stamp)
    if review.target.resource == "pods":
        return mutate_pod(review, names=NAMES, stamp=stamp)
    return validate_workload(review, names=NAMES)


def _respond(request: Json) -> Json:
    """Answer as the real webhook does, its HTTP aside."""
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    decoded = decode_review(json.dumps(review).encode())
    answer: Json = json.loads(encode_review(decoded, _decide(decoded)))["response"]
    return answer


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def client(server: ApiServer, warnings: list[str]) -> Iterator[ApiClient]:
    with ApiClient(server.url, on_warning=warnings.append) as connected:
        yield connected


@pytest.fixture
def hook(server: ApiServer, authority: trustme.CA) -> Iterator[Hook]:
    with running_hook(authority, respond=_respond) as found:
        url, ca = f"https://localhost:{found.port}", base64.b64decode(found.ca_bundle)
        server.apply(
            webhook_configuration(url, ca, NAMES), validating_configuration(url, ca, NAMES)
        )
        yield found


def _workload(workload: tuple[str, str, str, str], limits: Json) -> tuple[str, Json]:
    api_version, kind, plural, path = workload
    made: Any = {"metadata": {}, "spec": plain_pod(limits=limits)["spec"]}
    for step in reversed(path.split(".")):
        made = {step: made}
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    obj = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "w"}, **made}
    return f"{root}/namespaces/default/{plural}", obj


def test_a_gpu_pod_is_stamped_when_it_is_created_and_when_it_is_bound(
    client: ApiClient, hook: Hook
) -> None:
    client.create(PODS, plain_pod(limits=GPU))
    created = client.get(f"{PODS}/p")["metadata"]["annotations"]
    assert NAMES.admission_order in created
    assert NAMES.bind_order not in created
    client.create(f"{PODS}/p/binding", BINDING)
    bound = client.get(f"{PODS}/p")["metadata"]["annotations"]
    assert bound == created | {
        NAMES.bind_order: "01700000000000000000-w1-00000000",
        NAMES.predicate_node: "n1",
    }


def test_a_gpu_pod_that_names_no_scheduler_is_given_to_another_where_one_is_set(
    server: ApiServer, client: ApiClient, hook: Hook
) -> None:
    """The API server has filled in the default one by then; whoever names another one keeps it."""

    def respond(request: Json) -> Json:
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        decoded = decode_review(json.dumps(review | {"request": request}).encode())
        verdict = mutate_pod(
            decoded,
            names=NAMES,
            stamp=lambda: OrderStamp(1_700_000_000_000_000_000, "w1", 0),
            options=Options(scheduler_name="gpu-turnstile-scheduler"),
        )
        answer: Json = json.loads(encode_review(decoded, verdict))["response"]
        return answer

    hook.respond = respond
    server.apply(*policies_for_new_pods(NAMES))
    for name, spec in (("silent", {}), ("other", {"schedulerName": "volcano"})):
        client.create(PODS, plain_pod(name, limits=GPU, **spec))
    client.create(PODS, plain_pod("plain"))
    asked = {each["name"]: each["object"]["spec"]["schedulerName"] for each in hook.reviews}
    assert asked == {"silent": "default-scheduler", "other": "volcano"}
    given = {
        name: client.get(f"{PODS}/{name}")["spec"]["schedulerName"]
        for name in ("silent", "other", "plain")
    }
    assert given == {
        "silent": "gpu-turnstile-scheduler",
        "other": "volcano",
        "plain": "default-scheduler",
    }


@pytest.mark.parametrize("field", ["containers", "initContainers"])
@pytest.mark.parametrize("resource", [NAMES.core, NAMES.memory])
def test_a_gpu_pod_that_can_never_be_served_is_refused_wherever_it_asks(
    client: ApiClient, hook: Hook, field: str, resource: str
) -> None:
    asking = plain_pod()
    container = {"name": "x", "image": "none", "resources": {"limits": {resource: "150"}}}
    asking["spec"].setdefault(field, []).append(container)
    with pytest.raises(ApiError) as caught:
        client.create(PODS, asking)
    assert caught.value.status == 422
    assert "resources.limits[tencent.com/vcuda-core]" in caught.value.message


def test_a_gpu_pod_copied_without_its_limits_is_cleared_and_its_author_told(
    client: ApiClient, hook: Hook, warnings: list[str]
) -> None:
    client.create(PODS, plain_pod(limits=GPU))
    notes = client.get(f"{PODS}/p")["metadata"]["annotations"]
    copy = plain_pod("copy")
    copy["metadata"]["annotations"] = notes | {NAMES.gpu_allocation: "{}", "a": "b"}
    assert client.create(PODS, copy)["metadata"]["annotations"] == {"a": "b"}
    assert warnings == [
        f"metadata.annotations[{NAMES.gpu_allocation}]: dropped, the pod asks for no GPU"
    ]


def test_a_request_that_a_later_webhook_adds_is_decided_if_the_pod_was_met_before(
    server: ApiServer, client: ApiClient, hook: Hook, authority: trustme.CA
) -> None:
    """Called once, it is called again (K22): the way for pods that get their GPUs later."""
    added = {"op": "add", "path": "/spec/containers/0/resources", "value": {"limits": GPU}}
    with running_hook(authority, respond=patch_with(added)) as late:
        server.apply(late.configuration() | {"metadata": {"name": "late"}})
        waiting = plain_pod()
        waiting["metadata"]["annotations"] = {NAMES.gpu_assigned: "false"}
        made = client.create(PODS, waiting)
    assert len(hook.reviews) == 2
    assert made["metadata"]["annotations"].keys() == {
        NAMES.predicate_time,
        NAMES.admission_order,
        NAMES.gpu_assigned,
    }


_ASK = {"op": "add", "path": "/spec/containers/0/resources", "value": {"limits": GPU}}
_ASK_TOO_MUCH = {**_ASK, "value": {"limits": WRONG}}
_FORGE = {
    "op": "add",
    "path": "/metadata/annotations",
    "value": {NAMES.gpu_allocation: "{}", NAMES.gpu_assigned: "true"},
}


@pytest.mark.parametrize(
    ("operations", "policy", "words"),
    [
        ([_ASK], "stamps", "the pod asks for GPUs and does not have the stamps of the webhook"),
        ([_ASK_TOO_MUCH], "requests", "more than one card must be a multiple of 100"),
        ([_ASK, _FORGE], "records", "gpu-turnstile or a scheduler writes that once"),
        ([_FORGE], "records", "this one asks for none: remove it"),
    ],
    ids=["asks", "asks for too much", "asks and forges", "forges"],
)
def test_what_a_later_webhook_adds_is_refused_in_words(
    *,
    server: ApiServer,
    client: ApiClient,
    hook: Hook,
    authority: trustme.CA,
    operations: list[Json],
    policy: str,
    words: str,
) -> None:
    """K22: none of it reaches the webhook; each policy sees it."""
    shipped = [
        each
        for each in policies_for_new_pods(NAMES)
        if each["metadata"]["name"] == f"gpu-turnstile-{policy}"
    ]
    with running_hook(authority, respond=patch_with(*operations)) as late:
        server.apply(late.configuration() | {"metadata": {"name": "late"}})
        client.create(PODS, plain_pod("before"))
        server.apply(*shipped)
        with pytest.raises(ApiError, match=words) as caught:
            client.create(PODS, plain_pod("after"))
    assert caught.value.status in (403, 422)
    assert hook.reviews == []


def test_nobody_who_meets_the_webhook_is_refused_by_a_policy(
    server: ApiServer, client: ApiClient, hook: Hook
) -> None:
    server.apply(*policies_for_new_pods(NAMES))
    client.create(PODS, plain_pod(limits=GPU))
    notes = client.get(f"{PODS}/p")["metadata"]["annotations"] | {
        NAMES.gpu_assigned: "true",
        NAMES.gpu_allocation: "{}",
        NAMES.bind_order: "1",
        NAMES.predicate_gpu_idx(0): "0",
    }
    for name, limits in (("copy", GPU), ("without-limits", None)):
        copy = plain_pod(name, limits=limits)
        copy["metadata"]["annotations"] = dict(notes)
        client.create(PODS, copy)


def test_a_copy_without_limits_is_refused_in_words_of_the_policy_where_nothing_clears_it(
    server: ApiServer, client: ApiClient
) -> None:
    server.apply(*policies_for_new_pods(NAMES))
    copy = plain_pod()
    copy["metadata"]["annotations"] = {NAMES.gpu_assigned: "true"}
    with pytest.raises(ApiError, match="gpu-assigned: only pods that ask for GPUs"):
        client.create(PODS, copy)
    client.create(PODS, plain_pod())


def test_a_request_that_a_later_webhook_removes_takes_the_stamps_with_it(
    server: ApiServer, client: ApiClient, hook: Hook, authority: trustme.CA
) -> None:
    removed = {"op": "remove", "path": "/spec/containers/0/resources"}

    def respond(request: Json) -> Json:
        return (patch_with(removed) if len(late.reviews) == 1 else allow())(request)

    with running_hook(authority, respond=respond) as late:
        server.apply(late.configuration() | {"metadata": {"name": "late"}})
        made = client.create(PODS, plain_pod(limits=GPU))
    assert not made["metadata"]["annotations"]


@pytest.mark.parametrize("namespace", ["kube-system", "gpu-turnstile", "gpu-turnstile-node"])
def test_the_webhook_never_hears_of_what_a_cluster_needs_to_come_up(
    client: ApiClient, hook: Hook, namespace: str
) -> None:
    hook.status = 503
    with contextlib.suppress(ApiError):  # it may be there
        client.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    pods = f"/api/v1/namespaces/{namespace}/pods"
    client.create(pods, plain_pod(limits=GPU))
    client.create(f"{pods}/p/binding", BINDING)
    assert client.get(f"{pods}/p")["spec"]["nodeName"] == "n1"
    assert hook.reviews == []


def test_what_is_registered_here_is_what_is_installed_but_for_where_the_webhook_is() -> None:
    here = [
        webhook_configuration("https://localhost:1", b"ca", NAMES),
        validating_configuration("https://localhost:1", b"ca", NAMES),
    ]
    installed = read_manifests(SHIPPED)
    for configuration in (*here, *installed):
        for each in configuration["webhooks"]:
            client_config = each.pop("clientConfig")
            assert client_config.keys() in ({"url", "caBundle"}, {"service"})
    assert here == installed


def test_while_the_webhook_is_down_plain_pods_run_and_gpu_pods_are_refused(
    client: ApiClient, hook: Hook
) -> None:
    hook.status = 503
    client.create(PODS, plain_pod())
    client.create(f"{PODS}/p/binding", BINDING)
    assert client.get(f"{PODS}/p")["spec"]["nodeName"] == "n1"
    with pytest.raises(ApiError) as caught:
        client.create(PODS, plain_pod("q", limits=GPU))
    assert 'failed calling webhook "pods.gpu-turnstile.io"' in caught.value.message


def test_a_gpu_pod_is_bound_although_the_webhook_is_down_by_then(
    client: ApiClient, hook: Hook
) -> None:
    client.create(PODS, plain_pod(limits=GPU))
    hook.raw = b"nonsense"
    client.create(f"{PODS}/p/binding", BINDING)
    found = client.get(f"{PODS}/p")
    assert found["spec"]["nodeName"] == "n1"
    assert NAMES.bind_order not in found["metadata"]["annotations"]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda each: each[1])
def test_the_author_of_a_workload_is_told_at_once(
    client: ApiClient, hook: Hook, workload: tuple[str, str, str, str]
) -> None:
    collection, wrong = _workload(workload, WRONG)
    with pytest.raises(ApiError) as caught:
        client.create(collection, wrong)
    assert caught.value.status == 422
    assert caught.value.message.endswith(
        f"{workload[3]}.spec.containers[0].resources.limits[tencent.com/vcuda-core]: "
        'Invalid value: "150": more than one card must be a multiple of 100 '
        "(100 is one whole card): ask for 100 or 200"
    )
    _, right = _workload(workload, GPU)
    client.create(collection, right)
    _, wrong = _workload(workload, WRONG)
    with pytest.raises(ApiError):
        client.replace(f"{collection}/w", wrong)


def test_a_workload_older_than_the_webhook_can_still_be_changed(
    client: ApiClient, hook: Hook, warnings: list[str]
) -> None:
    collection, wrong = _workload(WORKLOADS[0], WRONG)
    hook.respond = allow()
    client.create(collection, wrong)
    hook.respond = _respond
    client.patch(f"{collection}/w", {"spec": {"replicas": 0}})
    assert client.get(f"{collection}/w")["spec"]["replicas"] == 0
    (warning,) = warnings
    assert warning.startswith("as before, its pods are refused: spec.template.spec.containers[0]")
