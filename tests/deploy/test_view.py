"""The overlay of the page: who reaches it."""

from tests.deploy.kustomize import build
from tests.deploy.manifests import containers, environment, find, pod_specs, selects
from tests.deploy.soundness import variables
from view.__main__ import serve
from view.web.hosts import SERVICE

OVERLAY = "overlays/view"


def test_no_pod_can_connect_and_the_service_has_its_port() -> None:
    objects = build(OVERLAY)
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
    assert port["containerPort"] == variables(serve)["GPU_TURNSTILE_VIEW_PORT"].default
    assert environment(containers(spec)[0])["GPU_TURNSTILE_VIEW_HOST"] == "::"
