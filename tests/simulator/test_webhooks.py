"""The shipped webhook configurations, with the real webhook's decisions: when it is called."""

import base64
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
import trustme
import urllib3

from contract.names import Names
from contract.stamps import OrderStamp
from simulator.api.server import ApiServer
from simulator.client import ApiClient, ApiError, Json
from simulator.webhooks import simulated_configurations
from tests.simulator.api_helpers import PODS, Hook, running_hook
from tests.simulator.api_helpers import pod as plain_pod
from webhook.admission.bindings import mutate_binding
from webhook.admission.decision import Decision
from webhook.admission.pods import mutate_pod
from webhook.admission.reviews import Review, decode_review, encode_review
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


def _decide(review: Review) -> Decision:
    def stamp() -> OrderStamp:
        return OrderStamp(1_700_000_000_000_000_000, "w1", 0)

    if review.target.subresource == "binding":
        return mutate_binding(review, names=NAMES, stamp=stamp)
    if review.target.resource == "pods":
        return mutate_pod(review, names=NAMES, stamp=stamp)
    return validate_workload(review, names=NAMES)


def _respond(request: Json) -> Json:
    """Respond as the real webhook does, without its HTTP."""
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    decoded = decode_review(json.dumps(review).encode())
    response: Json = json.loads(encode_review(decoded, _decide(decoded)))["response"]
    return response


@pytest.fixture
def hook(server: ApiServer) -> Iterator[Hook]:
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    with running_hook(authority, respond=_respond) as found:
        url, ca = f"https://localhost:{found.port}", base64.b64decode(found.ca_bundle)
        server.apply(*simulated_configurations(url, ca))
        yield found


def _workload(workload: tuple[str, str, str, str], limits: Json) -> tuple[str, Json]:
    api_version, kind, plural, path = workload
    made: Any = plain_pod(limits=limits)
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


def test_a_pod_is_bound_once(client: ApiClient) -> None:
    client.create(PODS, plain_pod())
    client.create(f"{PODS}/p/binding", BINDING)
    with pytest.raises(ApiError) as raised:
        client.create(f"{PODS}/p/binding", BINDING | {"target": {"kind": "Node", "name": "n2"}})
    assert (raised.value.status, raised.value.message) == (
        409,
        'Operation cannot be fulfilled on pods "p": pod p is already assigned to node "n1"',
    )
    assert client.get(f"{PODS}/p")["spec"]["nodeName"] == "n1"


def test_a_gpu_pod_copied_without_its_limits_is_cleared_and_its_author_warned(
    server: ApiServer, client: ApiClient, hook: Hook
) -> None:
    client.create(PODS, plain_pod(limits=GPU))
    notes = client.get(f"{PODS}/p")["metadata"]["annotations"]
    copy = plain_pod("copy")
    copy["metadata"]["annotations"] = notes | {NAMES.gpu_allocation: "{}", "a": "b"}
    response = urllib3.request("POST", server.url + PODS, json=copy)
    assert response.headers.getlist("Warning") == [
        f'299 - "metadata.annotations[{NAMES.gpu_allocation}]: dropped, the pod requests no GPU"'
    ]
    assert client.get(f"{PODS}/copy")["metadata"]["annotations"] == {"a": "b"}


@pytest.mark.parametrize("namespace", ["kube-system", "gpu-turnstile", "gpu-turnstile-node"])
def test_the_webhook_is_not_called_for_pods_that_a_cluster_needs_to_start(
    client: ApiClient, hook: Hook, namespace: str
) -> None:
    hook.status = 503
    with contextlib.suppress(ApiError):  # it may exist
        client.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    pods = f"/api/v1/namespaces/{namespace}/pods"
    client.create(pods, plain_pod(limits=GPU))
    client.create(f"{pods}/p/binding", BINDING)
    assert client.get(f"{pods}/p")["spec"]["nodeName"] == "n1"
    assert hook.reviews == []


def test_a_gpu_pod_is_bound_although_the_webhook_is_down_and_no_other_is_created(
    client: ApiClient, hook: Hook
) -> None:
    client.create(PODS, plain_pod(limits=GPU))
    hook.raw = b"nonsense"
    with pytest.raises(ApiError, match="failed calling webhook"):
        client.create(PODS, plain_pod("later", limits=GPU))
    client.create(f"{PODS}/p/binding", BINDING)
    found = client.get(f"{PODS}/p")
    assert found["spec"]["nodeName"] == "n1"
    assert NAMES.bind_order not in found["metadata"]["annotations"]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda each: each[1])
def test_an_invalid_workload_is_denied_at_creation(
    client: ApiClient, hook: Hook, workload: tuple[str, str, str, str]
) -> None:
    collection, wrong = _workload(workload, WRONG)
    with pytest.raises(ApiError) as caught:
        client.create(collection, wrong)
    assert caught.value.status == 422
    assert caught.value.message.partition(" denied the request: ")[2] == (
        f"{workload[3]}.spec.containers[0].resources.limits[tencent.com/vcuda-core]: "
        'Invalid value: "150": more than one card must be a multiple of 100 '
        "(100 is one whole card): request 100 or 200, or annotate tencent.com/gpu-cards-main: "
        '"2" for 75 of each of 2 cards'
    )
    _, right = _workload(workload, GPU)
    client.create(collection, right)
    _, wrong = _workload(workload, WRONG)
    with pytest.raises(ApiError):
        client.replace(f"{collection}/w", wrong)
