"""``make image``: which builder is taken, and what it is told."""

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from release.image import Image, commands, main

LABELS = ("VERSION=1", "REVISION=abc")
_BUILD = ["--build-arg", "VERSION=1", "--build-arg", "REVISION=abc"]
NAMES = ("r.example/a:1", "r.example/b:1")
BOTH = ("linux/amd64", "linux/arm64")


def _image(
    *, names: tuple[str, ...] = NAMES, platforms: tuple[str, ...] = (), push: bool = False
) -> Image:
    return Image(names, platforms, push, Path("/digest"))


@pytest.mark.parametrize(
    ("builder", "image", "expected"),
    [
        (
            "docker",
            _image(),
            [["docker", "build", *_BUILD, "--tag=r.example/a:1", "--tag=r.example/b:1", "."]],
        ),
        (
            "buildah",
            _image(),
            [
                ["buildah", "build", *_BUILD, "--tag=r.example/a:1", "."],
                ["buildah", "tag", "r.example/a:1", "r.example/b:1"],
            ],
        ),
        (
            "docker",
            _image(platforms=BOTH, push=True),
            [
                [
                    *("docker", "buildx", "build", "--platform=linux/amd64,linux/arm64", *_BUILD),
                    *("--tag=r.example/a:1", "--tag=r.example/b:1"),
                    *("--push", "--sbom=true", "--provenance=mode=max"),
                    *("--metadata-file=/digest.json", "."),
                ]
            ],
        ),
        (
            "podman",
            _image(platforms=BOTH, push=True),
            [
                [
                    *("podman", "build", "--platform=linux/amd64,linux/arm64", *_BUILD),
                    *("--manifest=r.example/a:1", "."),
                ],
                *(
                    [
                        *("podman", "manifest", "push", "--all", "--digestfile=/digest"),
                        *("r.example/a:1", f"docker://{name}"),
                    ]
                    for name in NAMES
                ),
            ],
        ),
        (
            "podman",
            _image(names=NAMES[:1], push=True),
            [
                ["podman", "build", *_BUILD, "--tag=r.example/a:1", "."],
                [
                    "podman",
                    "push",
                    "--digestfile=/digest",
                    "r.example/a:1",
                    "docker://r.example/a:1",
                ],
            ],
        ),
    ],
)
def test_each_builder_is_told_in_its_own_words(
    builder: str, image: Image, expected: list[list[str]]
) -> None:
    assert commands(builder, image, LABELS) == expected


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


def test_a_builder_whose_daemon_is_away_is_passed_over(
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


def test_make_says_how_to_build_what_the_workflow_pushes() -> None:
    """The Makefile hands its variables on, several names and platforms too."""
    root = Path(__file__).parents[2]
    command = ["make", "--dry-run", "image", "IMAGE=a:1 b:1", "PLATFORMS=linux/amd64 linux/arm64"]
    done = subprocess.run(
        [*command, "PUSH=1", "BUILDER=docker"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    said = " ".join(done.stdout.replace("\\\n", " ").split())
    assert (
        "-m release.image --name a:1 --name b:1 --platform linux/amd64 --platform linux/arm64 "
        "--push --builder docker"
    ) in said
