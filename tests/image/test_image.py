"""The image's programs have all that they need, and no more; so have its lists of packages."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from release.__main__ import build_wheel

ROOT = Path(__file__).parents[2]


def pinned(name: str) -> dict[str, str]:
    """Read names and versions of a list of deploy/image."""
    text = (ROOT / "deploy/image" / name).read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, flags=re.MULTILINE))


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's files, and links to what is pinned."""
    folder = tmp_path_factory.mktemp("image")
    build_wheel(folder, 1_700_000_000)
    (wheel,) = folder.glob("*.whl")
    there = folder / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(there)
    for name in pinned("requirements.txt"):
        found = distribution(name)
        for top in {each.parts[0] for each in found.files or ()} - {"..", "__pycache__"}:
            if not (there / top).exists():
                (there / top).symlink_to(Path(str(found.locate_file(top))))
    return there


pytestmark = pytest.mark.timeout(300)  # the first test builds the tree

PROGRAMS = ("agent", "certs", "claims", "gates", "proxy", "scheduler", "view", "webhook")
PACKAGES = {*PROGRAMS, "common", "contract", "placement"}
TERMINAL = {ROOT / "view/terminal", ROOT / "view/kubectl.py"}
"""Runs on people's machines, and needs what the image does not have: pip install ...[kubectl]."""


def run(tree: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run Python with nothing but the standard library and the tree."""
    return subprocess.run(
        [sys.executable, "-S", "-P", *args],
        cwd="/",
        env={"PATH": os.defpath, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_starts(tree: Path, program: str) -> None:
    done = run(tree, "-m", program, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: python -m {program} ")


def test_each_module_can_be_imported_in_the_image(tree: Path) -> None:
    """A dependency that only the development environment has would be missed here."""
    modules = sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.stem != "__main__" and not {path, *path.parents} & TERMINAL
    )
    code = f"import importlib\nfor name in {modules!r}: importlib.import_module(name)"
    done = run(tree, "-W", "error", "-c", code)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_wheel_has_every_source_file_of_the_programs_and_nothing_else(tree: Path) -> None:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*"):
            if not path.is_file() or path.suffix in {".md", ".proto", ".pyc", ".pyi"}:
                continue  # templates and what the page loads belong to them, too
            name = path.relative_to(ROOT)
            assert (tree / name).is_file(), f"{name}: add its package to pyproject.toml"
            assert (tree / name).read_bytes() == path.read_bytes(), name
    (record,) = tree.glob("gpu_turnstile-*.dist-info/RECORD")
    tops = {Path(line.partition(",")[0]).parts[0] for line in record.read_text().splitlines()}
    assert {each for each in tops if not each.endswith(".dist-info")} == PACKAGES


@pytest.mark.parametrize(
    ("file", "line"), [("Dockerfile", r"^COPY (\w+)/ \1/$"), (".dockerignore", r"^!(\w+)/$")]
)
def test_every_package_reaches_the_builder(file: str, line: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert set(re.findall(line, text, flags=re.MULTILINE)) == PACKAGES


def test_the_image_runs_without_root_and_without_a_package_manager() -> None:
    last = (ROOT / "Dockerfile").read_text(encoding="utf-8").rpartition("\nFROM ")[2]
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", last, re.MULTILINE)  # runAsNonRoot needs numbers
    assert "rm -rf /usr/local/lib/python3*/ensurepip /usr/local/bin/pip* " in last


# --- lists of packages ------------------------------------------------------------------

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def needed_by(wanted: list[Requirement], versions: dict[str, str]) -> set[str]:
    """Return the names of all that *wanted* needs, by what is installed here.

    A range is compared with the list if it is of the project, or of a package installed as pinned.
    """
    found: set[str] = set()
    waiting = [(each, True) for each in wanted]
    while waiting:
        needed, as_pinned = waiting.pop()
        name = canonicalize_name(needed.name)
        if as_pinned:
            assert versions.get(name, "nothing") in needed.specifier, needed
        if name not in found:
            found.add(name)
            waiting += [
                (each, version(name) == versions.get(name))
                for each in map(Requirement, requires(name) or ())
                if each.marker is None or each.marker.evaluate({"extra": ""})
            ]
    return found


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("requirements.txt", PROJECT["project"]["dependencies"]),
        ("build-requirements.txt", PROJECT["build-system"]["requires"]),
    ],
)
def test_the_list_has_every_requirement_with_its_hash_and_nothing_else(
    name: str, wanted: list[str]
) -> None:
    """pip refuses what is not in the list, and installs what nothing needs any more."""
    versions = pinned(name)
    unneeded = versions.keys() - needed_by([Requirement(each) for each in wanted], versions)
    assert not unneeded, f"make {name} again (CONTRIBUTING.md), nothing needs {unneeded}"
    text = (ROOT / "deploy/image" / name).read_text(encoding="utf-8")
    for entry in re.findall(r"^[a-z0-9](?:.*\\\n)*.*", text, flags=re.MULTILINE):
        assert "--hash=sha256:" in entry, entry
    assert "://" not in text  # from the index that the builder's pip uses
