"""The image's programs have all that they need, and no more."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.image.conftest import ROOT

pytestmark = pytest.mark.timeout(300)  # the first test builds the tree

PROGRAMS = ("agent", "certs", "claims", "proxy", "scheduler", "view", "webhook")
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
