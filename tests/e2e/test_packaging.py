"""Manifests applied again, a component deleted, and the same with Helm."""

import json
import re
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import DEPLOY
from tests.e2e.cluster import Kubectl
from tests.e2e.ground import wait
from tests.e2e.installation import (
    AGENT,
    AGENTS,
    NAMESPACE,
    OURS,
    WEBHOOK,
    image_parts,
    installing,
    run_doctor,
)
from tests.e2e.settings import Settings
from tests.release import helm

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

COMPONENTS = ("scheduler-own", "view", "view-use", "void")
_RELEASE = "e2e"
_SECONDS = "240s"


def _removal(component: str) -> list[str]:
    """Return the command of deploy/README.md that deletes a component."""
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(
        r"^\$ kubectl (delete --all-namespaces (?:.*\\\n)*.*)", text, re.MULTILINE
    )
    return shlex.split(command.replace("\\\n", " ").replace("COMPONENT", component))


def test_manifests_applied_again_are_unchanged_and_a_label_deletes_a_component(
    settings: Settings, kubectl: Kubectl, tmp_path: Path
) -> None:
    (tmp_path / "all").mkdir()
    with installing(settings, kubectl, tmp_path / "all", components=COMPONENTS) as whole:
        whole.apply()
        whole.rolled_out(NAMESPACE, WEBHOOK)
        changed = [each for each in whole.apply() if not each.endswith(" unchanged")]
        # Of a budget kubectl replaces the selector each time, by the same.
        assert {each.partition("/")[0] for each in changed} <= {"poddisruptionbudget.policy"}
        label = f"{OURS},app.kubernetes.io/component=scheduler-own"
        arguments = _removal("scheduler-own")
        assert label in arguments
        kubectl.run(*arguments, within=120.0)
        kinds = arguments[-1]
        assert kubectl.names(kinds, "--all-namespaces", "--selector", label) == []
        kinds = "rolebinding,clusterrolebinding,poddisruptionbudget"
        found = str(kubectl.names(kinds, "--all-namespaces", "--selector", OURS))
        assert "kube-scheduler" not in found
        assert "gpu-turnstile-view" in found


@pytest.fixture
def chart(settings: Settings, kubectl: Kubectl, tmp_path: Path) -> Iterator[Path]:
    """The chart as a folder; its release and namespaces are removed in the end."""
    if not settings.deploy_image:
        pytest.skip("GPU_TURNSTILE_E2E_DEPLOY_IMAGE names no image of ours to install")
    found = kubectl.names("namespaces", "--selector", OURS)
    assert found == [], f"gpu-turnstile is installed: {found}"
    written = helm.write(tmp_path)
    try:
        yield written
    finally:
        _helm(settings, "uninstall", _RELEASE, "--ignore-not-found", "--wait")
        kubectl.run("delete", "namespace", NAMESPACE, "--ignore-not-found", within=180.0)


def test_a_release_is_installed_upgraded_rolled_back_and_uninstalled(
    chart: Path, settings: Settings, kubectl: Kubectl, report: Callable[[str], None]
) -> None:
    def deployments() -> dict[str, Any]:
        found = kubectl.items("deployments", f"--namespace={NAMESPACE}")
        return {each["metadata"]["name"]: each["spec"] for each in found}

    def gpu_pods_are_stamped() -> bool:
        resources = {"limits": {"tencent.com/vcuda-core": 10, "tencent.com/vcuda-memory": 1}}
        spec = {"containers": [{"name": "main", "image": "none", "resources": resources}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
        manifest = yaml.safe_dump(pod)
        made = kubectl.run(
            *("create", "--filename=-", "--dry-run=server", "--output=yaml"), stdin=manifest
        ).stdout
        return "tencent.com/predicate-time" in made or "tencent.com/admission-order" in made

    values = chart.parent / "values.yaml"
    parts = image_parts(settings.deploy_image)
    image = {"repository": parts["newName"], "tag": parts.get("newTag", "latest")}
    chosen: dict[str, Any] = {"image": image, "components": {"try-out": True}}
    chosen["scheduling"] = "own" if settings.scheduler_image else "stock"
    if settings.scheduler_image:
        second = image_parts(settings.scheduler_image)
        chosen["kubeSchedulerImage"] = {"repository": second["newName"], "tag": second["newTag"]}
    values.write_text(yaml.safe_dump(chosen), encoding="utf-8")
    options = ("--values", str(values), "--wait", "--timeout", _SECONDS)
    began = time.monotonic()
    _helm(settings, "install", _RELEASE, str(chart), "--create-namespace", *options)
    kubectl.run(
        *(f"--namespace={AGENTS}", "rollout", "status", AGENT, f"--timeout={_SECONDS}"),
        within=250.0,
    )
    wait("a webhook that the API server believes", gpu_pods_are_stamped)
    report(f"helm install ready after {time.monotonic() - began:.1f} s")

    hooks = "mutatingwebhookconfiguration/gpu-turnstile"
    opened = [{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]
    kubectl.run("patch", hooks, "--type=json", f"--patch={json.dumps(opened)}")
    run = run_doctor(settings).find("webhook-configuration", "error")["run"]
    assert run == f"helm upgrade {_RELEASE} YOUR-CHART --namespace {NAMESPACE} --reuse-values"
    # Helm 4 needs a flag to take a field from kubectl, Helm 3 does not.
    force = () if helm.run("version", "--short").stdout.startswith("v3") else ("--force-conflicts",)
    _helm(settings, *run.replace("YOUR-CHART", str(chart)).split()[1:], *force)
    assert kubectl.json("get", hooks)["webhooks"][0]["failurePolicy"] == "Fail"

    # The same version, with other settings of what makes certificates.
    more = ("--set", "components.view=true", "--set", "certs.env.GPU_TURNSTILE_CERTS_SETTLE=5")
    _helm(settings, "upgrade", _RELEASE, str(chart), *options, *more)
    assert "gpu-turnstile-view" in deployments()
    assert "GPU_TURNSTILE_CERTS_SETTLE" in str(deployments()["gpu-turnstile-certs"])
    assert gpu_pods_are_stamped(), "the caBundle is lost"

    _helm(settings, "rollback", _RELEASE, "1", "--wait", "--timeout", _SECONDS)
    assert "gpu-turnstile-view" not in deployments()
    assert "GPU_TURNSTILE_CERTS_SETTLE" not in str(deployments()["gpu-turnstile-certs"])
    assert gpu_pods_are_stamped()

    _helm(settings, "uninstall", _RELEASE, "--wait", "--timeout", _SECONDS)
    kinds = "deployments,daemonsets,services,serviceaccounts,networkpolicies,roles,rolebindings"
    kinds += ",clusterroles,clusterrolebindings,poddisruptionbudgets,validatingadmissionpolicies"
    kinds += ",mutatingwebhookconfigurations,validatingwebhookconfigurations"
    assert kubectl.names(kinds, "--all-namespaces", "--selector", OURS) == []


def _helm(settings: Settings, *arguments: str) -> None:
    done = helm.run(
        *arguments,
        *("--namespace", NAMESPACE, "--kubeconfig", str(settings.kubeconfig)),
        within=300.0,
    )
    assert done.returncode == 0, done.stdout + done.stderr
