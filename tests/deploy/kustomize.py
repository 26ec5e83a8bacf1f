"""What kustomize makes of a folder. It comes with kubectl; without one the tests are skipped."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import BASE, DEPLOY, LOADER, Json

OVERLAYS = ("", *sorted(f"overlays/{each.name}" for each in (DEPLOY / "overlays").iterdir()))
"""Everything that can be applied as it is; the first is deploy/ itself."""
COMPONENTS = tuple(sorted(each.name for each in (DEPLOY / "components").iterdir()))
EXCLUDED = {"scheduler-extender": "scheduler-own", "scheduler-own": "scheduler-extender"}
"""Component -> the one that kustomize refuses beside it."""
CACHE = DEPLOY.parent / ".pytest_cache" / "kustomize"
SCHEDULERS = (
    frozenset({"scheduler-extender", "scheduler-extender-preemption", "scheduler-extender-queues"}),
    frozenset({"scheduler-own", "scheduler-preemption", "scheduler-queues"}),
)
"""Either the one or the other components."""


def find_program(name: str, how: str = "python -m tests.deploy.get_kubectl") -> str:
    """Find a program, in the virtual environment or on the path; skip the test without it."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}: {how} puts one beside python")
    return found


def kubectl() -> str:
    return find_program("kubectl")


def kustomize(folder: Path) -> subprocess.CompletedProcess[str]:
    program = kubectl()

    def run() -> tuple[int, str, str]:
        command = [program, "kustomize", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, done.stdout, done.stderr

    files = {each.name: each.read_text("utf-8") for each in folder.iterdir() if each.is_file()}
    known = str(folder.relative_to(DEPLOY)) if folder.is_relative_to(DEPLOY) else ""
    text = json.dumps([program, Path(program).stat().st_mtime, known, *sorted(files.items())])
    text = text.replace(os.path.relpath(DEPLOY, folder.resolve()), "deploy")
    return subprocess.CompletedProcess(program, *once(text, run))


def once(key: str, make: Callable[[], object]) -> Any:
    """Return what *make* makes of deploy/ and *key*, by one call for all processes and runs.

    Results are JSON files in pytest's cache. They are made again if a manifest changes.
    """
    result = _results() / hashlib.sha256(key.encode()).hexdigest()
    with result.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            made = result.with_suffix(".part")
            made.write_text(json.dumps(make()), "utf-8")
            made.rename(result)
    return json.loads(result.read_text("utf-8"))


@cache
def _results() -> Path:
    """Return the folder for results of the manifests as they are now; delete those of others."""
    files = sorted(each for each in DEPLOY.rglob("*.yaml") if each.is_file())
    files += sorted(DEPLOY.rglob("*.json"))
    found = hashlib.sha256()
    for each in files:
        found.update(f"{each.relative_to(DEPLOY)}\n{each.read_text('utf-8')}".encode())
    results = CACHE / found.hexdigest()
    if not results.exists():
        results.mkdir(parents=True, exist_ok=True)
        for each in CACHE.iterdir():
            if each != results:
                shutil.rmtree(each, ignore_errors=True)
    return results


def build_folder(folder: Path) -> list[Json]:
    done = kustomize(folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "kustomize warns"
    return list(yaml.load_all(done.stdout, Loader=LOADER))


@lru_cache
def build(overlay: str) -> list[Json]:
    """Build what ``kubectl apply -k deploy/OVERLAY`` would apply; not to be changed."""
    return build_folder(DEPLOY / overlay)


@lru_cache
def build_components(*names: str) -> list[Json]:
    """Build the base with components, with the settings that they need; not to be changed."""
    with tempfile.TemporaryDirectory() as folder:
        return build_folder(write_overlay(Path(folder) / "mine", names))


def taken_by(overlay: str) -> list[str]:
    text = (DEPLOY / (overlay or "base") / "kustomization.yaml").read_bytes()
    return [Path(each).name for each in yaml.safe_load(text).get("components", ())]


def write_overlay(folder: Path, components: Iterable[str] = (), **more: object) -> Path:
    """Write a kustomization of base and components; paths in it must be relative."""
    folder.mkdir(parents=True)

    def relative(target: Path) -> str:
        return os.path.relpath(target, folder.resolve())

    taken = list(components)
    resources = [relative(BASE)]
    resources += copy_settings(folder, taken)
    written = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
        "components": [relative(DEPLOY / "components" / each) for each in taken],
        **more,
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")
    return folder


def copy_settings(folder: Path, components: Iterable[str]) -> list[str]:
    """Copy the settings of components that need some; return the names of the files."""
    files = []
    for each in components:
        settings = DEPLOY / "components" / each / "settings.yaml"
        if settings.exists():
            files.append(f"{each}.yaml")
            shutil.copy(settings, folder / files[-1])
    return files
