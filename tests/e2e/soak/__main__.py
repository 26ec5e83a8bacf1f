"""``python -m tests.e2e.soak``: pods and disturbances for hours, and what grows meanwhile."""

import json
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click

from tests.deploy.kustomize import kubectl as find_kubectl
from tests.e2e.cluster import Cluster, Json, Kubectl
from tests.e2e.ground import Ground, choose_node, occupied
from tests.e2e.installation import AGENTS, Deployed, deploying, deploying_scheduler
from tests.e2e.settings import NotRequested, Settings, read_settings
from tests.e2e.soak.run import Soak


@click.command(context_settings={"show_default": True})
@click.option("--hours", type=click.FloatRange(0.1), default=1.5, help="How long.")
@click.option("--every", type=click.FloatRange(0.1), default=1.5, help="Seconds from pod to pod.")
@click.option("--report", type=click.Path(path_type=Path), required=True, help="Markdown file.")
def main(*, hours: float, every: float, report: Path) -> None:
    """Install, soak and remove gpu-turnstile; exit with 1 if there are findings.

    Beside the report, a file with the suffix ``.jsonl`` gets all readings.
    """
    try:
        settings = read_settings(os.environ, marks="e2e")
    except NotRequested as reason:
        raise click.ClickException(str(reason)) from reason
    if not settings.deploy_image:
        raise click.ClickException("GPU_TURNSTILE_E2E_DEPLOY_IMAGE names no image")
    with _deployed(settings) as deployed:
        soak = Soak(deployed, seconds=hours * 3600, every=every, report=report)
        findings = soak.run()
    click.echo(report.read_text(encoding="utf-8"))
    sys.exit(bool(findings))


@contextmanager
def _deployed(settings: Settings) -> Iterator[Deployed]:
    """Install the overlay ``try-out`` with limits, and our kube-scheduler if there is an image."""
    kubectl = Kubectl(settings.kubectl or find_kubectl(), settings.kubeconfig)
    cluster = Cluster(settings.kubeconfig, f"gpu-turnstile-e2e-{secrets.token_hex(3)}")
    node = choose_node(cluster.nodes(), settings.node, socket.gethostname())
    if node is None:
        raise click.ClickException("no node is named as this host: set GPU_TURNSTILE_E2E_NODE")
    ground = Ground(settings, cluster, node=node, report=click.echo, enforced=True)
    with occupied(ground), tempfile.TemporaryDirectory() as folder:
        (driver := Path(folder) / "driver").mkdir()  # what containers find as the driver's
        (written := Path(folder) / "installation").mkdir()
        deploy = partial(deploying, settings, kubectl, ground, written, more=_patch(driver))
        if settings.scheduler_image:
            with deploying_scheduler(deploy, settings, "vcuda") as deployed:
                yield deployed
        else:
            with deploy(components=("vcuda",)) as deployed:
                yield deployed


def _patch(driver: Path) -> Json:
    """Let the agent mount this folder as the driver's, and cards become healthy again soon."""
    environment = [
        {"name": "GPU_TURNSTILE_DRIVER_DIR", "value": str(driver)},
        {"name": "GPU_TURNSTILE_RECOVERY_QUIET", "value": "10s"},
    ]
    containers = [{"name": "agent", "env": environment}]
    patch = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "gpu-turnstile-agent", "namespace": AGENTS},
        "spec": {"template": {"spec": {"containers": containers}}},
    }
    return {"patches": [{"patch": json.dumps(patch)}]}


if __name__ == "__main__":
    main()
