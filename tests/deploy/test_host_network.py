"""The component ``host-network``: a webhook that control planes reach without reaching pods."""

import pytest

from certs.replicas import Replicas, parse_replicas
from tests.deploy.kustomize import build_components
from tests.deploy.manifests import Json, containers, environment, find, pod_specs


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
        assert _replicas(objects).port == port
        headless = find(objects, "Service", "gpu-turnstile-webhook-replicas")["spec"]
        assert [each["port"] for each in headless["ports"]] == [port]
    policy = find(objects, "NetworkPolicy", "gpu-turnstile-webhook")["spec"]
    assert policy["ingress"] == [{"ports": [{"protocol": "TCP", "port": port}]}]


def test_the_namespace_admits_it_and_an_update_needs_no_second_port() -> None:
    objects = build_components("host-network")
    labels = find(objects, "Namespace", "gpu-turnstile")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"
    assert labels["pod-security.kubernetes.io/warn"] == "restricted"
    deployment = find(objects, "Deployment", "gpu-turnstile-webhook")["spec"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}


def _replicas(objects: list[Json]) -> Replicas:
    (container,) = containers(pod_specs(objects)["Deployment/gpu-turnstile-certs"])
    found = parse_replicas(environment(container)["GPU_TURNSTILE_CERTS_REPLICAS"])
    assert found is not None
    return found
