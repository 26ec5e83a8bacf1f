"""``kubectl gpu doctor`` on what is installed: each thing that is broken is named, and mended."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.cluster import Json
from tests.e2e.deployed import Deployed, installing, ready
from tests.e2e.doctor import Told, ask
from tests.e2e.ground import Ground, wait
from tests.e2e.installation import AGENT, AGENTS, CERTS, NAMESPACE, Installation
from tests.e2e.kubectl import Kubectl, KubectlError
from tests.e2e.settings import Settings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

COMPONENTS = ("scheduler-extender",)
EXTENDER = "deployment/gpu-turnstile-scheduler"
POLICY = "validatingadmissionpolicybinding/gpu-turnstile-{}"
HOOKS = "mutatingwebhookconfiguration/gpu-turnstile"
TRUE_WARNINGS = {("enforcement", "warning"), ("extender-asked", "warning")}
"""Of what is tried out nothing holds a container to its share, and no scheduler asks."""


class Doctor:
    """The plugin as it is installed, with an administrator's kubeconfig."""

    def __init__(self, settings: Settings, deployed: Deployed) -> None:
        self.deployed = deployed
        self._settings = settings

    def ask(self, *options: str, expect: int | None = None) -> Told:
        told = ask(self._settings, *options)
        assert expect in (None, told.code), told
        return told

    def until(self, what: str, holds: Callable[[Told], object], within: float = 90.0) -> Told:
        """Ask until something holds of what it says, and give that."""
        last: list[Told] = []

        def held() -> object:
            last[:] = [self.ask()]
            return holds(last[0])

        try:
            wait(what, held, within=within)
        except AssertionError as error:
            bad = [each for each in last[0].items if each["level"] != "ok"]
            raise AssertionError(f"{error}: {json.dumps(bad, indent=1)}") from error
        return last[0]

    def error(self, check: str, text: str) -> Json:
        """Wait for an error of a check; the exit code says that there is one."""
        told = self.until(
            f"an error of {check}",
            lambda told: any(
                (each["check"], each["level"]) == (check, "error") and text in each["text"]
                for each in told.items
            ),
        )
        assert told.code == 1
        return next(e for e in told.items if e["check"] == check and text in e["text"])

    def healthy(self) -> Told:
        return self.until("nothing is wrong", lambda told: told.wrong == TRUE_WARNINGS, 180.0)


@pytest.fixture(scope="module")
def installation(
    settings: Settings, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("doctor")
    with installing(settings, kubectl, folder, components=COMPONENTS) as installation:
        yield installation


@pytest.fixture(scope="module")
def whole(
    settings: Settings, installation: Installation, ground: Ground, kubectl: Kubectl
) -> Doctor:
    deployed = ready(ground, installation, kubectl)
    installation.rolled_out(NAMESPACE, EXTENDER)
    return Doctor(settings, deployed)


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
    """Nobody writes a caBundle, as long as a test wants it."""
    kubectl = doctor.deployed.kubectl
    kubectl.run(f"--namespace={NAMESPACE}", "scale", CERTS, "--replicas=0")
    pods = "--selector=app.kubernetes.io/name=gpu-turnstile-certs"
    kubectl.run(f"--namespace={NAMESPACE}", "wait", "pods", pods, "--for=delete", "--timeout=50s")
    yield doctor
    kubectl.run(f"--namespace={NAMESPACE}", "scale", CERTS, "--replicas=1")


def _patch(doctor: Doctor, what: str, *operations: Json, options: tuple[str, ...] = ()) -> None:
    patch = json.dumps(operations)
    doctor.deployed.kubectl.run("patch", what, "--type=json", f"--patch={patch}", *options)


def test_nothing_is_wrong_but_what_was_chosen(doctor: Doctor) -> None:
    told = doctor.ask(expect=0)
    assert told.wrong == TRUE_WARNINGS
    assert "1 of 1" in next(e["text"] for e in told.items if e["check"] == "agents")


def test_a_user_without_rights_learns_that_nothing_is_known(doctor: Doctor) -> None:
    told = doctor.ask("--as=e2e-nobody", expect=3)
    assert {each["level"] for each in told.items if each["check"] != "kubernetes-version"} == {
        "unknown"
    }
    for each in told.items:
        assert each["level"] == "ok" or 'User "e2e-nobody" cannot' in each["text"], each


def test_a_webhook_that_is_away(doctor: Doctor) -> None:
    doctor.deployed.installation.scale_webhook(0)

    doctor.error("webhook", "the API server cannot reach the webhook")
    found = doctor.error("webhook-replicas", "0 of 0 pods are ready")
    said = doctor.deployed.kubectl.run(*found["run"].split()[1:]).out
    assert "0 desired" in said


def test_a_bundle_of_another_authority(no_certs: Doctor) -> None:
    doctor, kubectl = no_certs, no_certs.deployed.kubectl
    other = kubectl.json("get", "configmap", "kube-root-ca.crt", f"--namespace={NAMESPACE}")
    encoded = _base64(other["data"]["ca.crt"])
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


def test_no_bundle(no_certs: Doctor) -> None:
    doctor, kubectl = no_certs, no_certs.deployed.kubectl
    hooks = range(len(kubectl.json("get", HOOKS)["webhooks"]))
    path = "/webhooks/{}/clientConfig/caBundle"
    _patch(doctor, HOOKS, *({"op": "remove", "path": path.format(each)} for each in hooks))

    doctor.error("webhook", "does not trust the webhook's certificate")
    doctor.error("webhook-configuration", "no caBundle: pods.gpu-turnstile.io")


def test_an_open_gate(doctor: Doctor) -> None:
    hooks = doctor.deployed.kubectl.json("get", HOOKS)["webhooks"]
    (place,) = (n for n, each in enumerate(hooks) if each["name"] == "pods.gpu-turnstile.io")
    _patch(
        doctor,
        HOOKS,
        {"op": "replace", "path": f"/webhooks/{place}/failurePolicy", "value": "Ignore"},
    )

    found = doctor.error("webhook-configuration", "has failurePolicy Ignore")
    assert found["run"] == "kubectl apply -k YOUR-KUSTOMIZATION"


def test_no_configuration(doctor: Doctor) -> None:
    doctor.deployed.kubectl.run("delete", HOOKS)

    doctor.error("webhook-configuration", "there is no MutatingWebhookConfiguration")
    doctor.error("webhook", "the API server does not call the webhook")


def test_a_policy_without_its_binding_and_one_that_is_gone(doctor: Doctor) -> None:
    doctor.deployed.kubectl.run("delete", POLICY.format("stamps"))
    doctor.error("policies", "without a binding: gpu-turnstile-stamps")

    doctor.deployed.kubectl.run("delete", "validatingadmissionpolicy/gpu-turnstile-requests")
    doctor.error("policies", "not there: gpu-turnstile-requests")


def test_agents_that_are_gone(doctor: Doctor) -> None:
    doctor.deployed.kubectl.run(f"--namespace={AGENTS}", "delete", AGENT)

    found = doctor.error("agents", "there is no DaemonSet gpu-turnstile-agent")
    assert found["run"] == "kubectl apply -k YOUR-KUSTOMIZATION"
    told = doctor.until("what it left is told", lambda told: ("leftovers", "warning") in told.wrong)
    assert told.one("leftovers", "warning")["run"] == "kubectl apply -k YOUR-KUSTOMIZATION"
    assert ("enforcement", "unknown") in told.wrong


def test_a_proxy_that_is_not_ready(doctor: Doctor) -> None:
    """A proxy is replaced when its pod is deleted, and not before."""
    image = {"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "e2e:no"}
    _patch(doctor, "daemonset/gpu-turnstile-proxy", image, options=(f"--namespace={AGENTS}",))
    try:
        _delete_proxies(doctor)
        found = doctor.error("proxies", "not ready: proxy: ")
        assert found["nodes"] == [doctor.deployed.ground.node]
    finally:
        doctor.deployed.installation.apply()
        _delete_proxies(doctor)


def test_a_node_is_not_called_wrong_while_agent_and_proxy_are_new(doctor: Doctor) -> None:
    _delete_proxies(doctor)
    doctor.deployed.installation.roll_agents()

    def settled(told: Told) -> bool:
        assert ("allocatable", "error") not in told.wrong, told
        return told.wrong == TRUE_WARNINGS

    doctor.until("the node offers its cards again", settled)


def _delete_proxies(doctor: Doctor) -> None:
    proxies = "--selector=app.kubernetes.io/name=gpu-turnstile-proxy"
    doctor.deployed.kubectl.run(f"--namespace={AGENTS}", "delete", "pods", proxies)


def test_a_node_whose_pods_do_not_come(doctor: Doctor) -> None:
    with _node(doctor, "e2e-no-kubelet"):
        found = doctor.error("agents", "not ready: 0/2 nodes are available")
        assert found["nodes"] == ["e2e-no-kubelet"]
        said = doctor.deployed.kubectl.run(*found["run"].split()[1:]).out
        assert "FailedScheduling" in said
        doctor.error("allocatable", "the agent has not written which cards it has")
        doctor.ask(f"--node={doctor.deployed.ground.node}", expect=0)


def test_a_node_that_another_plugin_serves(doctor: Doctor) -> None:
    with _node(doctor, "e2e-other-plugin") as node:
        both = [
            {"op": "add", "path": f"/status/{field}", "value": {"nvidia.com/gpu": "8"}}
            for field in ("capacity", "allocatable")
        ]
        _patch(doctor, f"node/{node}", *both, options=("--subresource=status",))
        found = doctor.error("other-plugins", "nvidia.com/gpu is served here too")
        assert found["nodes"] == [node]


def test_an_inventory_that_says_something_else(doctor: Doctor) -> None:
    """Nobody may write one while the policies are there."""
    deployed, ground = doctor.deployed, doctor.deployed.ground
    key = ground.names.gpu_cards
    cards = json.loads(ground.cluster.node(ground.node)["metadata"]["annotations"][key])
    cards["cards"].pop()
    with pytest.raises(KubectlError, match="gpu-cards is the inventory"):
        _annotate(doctor, key, json.dumps(cards))
    deployed.kubectl.run("delete", POLICY.format("node-annotations"))
    wait("nobody forbids it", lambda: _may(lambda: _annotate(doctor, key, json.dumps(cards))))

    found = doctor.error("allocatable", "vcuda-core: the node's status offers 1200, its cards")
    assert found["nodes"] == [ground.node]
    assert found["text"].endswith("have 1100")
    deployed.installation.apply()
    deployed.installation.roll_agents()  # an agent that begins writes what it has


def test_a_record_that_says_something_else(doctor: Doctor) -> None:
    deployed, ground = doctor.deployed, doctor.deployed.ground
    key = ground.names.gpu_allocation
    pod = ground.run(ground.make.single("share", 10, 4))["share"]
    (container,) = json.loads(pod["metadata"]["annotations"][key])
    assert ("records", "ok") in {(e["check"], e["level"]) for e in doctor.healthy().items}
    forged = json.loads(pod["metadata"]["annotations"][key])
    forged[container]["cores"] += 1
    where = f"--namespace={ground.cluster.namespace}"
    change = ("annotate", "pod", "share", where, "--overwrite", f"{key}={json.dumps(forged)}")
    with pytest.raises(KubectlError, match="once the pod is there"):
        deployed.kubectl.run(*change)
    deployed.kubectl.run("delete", POLICY.format("pod-annotations"))
    wait("nobody forbids it", lambda: _may(lambda: deployed.kubectl.run(*change)))

    found = doctor.error("records", "holds something else by the kubelet")
    assert f"pod {ground.cluster.namespace}/share: container {container} " in found["text"]
    assert found["run"] == f"kubectl gpu explain -n {ground.cluster.namespace} share"


def test_objects_of_a_component_that_was_taken_out(doctor: Doctor) -> None:
    kubectl = doctor.deployed.kubectl
    kubectl.run(f"--namespace={NAMESPACE}", "delete", EXTENDER)
    warnings = {("enforcement", "warning"), ("leftovers", "warning")}
    told = doctor.until("a warning, and no error", lambda told: told.wrong == warnings)
    assert told.code == 0
    found = told.one("leftovers", "warning")
    assert "has no Deployment gpu-turnstile-scheduler any more" in found["text"]

    kubectl.run(*found["run"].split()[1:], within=120.0)
    doctor.until("nothing is left", lambda told: ("leftovers", "warning") not in told.wrong)


def test_an_extender_that_is_away(doctor: Doctor) -> None:
    _patch(
        doctor,
        EXTENDER,
        {"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "e2e:no"},
        {"op": "replace", "path": "/spec/strategy", "value": {"type": "Recreate"}},
        options=(f"--namespace={NAMESPACE}",),
    )

    found = doctor.error("scheduler-extender", "pods are ready: scheduler: ")
    said = doctor.deployed.kubectl.run(*found["run"].split()[1:]).out
    assert "e2e:no" in said
    doctor.error("extender-lease", "")


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _annotate(doctor: Doctor, key: str, value: str) -> None:
    node = doctor.deployed.ground.node
    doctor.deployed.kubectl.run("annotate", "node", node, "--overwrite", f"{key}={value}")


def _may(change: Callable[[], object]) -> bool:
    try:
        change()
    except KubectlError:
        return False
    return True


@contextmanager
def _node(doctor: Doctor, name: str) -> Iterator[str]:
    """A node that has no kubelet, as DaemonSets of what is tried out choose any."""
    kubectl = doctor.deployed.kubectl
    labels = {"kubernetes.io/os": "linux", "kubernetes.io/hostname": name}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    kubectl.run("create", "--filename=-", given=json.dumps(node))
    try:
        yield name
    finally:
        kubectl.run("delete", "node", name)
        # Of a node that is gone nobody ends the pods that were never bound.
        kubectl.run(
            *("delete", "pods", f"--namespace={AGENTS}", "--field-selector=status.phase=Pending"),
            *("--force", "--grace-period=0"),
        )
