"""deploy/README.md names what there is."""

import re

import pytest

from tests.deploy.manifests import DEPLOY
from tests.deploy.test_manifests import PROGRAMS, variables

TEXT = (DEPLOY / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["overlays", "components"])
def test_every_overlay_and_component_is_explained(kind: str) -> None:
    there = {each.name for each in (DEPLOY / kind).iterdir()}
    rows = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(?:overlays/)?([-a-z]+)`", row)}
    assert there <= named


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert targets
    for target in targets:
        assert (DEPLOY / target).exists(), target


def test_variables_are_options() -> None:
    known = {name for each in PROGRAMS.values() for name in variables(each)}
    named = set(re.findall(r"GPU_TURNSTILE_[A-Z_]+", TEXT))
    assert named
    assert named <= known


def test_labels_that_mark_nodes_are_those_that_the_agent_looks_for() -> None:
    manifest = (DEPLOY / "base" / "agent" / "daemonset.yaml").read_text(encoding="utf-8")
    labels = re.findall(r"([a-z./]+/[-_a-z0-9.]+)=true", TEXT)
    assert labels
    for label in labels:
        assert label in manifest
