"""The overlay gpu-operator on a node where a test does what NVIDIA's operator does to it.

The operator's part is its labels, its file, its RuntimeClass and a driver container's root; the
kubelet, the container runtime and all that is ours are real. Of the overlay the cards alone are
changed, as in ``try-out``: no driver is loaded for NVML.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.agent.driver.driver_host import DriverHost
from tests.deploy.manifests import DEPLOY
from tests.e2e.cluster import Json, Kubectl
from tests.e2e.ground import Ground, is_ready, phase, wait
from tests.e2e.installation import AGENTS, NAMESPACE, WEBHOOK, Deployed, installing
from tests.e2e.settings import Settings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

RUN, MODULE = Path("/run/nvidia"), Path("/sys/module/nvidia")
READY = RUN / "validations" / "toolkit-ready"
PRESENT, TOOLKIT = "nvidia.com/gpu.present", "nvidia.com/gpu.deploy.container-toolkit"
CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "runc",
}
"""Of containerd's usual handler: NVIDIA's runtime is a runc that adds cards."""


@contextmanager
def _operator(kubectl: Kubectl, node: str) -> Iterator[None]:
    """Set up a node as the operator does, without the file that marks it ready."""
    for each in (RUN, MODULE):
        if each.exists():
            pytest.skip(f"this node has an NVIDIA driver or operator of its own: {each}")
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    if not any(" / / " in each and " shared:" in each for each in mounts):
        pytest.skip("the root of this node is a private mount: mount --make-rshared /")
    made = kubectl.names("runtimeclass", "nvidia")
    if not made:
        kubectl.run("create", "--filename=-", stdin=json.dumps(CLASS))
    try:
        DriverHost(RUN / "driver").install("550.54.15")
        kubectl.run("label", "node", node, f"{PRESENT}=true", f"{TOOLKIT}=true")
        yield
    finally:
        kubectl.run("label", "node", node, f"{PRESENT}-", f"{TOOLKIT}-")
        if not made:
            kubectl.run("delete", "runtimeclass", "nvidia")
        shutil.rmtree(RUN)


@pytest.fixture
def deployed(
    settings: Settings, kubectl: Kubectl, ground: Ground, tmp_path: Path
) -> Iterator[Deployed]:
    """The overlay, applied, perhaps not ready."""
    tried = DEPLOY / "components" / "try-out"
    (tmp_path / "cards.yaml").write_bytes((tried / "cards.yaml").read_bytes())
    (tmp_path / "agent.yaml").write_bytes((tried / "agent.yaml").read_bytes())
    (generator,) = yaml.safe_load((tried / "kustomization.yaml").read_bytes())["configMapGenerator"]
    target = {"kind": "DaemonSet", "name": "gpu-turnstile-agent"}
    more = {
        "configMapGenerator": [generator],
        "patches": [{"path": "agent.yaml", "target": target}],
    }
    with (
        _operator(kubectl, ground.node),
        installing(settings, kubectl, tmp_path, overlay="gpu-operator", more=more) as installation,
    ):
        installation.apply()
        yield Deployed(ground, installation, kubectl)
        ground.clear()


def _pods(deployed: Deployed, program: str) -> list[Json]:
    selector = f"--selector=app.kubernetes.io/name=gpu-turnstile-{program}"
    return deployed.kubectl.items("pods", f"--namespace={AGENTS}", selector)


def test_the_agent_starts_and_ends_with_the_operators_driver(deployed: Deployed) -> None:
    ground, kubectl = deployed.ground, deployed.kubectl

    def label(value: str) -> None:
        kubectl.run("label", "node", ground.node, "--overwrite", f"{TOOLKIT}={value}")

    def waits() -> bool:
        pods = _pods(deployed, "agent")
        states = [s for pod in pods for s in pod["status"].get("initContainerStatuses", ())]
        return [each["state"].keys() for each in states] == [{"running"}]

    # After a boot: the driver is not ready.
    wait("an agent that waits for the driver", waits)
    log = ("logs", f"--namespace={AGENTS}", "daemonset/gpu-turnstile-agent", "--container=driver")
    line = f"waiting for the GPU Operator: {READY} is missing"
    wait("the line of docs/gpu-operator.md", lambda: line in kubectl.run(*log).stdout)
    (agent,) = _pods(deployed, "agent")
    assert agent["spec"]["runtimeClassName"] == "nvidia"
    assert ground.offered() == 0

    # The operator is ready.
    READY.touch()
    deployed.installation.rolled_out(NAMESPACE, WEBHOOK)
    wait("the agent", lambda: all(map(is_ready, _pods(deployed, "agent"))))
    deployed.wait_for_cards()
    pods = ground.run(ground.make.single("share", 10, 4))
    assert {name: phase(pod) for name, pod in pods.items()} == {"share": "Running"}
    assert "NVIDIA_VISIBLE_DEVICES=void" in ground.cluster.log("share", "main")

    # It replaces the driver: no process may have the cards open, also not the agent.
    label("paused-for-driver-upgrade")
    wait("no agent", lambda: not _pods(deployed, "agent"))
    wait("unhealthy cards", lambda: ground.offered() == 0)
    assert all(map(is_ready, _pods(deployed, "proxy")))
    assert phase(ground.cluster.pods()["share"]) == "Running"
    label("true")
    deployed.wait_for_cards()
    assert phase(ground.cluster.pods()["share"]) == "Running"
