"""A small installation behind a fake API server, for the doctor."""

from typing import Any

import pytest

from common.apiserver.errors import Rejected
from contract.names import Names
from tests.placement.cluster.builders import make_node
from tests.view import scenes
from tests.view.cluster.fake_api import FakeApi
from view.cluster.examination import collect_facts
from view.model.doctor.checks import run_checks
from view.model.doctor.facts import Facts, Finding

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/gpu-turnstile/leases"
LEASE, OWN_LEASE = (f"{LEASES}/gpu-turnstile-{each}" for each in ("scheduler", "kube-scheduler"))
AGENT_METRICS = "/api/v1/namespaces/gpu-turnstile-node/pods/agent-1%3A9440/proxy/metrics"
GIVEN_UP = 'gpu_turnstile_proxy_given_up{resource="r"}'
STAMPS = "gpu-turnstile-stamps"
FAILED = {"exitCode": 1, "reason": "Error", "message": "no port"}
DAEMONSETS = "/apis/apps/v1/namespaces/gpu-turnstile-node/daemonsets"
KUEUE, CLASS = "/apis/kueue.x-k8s.io", "/apis/resource.k8s.io/v1/deviceclasses/gpu.tencent.com"
SYSTEM_PODS = "/api/v1/namespaces/gpu-turnstile/pods"
NODE_PODS = "/api/v1/namespaces/gpu-turnstile-node/pods"


def pod(namespace: str, name: str, component: str, port: int) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": f"gpu-turnstile-{component}"}
    ports = [{"name": "https" if port == 8443 else "http", "containerPort": port}]
    container = {"name": component, "image": "image:1", "ports": ports}
    return {
        "metadata": {"namespace": namespace, "name": name, "labels": labels},
        "spec": {"nodeName": "n1", "containers": [container]},
        "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def daemonset(component: str) -> dict[str, Any]:
    env = [{"name": "GPU_TURNSTILE_ENFORCEMENT", "value": "vcuda"}]
    counts = ("desiredNumberScheduled", "currentNumberScheduled", "updatedNumberScheduled")
    return {
        "metadata": {"name": f"gpu-turnstile-{component}"},
        "spec": {"template": {"spec": {"containers": [{"env": env}]}}},
        "status": dict.fromkeys(counts, 1),
    }


def cluster() -> dict[str, Any]:
    """An API server with fixed responses by path."""
    node = make_node("n1", 1, blocks=4)
    offered = {"cpu": "3900m", "tencent.com/vcuda-core": "100", "tencent.com/vcuda-memory": "4"}
    node["status"]["allocatable"] = offered
    share = scenes.running("share", (50, 2), "n1", 0)
    hook = {"name": "pods.gpu-turnstile.io", "clientConfig": {"caBundle": "QQ=="}}
    stamped = {"tencent.com/predicate-time": "1"}
    held = 'namespace="default",pod="share",container="c0",card="GPU-n1-0"'
    return {
        "/version": {"gitVersion": "v1.36.2"},
        "/api/v1/nodes": [node],
        "/api/v1/pods": [share],
        SYSTEM_PODS: [pod("gpu-turnstile", "w", "webhook", 8443)],
        NODE_PODS: [
            pod("gpu-turnstile-node", "agent-1", "agent", 9440),
            pod("gpu-turnstile-node", "proxy-1", "proxy", 9441),
        ],
        f"{SYSTEM_PODS}/https%3Aw%3A8443/proxy/metrics": (
            "gpu_turnstile_webhook_certificate_expiry_timestamp_seconds 4e9\n"
        ),
        AGENT_METRICS: (
            "gpu_turnstile_agent_registered 1\n"
            'gpu_turnstile_agent_info{enforcement="vcuda",version="0.3.0"} 1\n'
            'gpu_turnstile_agent_requests_failing{verb="list",resource="pods",reason=""} 0\n'
            'gpu_turnstile_agent_cards{state="served"} 1\n'
            f"gpu_turnstile_agent_container_cores_held{{{held}}} 50\n"
            "python_info 1\n"
        ),
        f"{NODE_PODS}/proxy-1%3A9441/proxy/metrics": f"{GIVEN_UP} 0\n",
        "POST /api/v1/namespaces/team/pods": {"metadata": {"annotations": stamped}},
        f"{ADMISSION}/mutatingwebhookconfigurations/gpu-turnstile": {"webhooks": [hook]},
        f"{ADMISSION}/validatingadmissionpolicies": [{"metadata": {"name": STAMPS}}],
        f"{ADMISSION}/validatingadmissionpolicybindings": [{"spec": {"policyName": STAMPS}}],
        LEASE: Rejected(404, "not found"),
        OWN_LEASE: Rejected(404, "not found"),
        DAEMONSETS: [daemonset("agent"), daemonset("proxy")],
        KUEUE: Rejected(404, "the server could not find the requested resource"),
        "/apis/resource.k8s.io": {"versions": [{"version": "v1"}]},
        CLASS: Rejected(404, "not found"),
    }


@pytest.fixture
def api() -> FakeApi:
    return FakeApi(cluster(), others=[])


def read(api: FakeApi) -> Facts:
    return collect_facts(api, Names(), "team")


def run(api: FakeApi, check: str = "") -> list[Finding]:
    """Return the findings of a check, or of all."""
    return [each for each in run_checks(read(api)) if check in ("", each.check)]
