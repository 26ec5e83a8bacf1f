"""``make image``: which builder is taken, and what it is told."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from release.image import Image, commands, main

LABELS = ("VERSION=1", "REVISION=abc")
NAMES = ("r.example/a:1", "r.example/b:1")
BOTH = ("linux/amd64", "linux/arm64")
_BUILD = "--build-arg VERSION=1 --build-arg REVISION=abc"
_PLATFORMS = "--platform=linux/amd64,linux/arm64"
_PUSHED = "--push --sbom=true --provenance=mode=max --metadata-file=/digest.json"
_TAGS = "--tag=r.example/a:1 --tag=r.example/b:1"


@pytest.mark.parametrize(
    ("builder", "platforms", "push", "expected"),
    [
        ("docker", (), False, [f"docker build {_BUILD} {_TAGS} ."]),
        (
            "buildah",
            (),
            False,
            [
                f"buildah build {_BUILD} --tag=r.example/a:1 .",
                "buildah tag r.example/a:1 r.example/b:1",
            ],
        ),
        (
            "docker",
            BOTH,
            True,
            [f"docker buildx build {_BUILD} {_PLATFORMS} {_TAGS} {_PUSHED} ."],
        ),
        (
            "podman",
            BOTH,
            True,
            [
                f"podman build {_BUILD} {_PLATFORMS} --manifest=r.example/a:1 .",
                *(
                    f"podman manifest push --all --digestfile=/digest r.example/a:1 docker://{name}"
                    for name in NAMES
                ),
            ],
        ),
        (
            "podman",
            (),
            True,
            [
                f"podman build {_BUILD} --tag=r.example/a:1 .",
                "podman tag r.example/a:1 r.example/b:1",
                *(
                    f"podman push --digestfile=/digest r.example/a:1 docker://{name}"
                    for name in NAMES
                ),
            ],
        ),
    ],
)
def test_each_builder_gets_its_own_options(
    builder: str, platforms: tuple[str, ...], push: bool, expected: list[str]
) -> None:
    image = Image(NAMES, platforms, push, Path("/digest"))
    assert [" ".join(each) for each in commands(builder, image, LABELS)] == expected


def _builder(folder: Path, name: str, *, works: bool) -> None:
    """Write a program that notes how it was called, and writes what a push would."""
    program = folder / name
    program.write_text(
        f"""#!/bin/sh
case "$1" in version|info|--version) exit {0 if works else 1};; esac
echo "{name} $*" >> {folder}/calls
for each; do case "$each" in
  --metadata-file=*) echo '{{"containerimage.digest": "sha256:12"}}' > "${{each#*=}}";;
esac; done
""",
        encoding="utf-8",
    )
    program.chmod(0o755)


def test_a_builder_whose_daemon_is_unreachable_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _builder(tmp_path, "docker", works=False)
    _builder(tmp_path, "buildah", works=True)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("release.image.BUILDERS", ("docker", "buildah"))
    done = CliRunner().invoke(main, ["--name", "a:1", "--digest-file", str(tmp_path / "d")])
    assert done.exit_code == 0, done.output
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call.startswith("buildah build --build-arg VERSION=")
    done = CliRunner().invoke(main, ["--name", "a:1", "--builder", "docker"])
    assert done.exit_code == 1
    assert "no builder of images works here: docker (BUILDER= names one)" in done.output


def test_the_digest_of_what_docker_pushed_is_written_as_others_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _builder(tmp_path, "docker", works=True)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    file = tmp_path / "out" / "digest"
    done = CliRunner().invoke(
        main, ["--name", "a:1", "--push", "--builder", "docker", "--digest-file", str(file)]
    )
    assert done.exit_code == 0, done.output
    assert file.read_text() == "sha256:12"
