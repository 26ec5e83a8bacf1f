"""The file tree of the image, built once for all workers by the Dockerfile's own commands.

Only what comes from a package index is linked from the environment that runs the tests: what is
pinned, and nothing else. With IMAGE_FROM_INDEX=1 it is downloaded and held against its hashes.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.image.dockerfile import Instruction, Stage, context, covered, parse

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *("agent", "certs", "common", "contract", "placement", "proxy", "scheduler", "view"),
    "webhook",
)

# Where the commands of the build stage work; in the test these are below a folder of its own.
_PLACES = "opt|src|dist"
_ABSOLUTE = re.compile(rf"(?<![\w./*-])/(?={_PLACES}\b)")
_ELSEWHERE = re.compile(rf"(?<![\w./*-])/(?!(?:{_PLACES})\b)\w")

_FROM_INDEX = re.compile(r"pip --python (\S+)/bin/python install .*--requirement (\S+)")
FROM_INDEX = "IMAGE_FROM_INDEX" in os.environ


class BuildError(Exception):
    """A command of the Dockerfile failed; the message is what it printed."""


def sources() -> list[str]:
    """List the files of the checkout that could be sent to a builder."""
    skipped = {".git", ".venv", "__pycache__", "build", "dist"}
    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [each for each in folders if each not in skipped]
        found += [os.path.relpath(Path(folder) / each, ROOT) for each in files]
    return found


def pinned(name: str) -> dict[str, str]:
    """Read names and versions of a list of deploy/image."""
    text = (ROOT / "deploy/image" / name).read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, flags=re.MULTILINE))


def build(stages: list[Stage], root: Path) -> None:
    """Do below *root* what the Dockerfile does, the base image's own files left out.

    Only the build stage's commands are carried out: those of the last stage remove what
    this tree does not have, files of the base image.

    Raises:
        BuildError: a command failed.
    """
    files = context(ROOT, sources())
    first, last = stages
    environment: dict[str, str] = {}
    where = root
    for each in first.instructions:
        match each.word:
            case "ENV":
                environment |= each.pairs
            case "WORKDIR":
                where = root / each.text.lstrip("/")
                where.mkdir(parents=True, exist_ok=True)
            case "COPY":
                _copy(each, where, files)
            case "RUN":
                for command in each.text.split(" && "):
                    asked = _FROM_INDEX.search(command)
                    if asked and not FROM_INDEX:
                        _link(asked[2], root / asked[1].lstrip("/"))
                    else:
                        _run(command, where, root, environment)
            case other:
                raise BuildError(f"{other}: this test does not know that instruction")
    for each in last.all("COPY"):
        (source, target) = each.words
        if not (root / target.lstrip("/")).samefile(root / source.lstrip("/")):
            raise BuildError(f"COPY {each.text}: a virtual environment cannot be moved")


def _copy(instruction: Instruction, where: Path, files: set[str]) -> None:
    *wanted, target = instruction.words
    for source in wanted:
        for file in covered(source, files):
            within = Path(file).name if file == source else file.removeprefix(source)
            made = where / target / within
            made.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, made)


def _link(requirements: str, environment: Path) -> None:
    """Link every distribution that is pinned into a virtual environment."""
    (there,) = environment.glob("lib/python3.*/site-packages")
    for name in pinned(requirements):
        found = distribution(name)
        for top in {each.parts[0] for each in found.files or ()} - {"..", "__pycache__"}:
            link = there / top
            if not link.exists():
                link.symlink_to(Path(str(found.locate_file(top))))


def _run(command: str, where: Path, root: Path, environment: dict[str, str]) -> None:
    if _ELSEWHERE.search(command):
        raise BuildError(f"RUN {command}: works outside the places that this test knows")
    passed_on = {
        name: value
        for name, value in os.environ.items()
        if name.upper().endswith("_PROXY") or name.startswith(("PIP_", "SSL_", "REQUESTS_"))
    }
    # Kept between runs, which the image's build does not want: it makes this test fast.
    asked = {name: value for name, value in environment.items() if name != "PIP_NO_CACHE_DIR"}
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    home = os.environ.get("HOME", str(root))
    done = subprocess.run(
        ["sh", "-euc", _ABSOLUTE.sub(f"{root}/", command)],
        cwd=where,
        env=passed_on | asked | {"PATH": path, "HOME": home},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
        check=False,
    )
    if done.returncode:
        raise BuildError(f"RUN {command}:\n{done.stdout}")


@pytest.fixture(scope="session")
def stages() -> list[Stage]:
    return parse((ROOT / "Dockerfile").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory, stages: list[Stage]) -> Path:
    """The root of the built tree."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    root, log = shared / "image", shared / "image.log"
    with (shared / "image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other worker waits, and finds it done
        if not log.exists():
            try:
                build(stages, root)
            except BuildError as error:
                log.write_text(str(error))
            else:
                log.write_text("")
    said = log.read_text()
    assert not said, said
    return root
