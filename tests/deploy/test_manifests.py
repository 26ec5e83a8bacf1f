"""deploy/base as it is written: names, ports, rights, and that it fits the programs."""

import re
from pathlib import Path
from typing import Any

import click
import pytest

from agent.__main__ import main as agent
from agent.app import agent as agent_module
from certs.__main__ import cli as certs
from certs.settings import CONFIGURATIONS
from contract.names import DEFAULT_DOMAIN
from proxy.__main__ import main as proxy
from tests.deploy.manifests import (
    DEPLOY,
    Json,
    base,
    containers,
    environment,
    find,
    pod_specs,
    read_yaml,
)
from tests.deploy.schemas import OLDEST, check, newest
from tests.deploy.soundness import check_objects, variables
from webhook.__main__ import cli as webhook

OBJECTS = base()
SPECS = pod_specs(OBJECTS)
WEBHOOK = SPECS["Deployment/gpu-turnstile-webhook"]
AGENT = SPECS["DaemonSet/gpu-turnstile-agent"]
PROXY = SPECS["DaemonSet/gpu-turnstile-proxy"]


def default(command: click.Command, variable: str) -> Any:
    """Return the default of an option."""
    return variables(command)[variable].default


@pytest.mark.parametrize("version", [OLDEST, newest()])
def test_every_object_is_what_kubernetes_expects(version: str) -> None:
    examples = [each for path in (DEPLOY / "examples").glob("*.yaml") for each in read_yaml(path)]
    assert examples
    for each in (*OBJECTS, *examples):
        check(each, version)


def test_the_base_is_sound_by_itself() -> None:
    check_objects(OBJECTS)
    namespace = find(OBJECTS, "Namespace", "gpu-turnstile")["metadata"]
    assert namespace["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_agent_registers_where_the_proxy_listens_and_both_write_nowhere_else() -> None:
    plugins = str(default(proxy, "GPU_TURNSTILE_PROXY_PLUGIN_DIR"))
    record = Path(default(agent, "GPU_TURNSTILE_POD_RESOURCES_SOCKET")).parent
    assert environment(containers(AGENT)[0])["GPU_TURNSTILE_PLUGIN_DIR"] == plugins
    assert _mounts(AGENT) == {
        "plugins": (plugins, "rw"),
        "device-plugins": (str(default(proxy, "GPU_TURNSTILE_PROXY_KUBELET_DIR")), "ro"),
        "pod-resources": (str(record), "ro"),
    }
    assert _mounts(PROXY) == {
        "plugins": (plugins, "rw"),
        "device-plugins": (str(default(proxy, "GPU_TURNSTILE_PROXY_KUBELET_DIR")), "rw"),
    }


def _mounts(spec: Json) -> dict[str, tuple[str, str]]:
    """Return the path of each volume, the same inside and outside, and its mode."""
    inside = {each["name"]: each for each in containers(spec)[0]["volumeMounts"]}
    outside = {each["name"]: each["hostPath"]["path"] for each in spec["volumes"]}
    assert {name: each["mountPath"] for name, each in inside.items()} == outside
    return {
        name: (path, "ro" if inside[name].get("readOnly") else "rw")
        for name, path in outside.items()
    }


@pytest.mark.parametrize("spec", [WEBHOOK, PROXY], ids=["webhook", "proxy"])
def test_programs_without_api_requests_have_no_token(spec: Json) -> None:
    account = find(OBJECTS, "ServiceAccount", spec["serviceAccountName"])
    assert account["automountServiceAccountToken"] is False
    assert spec["automountServiceAccountToken"] is False


def test_the_key_of_the_authority_is_mounted_nowhere() -> None:
    authority = default(certs.commands["rotate"], "GPU_TURNSTILE_CERTS_CA_SECRET")
    assert authority == "gpu-turnstile-webhook-ca"
    assert all(authority not in str(spec) for spec in SPECS.values())


def test_certs_makes_the_secret_that_the_webhook_mounts() -> None:
    rotate = certs.commands["rotate"]
    (secret,) = (each["secret"] for each in WEBHOOK["volumes"] if "secret" in each)
    assert secret["secretName"] == default(rotate, "GPU_TURNSTILE_CERTS_TLS_SECRET")
    assert default(rotate, "GPU_TURNSTILE_CERTS_NAMESPACE") == "gpu-turnstile"
    assert default(rotate, "GPU_TURNSTILE_CERTS_SERVICE") == "gpu-turnstile-webhook"
    given = environment(containers(WEBHOOK)[0])
    files = {f"/etc/gpu-turnstile/tls/{each['path']}" for each in secret["items"]}
    assert {given["GPU_TURNSTILE_WEBHOOK_CERT"], given["GPU_TURNSTILE_WEBHOOK_KEY"]} == files


def test_certs_keeps_the_configurations_that_are_installed() -> None:
    installed = [
        (each["kind"].lower(), each["metadata"]["name"])
        for each in OBJECTS
        if each["kind"].endswith("WebhookConfiguration")
    ]
    assert sorted(installed) == sorted((kind.value, name) for kind, name in CONFIGURATIONS)


def test_only_agent_proxy_and_webhook_can_be_connected_to() -> None:
    policies = [each for each in OBJECTS if each["kind"] == "NetworkPolicy"]
    opened = {each["metadata"]["name"] for each in policies if "ingress" in each["spec"]}
    assert opened == {f"gpu-turnstile-{name}" for name in ("agent", "proxy", "webhook")}
    assert "default-deny" in {each["metadata"]["name"] for each in policies}


def test_the_policies_know_the_account_that_the_agent_runs_under() -> None:
    account = find(OBJECTS, "ServiceAccount", AGENT["serviceAccountName"])["metadata"]
    user = f"system:serviceaccount:{account['namespace']}:{account['name']}"
    named = {
        name
        for each in OBJECTS
        if each["kind"] == "ValidatingAdmissionPolicy"
        for name in re.findall(r"system:serviceaccount:[-a-z:]+", str(each))
    }
    assert named == {user}


def test_the_webhook_has_time_to_drain() -> None:
    delay = float(environment(containers(WEBHOOK)[0])["GPU_TURNSTILE_WEBHOOK_DRAIN_DELAY"])
    # As long as gunicorn gives its workers, and what it takes to end after them.
    assert WEBHOOK["terminationGracePeriodSeconds"] > delay + 16 + 2 + 5


def test_agents_are_replaced_node_by_node_and_no_rollout_ends_a_proxy() -> None:
    agents, proxies = (
        find(OBJECTS, "DaemonSet", f"gpu-turnstile-{name}")["spec"]["updateStrategy"]
        for name in ("agent", "proxy")
    )
    surge = {"maxSurge": 1, "maxUnavailable": 0}
    assert agents == {"type": "RollingUpdate", "rollingUpdate": surge}
    assert proxies == {"type": "OnDelete"}


def test_no_liveness_probe_can_kill_a_proxy() -> None:
    (container,) = containers(PROXY)
    assert {each for each in container if each.endswith("Probe")} == {"readinessProbe"}


def test_a_proxy_makes_no_network_calls() -> None:
    spec = find(OBJECTS, "NetworkPolicy", "gpu-turnstile-proxy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in spec


def test_all_of_the_proxy_can_be_applied_by_its_label() -> None:
    """docs/upgrade.md applies it before the agents."""
    for path in (DEPLOY / "base/proxy").glob("[!k]*.yaml"):
        for each in read_yaml(path):
            assert each["metadata"]["labels"] == {"app.kubernetes.io/name": "gpu-turnstile-proxy"}


def test_the_agent_has_time_to_end() -> None:
    assert AGENT["terminationGracePeriodSeconds"] > agent_module._JOIN_SECONDS + 10


def test_the_webhooks_memory_holds_its_connections() -> None:
    limit = containers(WEBHOOK)[0]["resources"]["limits"]["memory"]
    connections = default(webhook, "GPU_TURNSTILE_WEBHOOK_CONNECTIONS")
    assert int(limit.removesuffix("Mi")) >= 80 + 0.31 * connections + 64


def test_no_manifest_contains_a_ca_bundle() -> None:
    assert "caBundle:" not in "".join(
        path.read_text(encoding="utf-8") for path in DEPLOY.rglob("*.yaml")
    )


def test_the_domain_is_the_default_of_the_programs() -> None:
    for spec in (WEBHOOK, AGENT):
        assert environment(containers(spec)[0])["GPU_TURNSTILE_DOMAIN"] == DEFAULT_DOMAIN
