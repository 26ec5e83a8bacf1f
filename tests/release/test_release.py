"""What ``make release`` makes, but for the wheel."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from release.archives import sha256, write_tar
from release.krew import manifest
from release.manifests import folders, render
from release.onefile import write_onefile
from tests.deploy.kustomize import kubectl
from tests.deploy.manifests import VERSION

ROOT = Path(__file__).parents[2]
EPOCH = 1_700_000_000


@pytest.mark.slow
def test_the_single_file_program_needs_no_packages_and_is_reproducible(
    tmp_path: Path,
) -> None:
    program, again = tmp_path / "kubectl-gpu", tmp_path / "again"
    for path in (program, again):
        write_onefile(path, ROOT, epoch=EPOCH)
    assert program.read_bytes() == again.read_bytes()
    command = [sys.executable, "-I", "-S", str(program), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("kubectl gpu, version ")


def test_krews_manifest_names_the_archive_and_what_is_in_it(tmp_path: Path) -> None:
    archives = [tmp_path / "a.tar.gz", tmp_path / "b.tar.gz"]
    for path in archives:
        write_tar(path, {"kubectl-gpu": (b"#!", True), "LICENSE": (b"", False)}, epoch=EPOCH)
    assert sha256(archives[0]) == sha256(archives[1])
    text = manifest(version="1.2.3", uri="https://example.org/a", checksum=sha256(archives[0]))
    plugin = yaml.safe_load(text)
    assert plugin["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert (plugin["kind"], plugin["metadata"]["name"]) == ("Plugin", "gpu")
    spec = plugin["spec"]
    assert spec["version"] == "v1.2.3"
    assert len(spec["shortDescription"]) <= 60
    (platform,) = spec["platforms"]
    assert platform["sha256"] == sha256(archives[0])
    with tarfile.open(archives[0]) as packed:
        assert {each["from"] for each in platform["files"]} == set(packed.getnames())
        assert packed.getmember(platform["bin"]).mode == 0o755


def test_every_overlay_has_a_file_of_its_own() -> None:
    found = folders(ROOT / "deploy")
    assert found["gpu-turnstile"] == ROOT / "deploy"
    assert all((each / "kustomization.yaml").exists() for each in found.values())
    assert len(found) == 1 + len(list((ROOT / "deploy/overlays").iterdir()))


@pytest.mark.parametrize(
    ("folder", "warned"),
    [
        ("deploy", True),
        ("deploy/overlays/try-out", True),
        ("deploy/overlays/scheduler-own", False),
        ("deploy/overlays/scheduler-extender", False),
        ("deploy/overlays/dra", False),
    ],
)
def test_manifests_without_a_scheduler_that_sees_cards_say_so_first(
    folder: str, warned: bool
) -> None:
    kubectl()
    text = render(ROOT / folder, version=VERSION, image="", proxy_image="")
    assert text.startswith("# WITHOUT A SCHEDULER THAT SEES CARDS: ") == warned
    kustomization = (ROOT / "deploy/kustomization.yaml").read_text(encoding="utf-8")
    assert kustomization.startswith("# Without a scheduler that sees cards: ")


@pytest.mark.parametrize(
    ("proxy_image", "of_the_proxy"),
    [("", "registry.example/gpu:1"), ("registry.example/gpu:0", "registry.example/gpu:0")],
)
def test_one_image_is_that_of_every_container_and_the_proxy_may_have_another(
    proxy_image: str, of_the_proxy: str
) -> None:
    kubectl()
    image = "registry.example/gpu:1"
    text = render(ROOT / "deploy", version=VERSION, image=image, proxy_image=proxy_image)
    found = {
        each["metadata"]["name"]: container["image"]
        for each in yaml.safe_load_all(text)
        if each["kind"] in ("DaemonSet", "Deployment")
        for container in each["spec"]["template"]["spec"]["containers"]
    }
    assert found.pop("gpu-turnstile-proxy") == of_the_proxy
    assert set(found.values()) == {image}
    assert "ghcr.io" not in text
