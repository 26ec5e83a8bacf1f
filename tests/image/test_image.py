"""The image's file tree holds all that the programs need, and no more."""

import re
import subprocess
from email import message_from_string
from pathlib import Path

import pytest

from tests.image.conftest import FROM_INDEX, PACKAGES, ROOT, pinned
from tests.image.dockerfile import Stage

pytestmark = pytest.mark.timeout(300)  # the first to ask for the tree builds it


def site_packages(tree: Path) -> Path:
    (found,) = (tree / "opt/gpu-turnstile/lib").glob("python3.*/site-packages")
    return found


def run(tree: Path, stages: list[Stage], *args: str) -> subprocess.CompletedProcess[str]:
    """Run as the container would: the image's environment and nothing of ours."""
    environment = {k: v for each in stages[-1].all("ENV") for k, v in each.pairs.items()}
    environment["PATH"] = f"{tree}{environment['PATH']}"
    return subprocess.run(
        [str(tree / "opt/gpu-turnstile/bin/python"), *args],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def distributions(tree: Path) -> dict[str, str]:
    """Read names and versions of what is installed."""
    found = {}
    for path in site_packages(tree).glob("*.dist-info/METADATA"):
        metadata = message_from_string(path.read_text(encoding="utf-8"))
        name = re.sub(r"[-_.]+", "-", metadata["Name"]).lower()
        found[name] = metadata["Version"]
    return found


TERMINAL = (ROOT / "view/terminal", ROOT / "view/kubectl.py")
"""Runs on people's machines, and needs what the image does not have: pip install ...[kubectl]."""

SCRIPTS = ["kubectl-gpu", "kubectl_complete-gpu"]


@pytest.mark.parametrize("program", ["agent", "certs", "proxy", "scheduler", "view", "webhook"])
def test_each_program_starts(tree: Path, stages: list[Stage], program: str) -> None:
    done = run(tree, stages, "-m", program, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: python -m {program} ")


def test_each_of_our_modules_can_be_imported_there(tree: Path, stages: list[Stage]) -> None:
    """A dependency that only the development environment has would be missed here."""
    modules = sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.stem != "__main__" and not {path, *path.parents} & {*TERMINAL}
    )
    code = f"import importlib\nfor name in {modules!r}: importlib.import_module(name)"
    done = run(tree, stages, "-W", "error", "-c", code)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_source_file_of_the_programs_is_there_and_nothing_else_of_ours(tree: Path) -> None:
    there = site_packages(tree)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*"):
            if not path.is_file() or path.suffix in {".md", ".proto", ".pyc", ".pyi"}:
                continue  # templates and what the page loads belong to them, too
            name = path.relative_to(ROOT)
            assert (there / name).is_file(), f"{name}: add its package to pyproject.toml"
            assert (there / name).read_bytes() == path.read_bytes(), name
    (record,) = there.glob("gpu_turnstile-*.dist-info/RECORD")
    listed = [line.partition(",")[0] for line in record.read_text().splitlines()]
    tops = {Path(line).parts[0] for line in listed}
    assert {each for each in tops if not each.endswith(".dist-info")} == {*PACKAGES, ".."}
    assert sorted(Path(line).name for line in listed if line.startswith("..")) == SCRIPTS


def test_what_is_installed_is_what_was_pinned(tree: Path) -> None:
    found, wanted = distributions(tree), pinned("requirements.txt")
    assert found.pop("gpu-turnstile", "")
    assert found.keys() <= wanted.keys()
    if FROM_INDEX:  # the environment of the tests may have others
        assert found.items() <= wanted.items()
    assert not {"pip", "setuptools", "wheel"} & set(found)


def test_bytecode_is_there_and_says_no_time(tree: Path) -> None:
    """The root file system is read-only: what is not compiled now is compiled at every start."""
    there = site_packages(tree)
    for package in PACKAGES:
        modules = list((there / package).rglob("*.py"))
        assert modules, package
        for path in modules:
            (compiled,) = (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc")
            flags = int.from_bytes(compiled.read_bytes()[4:8], "little")
            assert flags == 0b01, compiled  # by hash, and not checked (PEP 552)


def test_running_changes_nothing(tree: Path, stages: list[Stage]) -> None:
    def snapshot() -> dict[str, int]:
        root = tree / "opt/gpu-turnstile"
        return {str(each): each.lstat().st_mtime_ns for each in root.rglob("*")}

    before = snapshot()
    assert run(tree, stages, "-m", "certs", "--help").returncode == 0
    assert snapshot() == before


def test_a_serving_certificate_can_be_made_there(
    tree: Path, stages: list[Stage], tmp_path: Path
) -> None:
    out = tmp_path / "certs"
    done = run(tree, stages, "-m", "certs", "issue", "--out", str(out), "--dns", "localhost")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(each.name for each in out.iterdir()) == ["ca.crt", "ca.key", "tls.crt", "tls.key"]
