"""``python -m release.image``: builds the image with whichever builder is there, and pushes it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click

from release.sources import ROOT, commit, version

BUILDERS = ("docker", "podman", "buildah")
_ALIVE = {"docker": ["version"], "podman": ["info"], "buildah": ["--version"]}
"""How a builder is asked whether it works: docker needs its daemon."""


@dataclass(frozen=True, slots=True)
class Image:
    """What is to be built.

    Attributes:
        names: with registry and tag; the first one is built, the others are further tags.
        platforms: such as ``linux/amd64``; empty for that of this machine.
        push: whether it goes to the registries of its names.
        digest_file: where the digest of what was pushed is written.
    """

    names: tuple[str, ...]
    platforms: tuple[str, ...]
    push: bool
    digest_file: Path


def commands(builder: str, image: Image, labels: Iterable[str]) -> list[list[str]]:
    """Return what is to be run, one after the other, in the root of the sources."""
    first, *others = image.names
    build = ["build", *(part for each in labels for part in ("--build-arg", each))]
    if image.platforms:
        build.append(f"--platform={','.join(image.platforms)}")
    if builder == "docker":
        build += [f"--tag={each}" for each in image.names]
        if image.push:
            build += ["--push", "--sbom=true", "--provenance=mode=max"]
            build.append(f"--metadata-file={_metadata(image)}")
        # Several platforms, and what an image consists of, are beyond the classic builder.
        beyond = image.push or len(image.platforms) > 1
        return [["docker", *(["buildx"] if beyond else []), *build, "."]]
    kind, push = (["manifest"], ["push", "--all"]) if image.platforms else ([], ["push"])
    found = [[builder, *build, f"--{'manifest' if kind else 'tag'}={first}", "."]]
    found += [[builder, "tag", first, each] for each in others if not kind]
    if image.push:
        push = [builder, *kind, *push, f"--digestfile={image.digest_file}", first]
        found += [[*push, f"docker://{each}"] for each in image.names]
    return found


def _metadata(image: Image) -> Path:
    """Return where docker writes what it pushed: more than the digest."""
    return image.digest_file.with_name(f"{image.digest_file.name}.json")


def choose(wanted: str) -> str:
    """Return the builder that is wanted, or the first one that works.

    Raises:
        click.ClickException: there is none.
    """
    for each in (wanted,) if wanted else BUILDERS:
        if shutil.which(each) is not None:
            done = subprocess.run(  # noqa: S603 - a builder, asked for its version
                [each, *_ALIVE[each]], capture_output=True, check=False, timeout=60
            )
            if done.returncode == 0:
                return each
    tried = wanted or ", ".join(BUILDERS)
    raise click.ClickException(f"no builder of images works here: {tried} (BUILDER= names one)")


@click.command(context_settings={"show_default": True})
@click.option("--name", "names", multiple=True, required=True, help="REGISTRY/NAME:TAG, repeated.")
@click.option("--platform", "platforms", multiple=True, help="OS/ARCHITECTURE, repeated.")
@click.option("--push", is_flag=True, help="Push it to the registries of its names.")
@click.option(
    "--digest-file",
    type=click.Path(path_type=Path),
    default="build/image.digest",
    help="Where the digest of what was pushed is written.",
)
@click.option("--builder", type=click.Choice(["", *BUILDERS]), default="", help="Which builder.")
def main(
    *,
    names: tuple[str, ...],
    platforms: tuple[str, ...],
    push: bool,
    digest_file: Path,
    builder: str,
) -> None:
    """Build the image, and push it if told to."""
    chosen = choose(builder)
    digest_file.parent.mkdir(parents=True, exist_ok=True)
    labels = [f"VERSION={version()}", f"REVISION={commit()}"]
    image = Image(names, platforms, push, digest_file.resolve())
    for each in commands(chosen, image, labels):
        click.echo(f"$ {' '.join(each)}")
        done = subprocess.run(each, cwd=ROOT, check=False)  # noqa: S603 - made above
        if done.returncode:
            sys.exit(done.returncode)
    if push and chosen == "docker":
        pushed = json.loads(_metadata(image).read_text(encoding="utf-8"))
        image.digest_file.write_text(pushed["containerimage.digest"], encoding="utf-8")


if __name__ == "__main__":
    main()
