"""``python -m release.image``: builds the image with an installed builder, and pushes it.

Only the standard library is imported, so that ``make image`` installs nothing.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from release.sources import ROOT, commit, version

BUILDERS = ("docker", "podman", "buildah")
_CHECKS = {"docker": ["version"], "podman": ["info"], "buildah": ["--version"]}
"""Arguments of the command that checks whether a builder works; docker needs its daemon."""


@dataclass(frozen=True, slots=True)
class Image:
    """The image to build.

    Attributes:
        names: names with registry and tag; the first one is built, the others are further tags.
        platforms: platforms such as ``linux/amd64``; empty for that of this machine.
        push: whether it is pushed to the registries of its names.
        digest_file: file for the digest of the pushed image.
    """

    names: tuple[str, ...]
    platforms: tuple[str, ...]
    push: bool
    digest_file: Path


def commands(builder: str, image: Image, labels: Iterable[str]) -> list[list[str]]:
    """Return the commands to run one after the other in the root of the sources."""
    first, *others = image.names
    build = ["build", *(part for each in labels for part in ("--build-arg", each))]
    if image.platforms:
        build.append(f"--platform={','.join(image.platforms)}")
    if builder == "docker":
        build += [f"--tag={each}" for each in image.names]
        if image.push:
            build += ["--push", "--sbom=true", "--provenance=mode=max"]
            build.append(f"--metadata-file={_metadata(image)}")
        # The classic builder supports neither several platforms nor an SBOM.
        needs_buildx = image.push or len(image.platforms) > 1
        return [["docker", *(["buildx"] if needs_buildx else []), *build, "."]]
    kind, push = (["manifest"], ["push", "--all"]) if image.platforms else ([], ["push"])
    found = [[builder, *build, f"--{'manifest' if kind else 'tag'}={first}", "."]]
    found += [[builder, "tag", first, each] for each in others if not kind]
    if image.push:
        push = [builder, *kind, *push, f"--digestfile={image.digest_file}", first]
        found += [[*push, f"docker://{each}"] for each in image.names]
    return found


def _metadata(image: Image) -> Path:
    """Return the file for docker's metadata of the push, which has more than the digest."""
    return image.digest_file.with_name(f"{image.digest_file.name}.json")


def choose(wanted: str) -> str:
    """Return the wanted builder, or the first one that works.

    Raises:
        SystemExit: none works.
    """
    for each in (wanted,) if wanted else BUILDERS:
        if shutil.which(each) is not None:
            done = subprocess.run(  # noqa: S603 - a builder, asked for its version
                [each, *_CHECKS[each]], capture_output=True, check=False, timeout=60
            )
            if done.returncode == 0:
                return each
    tried = wanted or ", ".join(BUILDERS)
    sys.exit(f"Error: no builder of images works here: {tried} (BUILDER= names one)")


def main(arguments: Sequence[str] | None = None) -> None:
    """Build the image, and push it with --push."""
    parser = argparse.ArgumentParser(prog="python -m release.image", description=main.__doc__)
    names, platforms = "REGISTRY/NAME:TAG, repeated", "OS/ARCHITECTURE, repeated"
    parser.add_argument("--name", action="append", required=True, help=names)
    parser.add_argument("--platform", action="append", default=[], help=platforms)
    parser.add_argument("--push", action="store_true", help="push to the registries of the names")
    parser.add_argument(
        "--digest-file",
        type=Path,
        default="build/image.digest",
        help="file for the digest of the pushed image (default: %(default)s)",
    )
    parser.add_argument("--builder", choices=["", *BUILDERS], default="", help="builder to use")
    given = parser.parse_args(arguments)
    chosen = choose(given.builder)
    file: Path = given.digest_file
    file.parent.mkdir(parents=True, exist_ok=True)
    labels = [f"VERSION={version()}", f"REVISION={commit()}"]
    image = Image(tuple(given.name), tuple(given.platform), given.push, file.resolve())
    for each in commands(chosen, image, labels):
        print(f"$ {' '.join(each)}", flush=True)  # noqa: T201 -- a command line
        done = subprocess.run(each, cwd=ROOT, check=False)  # noqa: S603 - made above
        if done.returncode:
            sys.exit(done.returncode)
    if image.push and chosen == "docker":
        pushed = json.loads(_metadata(image).read_text(encoding="utf-8"))
        image.digest_file.write_text(pushed["containerimage.digest"], encoding="utf-8")


if __name__ == "__main__":
    main()
