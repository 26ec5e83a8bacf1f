"""``kubectl gpu doctor`` on an installation: each broken part is reported, then repaired."""

import base64
import json
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.cluster import Json, KubectlError, succeeds
from tests.e2e.ground import wait
from tests.e2e.installation import (
    AGENT,
    AGENTS,
    CERTS,
    NAMESPACE,
    Deploy,
    Deployed,
    DoctorResult,
    run_doctor,
)
from tests.e2e.settings import Settings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

EXTENDER = "deployment/gpu-turnstile-scheduler"
POLICY = "validatingadmissionpolicybinding/gpu-turnstile-{}"
HOOKS = "mutatingwebhookconfiguration/gpu-turnstile"
TRUE_WARNINGS = {("enforcement", "warning"), ("extender-asked", "warning")}
"""``try-out`` enforces no shares, and no scheduler calls the extender."""


class Doctor:
    """The plugin as it is installed, with an administrator's kubeconfig."""

    def __init__(self, settings: Settings, deployed: Deployed) -> None:
        self.deployed = deployed
        self._settings = settings

    def run(self, *options: str, expect: int | None = None) -> DoctorResult:
        result = run_doctor(self._settings, *options)
        assert expect in (None, result.code), result
        return result

    def until(
        self, what: str, holds: Callable[[DoctorResult], object], within: float = 90.0
    ) -> DoctorResult:
        last: list[DoctorResult] = []

        def held() -> object:
            last[:] = [self.run()]
            return holds(last[0])

        try:
            wait(what, held, within=within)
        except AssertionError as error:
            bad = [each for each in last[0].items if each["level"] != "ok"]
            raise AssertionError(f"{error}: {json.dumps(bad, indent=1)}") from error
        return last[0]

    def error(self, check: str, text: str) -> Json:
        """Wait for an error of a check; check the exit code."""
        wanted = f"an error of {check}"
        result = self.until(wanted, lambda result: result.find(check, "error", text))
        assert result.code == 1
        return result.find(check, "error", text)

    def healthy(self) -> DoctorResult:
        return self.until("nothing is wrong", lambda result: result.wrong == TRUE_WARNINGS, 180.0)


@pytest.fixture(scope="module")
def whole(settings: Settings, deploy: Deploy) -> Iterator[Doctor]:
    with deploy(components=("scheduler-extender",)) as deployed:
        deployed.installation.rolled_out(NAMESPACE, EXTENDER)
        yield Doctor(settings, deployed)


@pytest.fixture
def doctor(whole: Doctor) -> Iterator[Doctor]:
    """Nothing is wrong before, and again once what was installed is applied again."""
    whole.healthy()
    yield whole
    whole.deployed.ground.clear()
    whole.deployed.installation.apply()
    whole.deployed.installation.wait_until_ready()
    whole.healthy()


@pytest.fixture
def no_certs(doctor: Doctor) -> Iterator[Doctor]:
    """Without the program that writes caBundles."""
    kubectl = doctor.deployed.kubectl.inside(NAMESPACE)
    kubectl.run("scale", CERTS, "--replicas=0")
    pods = "--selector=app.kubernetes.io/name=gpu-turnstile-certs"
    kubectl.run("wait", "pods", pods, "--for=delete", "--timeout=50s")
    yield doctor
    kubectl.run("scale", CERTS, "--replicas=1")


def _patch(doctor: Doctor, what: str, *operations: Json, options: tuple[str, ...] = ()) -> None:
    patch = json.dumps(operations)
    doctor.deployed.kubectl.run("patch", what, "--type=json", f"--patch={patch}", *options)


def test_a_new_installation_has_only_the_expected_warnings(doctor: Doctor) -> None:
    result = doctor.run(expect=0)
    assert result.wrong == TRUE_WARNINGS
    assert "1 of 1" in next(e["text"] for e in result.items if e["check"] == "agents")


def test_a_user_without_permissions_sees_everything_as_unknown(doctor: Doctor) -> None:
    result = doctor.run("--as=e2e-nobody", expect=3)
    assert {each["level"] for each in result.items if each["check"] != "kubernetes-version"} == {
        "unknown"
    }
    for each in result.items:
        assert each["level"] == "ok" or 'User "e2e-nobody" cannot' in each["text"], each


def test_an_unreachable_webhook(doctor: Doctor) -> None:
    doctor.deployed.installation.scale_webhook(0)
    doctor.error("webhook", "the API server cannot reach the webhook")
    found = doctor.error(
        "webhook-replicas", "Deployment gpu-turnstile-webhook has no pods: spec.replicas is 0"
    )
    output = doctor.deployed.kubectl.run(*found["run"].split()[1:]).stdout
    assert "0 desired" in output


def test_a_bundle_of_another_authority(no_certs: Doctor) -> None:
    doctor, kubectl = no_certs, no_certs.deployed.kubectl
    other = kubectl.json("get", "configmap", "kube-root-ca.crt", f"--namespace={NAMESPACE}")
    encoded = base64.b64encode(other["data"]["ca.crt"].encode()).decode()
    hooks = range(len(kubectl.json("get", HOOKS)["webhooks"]))
    path = "/webhooks/{}/clientConfig/caBundle"
    _patch(
        doctor,
        HOOKS,
        *({"op": "replace", "path": path.format(each), "value": encoded} for each in hooks),
    )
    found = doctor.error("webhook", "does not trust the webhook's certificate")
    kubectl.run(f"--namespace={NAMESPACE}", "scale", CERTS, "--replicas=1")
    kubectl.run(*found["run"].split()[1:])
    doctor.healthy()


def test_a_policy_without_its_binding_and_a_missing_one(doctor: Doctor) -> None:
    doctor.deployed.kubectl.run("delete", POLICY.format("stamps"))
    doctor.error("policies", "without a binding: gpu-turnstile-stamps")
    doctor.deployed.kubectl.run("delete", "validatingadmissionpolicy/gpu-turnstile-requests")
    doctor.error("policies", "missing: gpu-turnstile-requests")


def test_missing_agents(doctor: Doctor) -> None:
    doctor.deployed.kubectl.run(f"--namespace={AGENTS}", "delete", AGENT)
    found = doctor.error("agents", "DaemonSet gpu-turnstile-agent is missing")
    assert found["run"] == "kubectl apply -k YOUR-KUSTOMIZATION"
    result = doctor.until(
        "leftovers are reported", lambda result: ("leftovers", "warning") in result.wrong
    )
    assert result.find("leftovers", "warning")["run"] == "kubectl apply -k YOUR-KUSTOMIZATION"
    assert ("enforcement", "unknown") in result.wrong


def test_a_node_is_no_error_while_agent_and_proxy_are_replaced(doctor: Doctor) -> None:
    proxies = "--selector=app.kubernetes.io/name=gpu-turnstile-proxy"
    doctor.deployed.kubectl.run(f"--namespace={AGENTS}", "delete", "pods", proxies)
    doctor.deployed.installation.roll_agents()

    def settled(result: DoctorResult) -> bool:
        assert ("allocatable", "error") not in result.wrong, result
        return result.wrong == TRUE_WARNINGS

    doctor.until("the node offers its cards again", settled)


def test_an_allocation_annotation_that_differs(doctor: Doctor) -> None:
    deployed, ground = doctor.deployed, doctor.deployed.ground
    key = ground.names.gpu_allocation
    pod = ground.run(ground.make.single("share", 10, 4))["share"]
    (container,) = json.loads(pod["metadata"]["annotations"][key])
    assert ("allocations", "ok") in {(e["check"], e["level"]) for e in doctor.healthy().items}
    forged = json.loads(pod["metadata"]["annotations"][key])
    forged[container]["cores"] += 1
    where = f"--namespace={ground.cluster.namespace}"
    change = ("annotate", "pod", "share", where, "--overwrite", f"{key}={json.dumps(forged)}")
    with pytest.raises(KubectlError, match="of an existing pod"):
        deployed.kubectl.run(*change)
    deployed.kubectl.run("delete", POLICY.format("pod-annotations"))
    wait("no policy forbids it", lambda: succeeds(lambda: deployed.kubectl.run(*change)))
    found = doctor.error("allocations", "holds other devices in the kubelet")
    assert f"pod {ground.cluster.namespace}/share: container {container} " in found["text"]
    assert found["run"] == f"kubectl gpu explain -n {ground.cluster.namespace} share"


def test_an_unreachable_extender(doctor: Doctor) -> None:
    _patch(
        doctor,
        EXTENDER,
        {"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "e2e:no"},
        {"op": "replace", "path": "/spec/strategy", "value": {"type": "Recreate"}},
        options=(f"--namespace={NAMESPACE}",),
    )
    found = doctor.error("scheduler-extender", "pods are ready: scheduler: ")
    output = doctor.deployed.kubectl.run(*found["run"].split()[1:]).stdout
    assert "e2e:no" in output
    doctor.error("extender-lease", "")
