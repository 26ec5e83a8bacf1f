"""deploy/README.md names what there is."""

import re

import pytest

from tests.deploy.manifests import DEPLOY, base, containers, pod_specs

TEXT = (DEPLOY / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["overlays", "components"])
def test_every_overlay_and_component_is_explained(kind: str) -> None:
    there = {each.name for each in (DEPLOY / kind).iterdir()}
    rows = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(?:overlays/)?([-a-z]+)`", row)}
    assert there <= named


@pytest.mark.parametrize("page", ["README.md", "deploy/README.md", "docs/install.md"])
def test_a_kustomization_of_ones_own_names_every_image(page: str) -> None:
    """One that is left out cannot be pulled: no image is published."""
    text = (DEPLOY.parent / page).read_text(encoding="utf-8")
    named = re.findall(r"\bname: (ghcr\.io/[-a-z/]+)[,\s].*?newTag: ([0-9.]+)", text, re.DOTALL)
    assert {f"{name}:{tag}" for name, tag in named} == {
        each["image"] for spec in pod_specs(base()).values() for each in containers(spec)
    }
