"""The components ``view``, ``host-network`` and ``void``, and the queues of an example."""

from collections.abc import Sequence
from typing import Any

import pytest

from certs.replicas import parse_replicas
from contract.text import to_label
from simulator.manifests import read_manifests
from tests.deploy.kustomize import build, build_components
from tests.deploy.manifests import (
    DEPLOY,
    Json,
    containers,
    environment,
    find,
    pod_specs,
    read_yaml,
    selects,
)
from tests.deploy.policies import Update, denials
from tests.deploy.policy_examples import NAMES, OTHER_USER
from tests.webhook.admission.building import decide
from view.web.hosts import SERVICE


def test_no_pod_can_connect_and_the_service_has_its_port() -> None:
    objects = build("overlays/view")
    spec = pod_specs(objects)["Deployment/gpu-turnstile-view"]
    deployment = find(objects, "Deployment", "gpu-turnstile-view")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    policy = find(objects, "NetworkPolicy", "gpu-turnstile-view")["spec"]
    assert selects(policy["podSelector"], labels)
    assert (policy["policyTypes"], policy.get("ingress")) == (["Ingress", "Egress"], None)
    service = find(objects, "Service", SERVICE)["spec"]
    assert selects({"matchLabels": service["selector"]}, labels)
    (port,) = containers(spec)[0]["ports"]
    (served,) = service["ports"]
    assert served["targetPort"] == port["name"]
    assert environment(containers(spec)[0])["GPU_TURNSTILE_VIEW_HOST"] == "::"


@pytest.mark.parametrize("others", [(), ("cert-manager",)])
def test_everything_agrees_on_the_port_of_the_node(others: tuple[str, ...]) -> None:
    objects = build_components("host-network", *others)
    spec = pod_specs(objects)["Deployment/gpu-turnstile-webhook"]
    assert spec["hostNetwork"]
    (container,) = containers(spec)
    port = int(environment(container)["GPU_TURNSTILE_WEBHOOK_PORT"])
    assert container["ports"] == [{"name": "https", "containerPort": port, "hostPort": port}]
    service = find(objects, "Service", "gpu-turnstile-webhook")["spec"]
    assert [(each["port"], each["targetPort"]) for each in service["ports"]] == [(443, "https")]
    if not others:
        (certs,) = containers(pod_specs(objects)["Deployment/gpu-turnstile-certs"])
        replicas = parse_replicas(environment(certs)["GPU_TURNSTILE_CERTS_REPLICAS"])
        assert replicas is not None
        assert replicas.port == port
        headless = find(objects, "Service", "gpu-turnstile-webhook-replicas")["spec"]
        assert [each["port"] for each in headless["ports"]] == [port]
    assert "ingress" in find(objects, "NetworkPolicy", "gpu-turnstile-webhook")["spec"]


def test_the_namespace_admits_it_and_an_update_needs_no_second_port() -> None:
    objects = build_components("host-network")
    labels = find(objects, "Namespace", "gpu-turnstile")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"
    assert labels["pod-security.kubernetes.io/warn"] == "restricted"
    deployment = find(objects, "Deployment", "gpu-turnstile-webhook")["spec"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}


POLICY, BINDING = read_manifests(DEPLOY / "components/void/policy.yaml")
VOID = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
GPU = {"resources": {"limits": {NAMES.core: "100"}}}
ZERO = {"resources": {"limits": {NAMES.core: "0"}}}
ALL = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
FROM = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}


def _denied(**containers: list[Json]) -> list[str]:
    spec: Json = {"containers": []}
    for field, listed in containers.items():
        spec[field] = [{"name": f"{field[0]}{at}", **each} for at, each in enumerate(listed)]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    constraints = {**POLICY["spec"]["matchConstraints"], "namespaceSelector": {}}
    everywhere = {**POLICY, "spec": {**POLICY["spec"], "matchConstraints": constraints}}
    return denials(everywhere, Update(OTHER_USER, {}, pod, operation="CREATE"))


@pytest.mark.parametrize(
    ("containers", "names"),
    [
        ({"containers": [{"env": VOID}]}, ""),
        ({"containers": [GPU, {}]}, "c1"),
        ({"containers": [ZERO]}, "c0"),
        ({"containers": [{"env": []}, {"env": [ALL]}, {"env": [FROM]}]}, "c0, c1, c2"),
        ({"containers": [{"env": [*VOID, ALL]}]}, "c0"),
        ({"containers": [{"env": VOID}], "initContainers": [{}]}, "i0"),
        ({"containers": [{"env": VOID}], "ephemeralContainers": [{}]}, "e0"),
    ],
)
def test_a_container_that_requests_no_gpu_must_set_its_visible_devices_to_none(
    containers: dict[str, Any], names: str
) -> None:
    found = _denied(**containers)
    assert [each.split(": ")[0] for each in found] == ([f"containers {names}"] if names else [])


def test_the_policy_applies_only_to_labelled_namespaces() -> None:
    selector = POLICY["spec"]["matchConstraints"]["namespaceSelector"]
    assert selector == {"matchLabels": {"gpu-turnstile.io/void": "demanded"}}
    assert (
        denials(POLICY, Update(OTHER_USER, {}, {"kind": "Pod", "spec": {}}, operation="CREATE"))
        == []
    )
    assert BINDING["spec"] == {
        "policyName": POLICY["metadata"]["name"],
        "validationActions": ["Deny", "Audit"],
    }


# --- queues: the objects of deploy/examples/kueue ------------------------------------------------

QUEUES = read_yaml(DEPLOY / "examples/kueue" / "queues.yaml")
WORKLOADS = read_yaml(DEPLOY / "examples/kueue" / "workloads.yaml")
MODELS = [flavor["spec"]["nodeLabels"] for flavor in QUEUES if flavor["kind"] == "ResourceFlavor"]


def _all(kind: str) -> dict[str, Json]:
    """Give the objects of a kind by namespace and name."""
    return {
        "/".join(each["metadata"].get(key, "") for key in ("namespace", "name")): each
        for each in QUEUES
        if each["kind"] == kind
    }


def _pods() -> Sequence[tuple[Json, Json]]:
    """Give each workload with its pod."""
    return [(each, each["spec"].get("template", each)) for each in WORKLOADS]


def test_flavors_are_models_as_the_agent_writes_them() -> None:
    for labels in MODELS:
        ((key, model),) = labels.items()
        assert (key, to_label(model)) == (NAMES.gpu_model, model)


def test_quotas_are_whole_cards_of_our_resources() -> None:
    for queue in _all("ClusterQueue").values():
        (group,) = queue["spec"]["resourceGroups"]
        assert group["coveredResources"] == [NAMES.core, NAMES.memory]
        assert {f"/{flavor['name']}" for flavor in group["flavors"]} == {*_all("ResourceFlavor")}
        for flavor in group["flavors"]:
            cores, memory = (each["nominalQuota"] for each in flavor["resources"])
            assert [each["name"] for each in flavor["resources"]] == group["coveredResources"]
            assert cores % 100 == memory % (cores // 100) == 0


def test_workloads_are_in_a_queue_and_their_pods_pass_the_webhook() -> None:
    queues = {key: f"/{each['spec']['clusterQueue']}" for key, each in _all("LocalQueue").items()}
    assert {*queues.values()} == {*_all("ClusterQueue")}
    for workload, pod in _pods():
        metadata = workload["metadata"]
        queue = metadata["labels"]["kueue.x-k8s.io/queue-name"]
        assert f"{metadata['namespace']}/{queue}" in queues
        assert pod["spec"].get("nodeSelector", MODELS[0]) in MODELS
        decision = decide({"metadata": {}, **pod})
        assert (decision.label, decision.warnings) == ("patched", ())
