"""The suite's settings, from environment variables; README.md beside it lists them."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SWITCH = "GPU_TURNSTILE_E2E"
"""Set to 1, it lets a run that was not started with ``-m e2e`` use the cluster."""


class NotRequested(Exception):
    """The suite does not run; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Which cluster, and what is where on its node: README.md has the meanings."""

    kubeconfig: Path
    node: str | None
    image: str
    plugin_dir: Path
    pod_resources_socket: Path
    cri_socket: Path
    restart_kubelet: tuple[str, ...]
    kill_kubelet: tuple[str, ...]
    webhook_host: str
    kubectl: str
    deploy_image: str
    scheduler_image: str = ""
    topology: str = ""
    kills: int = 10
    sweep_pods: int = 100
    restart_runtime: tuple[str, ...] = ()


def read_settings(environ: Mapping[str, str], *, marks: str) -> Settings:
    """Read them: a cluster that merely happens to be in ``$KUBECONFIG`` is never touched."""
    if marks.strip() != "e2e" and environ.get(SWITCH) != "1":
        raise NotRequested(f"uses a real cluster: run it with `make e2e`, or set {SWITCH}=1")
    if not environ.get("KUBECONFIG"):
        raise NotRequested("KUBECONFIG is not set: no cluster to run against")
    if "PYTEST_XDIST_WORKER" in environ:
        raise NotRequested("the suite needs its node for itself: run it without --numprocesses")

    def get(name: str, default: str = "") -> str:
        return environ.get(f"{SWITCH}_{name}") or default

    return Settings(
        kubeconfig=Path(environ["KUBECONFIG"]),
        node=get("NODE") or None,
        image=get("IMAGE", "busybox:1"),
        plugin_dir=Path(get("PLUGIN_DIR", "/var/lib/kubelet/device-plugins")),
        pod_resources_socket=Path(
            get("POD_RESOURCES_SOCKET", "/var/lib/kubelet/pod-resources/kubelet.sock")
        ),
        cri_socket=Path(get("CRI_SOCKET", "/run/containerd/containerd.sock")),
        restart_kubelet=tuple(shlex.split(get("RESTART_KUBELET"))),
        kill_kubelet=tuple(shlex.split(get("KILL_KUBELET"))),
        webhook_host=get("WEBHOOK_HOST", "127.0.0.1"),
        kubectl=get("KUBECTL"),
        deploy_image=get("DEPLOY_IMAGE"),
        scheduler_image=get("SCHEDULER_IMAGE"),
        topology=get("TOPOLOGY"),
        kills=int(get("KILLS", "10")),
        sweep_pods=int(get("SWEEP_PODS", "100")),
        restart_runtime=tuple(shlex.split(get("RESTART_RUNTIME"))),
    )
