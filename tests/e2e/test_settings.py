"""The switch that keeps the suite off a cluster nobody meant; runs with the unit tests."""

from pathlib import Path

import pytest

from tests.e2e.settings import NotAsked, Settings, read_settings

CLUSTER = {"KUBECONFIG": "/etc/kube"}


def test_defaults_fit_a_plain_kubelet() -> None:
    assert read_settings(CLUSTER, marks="e2e") == Settings(
        kubeconfig=Path("/etc/kube"),
        node=None,
        image="busybox:1",
        plugin_dir=Path("/var/lib/kubelet/device-plugins"),
        pod_resources_socket=Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        cri_socket=Path("/run/containerd/containerd.sock"),
        restart_kubelet=(),
        webhook_host="127.0.0.1",
        kubectl="",
        deploy_image="",
    )


def test_every_setting_has_a_variable() -> None:
    given = {
        "NODE": "n1",
        "IMAGE": "local/box:2",
        "PLUGIN_DIR": "/p",
        "POD_RESOURCES_SOCKET": "/r/k.sock",
        "CRI_SOCKET": "/run/crio/crio.sock",
        "RESTART_KUBELET": "systemctl restart 'my kubelet'",
        "WEBHOOK_HOST": "192.0.2.1",
        "KUBECTL": "/opt/kubectl",
        "DEPLOY_IMAGE": "registry.example/gpu-turnstile:1",
        "TOPOLOGY": "best-effort",
    }
    environ = CLUSTER | {f"GPU_TURNSTILE_E2E_{name}": value for name, value in given.items()}

    assert read_settings(environ, marks="e2e") == Settings(
        kubeconfig=Path("/etc/kube"),
        node="n1",
        image="local/box:2",
        plugin_dir=Path("/p"),
        pod_resources_socket=Path("/r/k.sock"),
        cri_socket=Path("/run/crio/crio.sock"),
        restart_kubelet=("systemctl", "restart", "my kubelet"),
        webhook_host="192.0.2.1",
        kubectl="/opt/kubectl",
        deploy_image="registry.example/gpu-turnstile:1",
        topology="best-effort",
    )


def test_the_switch_stands_in_for_the_selection() -> None:
    assert read_settings(CLUSTER | {"GPU_TURNSTILE_E2E": "1"}, marks="").node is None


@pytest.mark.parametrize(
    ("environ", "marks", "reason"),
    [
        (CLUSTER, "", "uses a real cluster: run it with `make e2e`, or set GPU_TURNSTILE_E2E=1"),
        (
            CLUSTER,
            "not e2e",
            "uses a real cluster: run it with `make e2e`, or set GPU_TURNSTILE_E2E=1",
        ),
        ({}, "e2e", "KUBECONFIG is not set: no cluster to run against"),
        ({"KUBECONFIG": ""}, "e2e", "KUBECONFIG is not set: no cluster to run against"),
        (
            CLUSTER | {"PYTEST_XDIST_WORKER": "gw0"},
            "e2e",
            "the suite needs its node for itself: run it without --numprocesses",
        ),
    ],
)
def test_the_suite_is_skipped_with_a_reason(
    environ: dict[str, str], marks: str, reason: str
) -> None:
    with pytest.raises(NotAsked) as raised:
        read_settings(environ, marks=marks)

    assert str(raised.value) == reason
