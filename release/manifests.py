"""Renders one YAML file for each overlay, for ``kubectl apply -f``."""

import shutil
import subprocess
import sys
from pathlib import Path

IMAGE = "ghcr.io/gpu-turnstile/gpu-turnstile"
PROXY_IMAGE = f"{IMAGE}-proxy"


_SEEING = ("gpu-turnstile-kube-scheduler", "gpu-turnstile-scheduler", "gpu-turnstile-claims")
"""Workloads with which some scheduler sees cards."""
_BLIND = """\
# WITHOUT A SCHEDULER THAT SEES CARDS: pods can be sent to nodes where no single card has room, and
# fail there, those of a Deployment without end. gpu-turnstile-scheduler-own.yaml has one.
"""


class NoKubectl(Exception):
    """kubectl, which renders kustomizations, is not installed."""


def kubectl() -> str:
    """Find kubectl, beside Python or on the path.

    Raises:
        NoKubectl: it is not installed.
    """
    beside = Path(sys.executable).with_name("kubectl")
    found = str(beside) if beside.exists() else shutil.which("kubectl")
    if found is None:
        raise NoKubectl(
            "kubectl, which renders the overlays, is not installed: install it, or run "
            "`python -m tests.deploy.get_kubectl`, which puts one beside Python"
        )
    return found


def folders(deploy: Path) -> dict[str, Path]:
    """Return the folders of all kustomizations to render, by the names of their files."""
    overlays = sorted(each for each in (deploy / "overlays").iterdir() if each.is_dir())
    return {"gpu-turnstile": deploy} | {f"gpu-turnstile-{each.name}": each for each in overlays}


def kustomize(folder: Path) -> str:
    """Render one kustomization without changes.

    Raises:
        NoKubectl: kubectl is not installed.
        subprocess.CalledProcessError: kustomize refuses the kustomization.
    """
    command = [kubectl(), "kustomize", str(folder)]
    done = subprocess.run(  # noqa: S603 - our own folders
        command, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


def render(folder: Path, *, version: str, image: str, proxy_image: str) -> str:
    """Render one kustomization.

    Args:
        folder: the kustomization.
        version: version of this project, for the first line.
        image: the image to run, with its tag or digest; empty for those in the manifests.
        proxy_image: the image of the proxy; empty for *image*, which has the proxy too.

    Raises:
        NoKubectl: kubectl is not installed.
        subprocess.CalledProcessError: kustomize refuses the kustomization.
    """
    text = kustomize(folder)
    for name, wanted in ((IMAGE, image), (PROXY_IMAGE, proxy_image or image)):
        if wanted:
            text = text.replace(f"image: {name}:{version}\n", f"image: {wanted}\n")
    where = "/".join(folder.parts[folder.parts.index("deploy") :])
    warned = "" if any(f"name: {each}\n" in text for each in _SEEING) else _BLIND
    return f"{warned}# gpu-turnstile {version}: what `kubectl kustomize {where}` renders.\n{text}"
