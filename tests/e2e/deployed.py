"""What is installed and what it works on, together, as the tests of it want them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.ground import Ground, wait
from tests.e2e.installation import NAMESPACE, Installation
from tests.e2e.kubectl import Kubectl
from tests.e2e.load import Load
from tests.e2e.manifests import CARDS
from tests.e2e.settings import Settings

KUBE_SCHEDULER = "gpu-turnstile-kube-scheduler"


@dataclass(frozen=True, slots=True)
class Deployed:
    """An installation, and the ground it works on."""

    ground: Ground
    installation: Installation
    kubectl: Kubectl

    def load(self) -> Load:
        """Clients that create GPU pods; none is kept, each must have got its stamp."""

        def create(number: int) -> None:
            pod = self.ground.make.single(f"load-{number}", 5, 4)
            made = self.ground.cluster.create(pod, dry_run=True)
            assert self.ground.names.admission_order in made["metadata"]["annotations"]

        return Load(create)

    def wait_for_cards(self) -> None:
        wait("the node's cards", lambda: self.ground.offered() == CARDS * 100)


@contextmanager
def installing(
    settings: Settings, kubectl: Kubectl, folder: Path, **wanted: Any
) -> Iterator[Installation]:
    """What is to be installed, as *wanted*; removed in the end, whatever became of it."""
    if not settings.deploy_image:
        pytest.skip("GPU_TURNSTILE_E2E_DEPLOY_IMAGE names no image of ours to install")
    installation = Installation(kubectl, folder, settings.deploy_image, **wanted)
    found = installation.leftovers()
    assert found == [], f"gpu-turnstile is installed: {found}"
    try:
        yield installation
    finally:
        installation.remove()


@contextmanager
def deploying_scheduler(
    settings: Settings, kubectl: Kubectl, ground: Ground, folder: Path, *components: str
) -> Iterator[Deployed]:
    """Install with our own kube-scheduler, and wait until it is ready too."""
    if not settings.scheduler_image:
        pytest.skip("GPU_TURNSTILE_E2E_SCHEDULER_IMAGE names no image of kube-scheduler")
    wanted = {
        "components": ("scheduler-own", *components),
        "images": {"registry.k8s.io/kube-scheduler": settings.scheduler_image},
    }
    with deploying(settings, kubectl, ground, folder, **wanted) as deployed:
        deployed.installation.rolled_out(NAMESPACE, f"deployment/{KUBE_SCHEDULER}")
        yield deployed


@contextmanager
def deploying(
    settings: Settings, kubectl: Kubectl, ground: Ground, folder: Path, **wanted: Any
) -> Iterator[Deployed]:
    """What is installed, ready, with the node's cards; removed in the end."""
    with installing(settings, kubectl, folder, **wanted) as installation:
        began = time.monotonic()
        installation.apply()
        installation.wait_until_ready()
        deployed = Deployed(ground, installation, kubectl)
        deployed.wait_for_cards()
        ground.report(f"installed and ready after {time.monotonic() - began:.1f} s")
        yield deployed
