"""deploy/README.md names what there is."""

import re

import pytest

from tests.deploy.kustomize import OVERLAYS, build
from tests.deploy.manifests import DEPLOY, base, containers, pod_specs

TEXT = (DEPLOY / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["overlays", "components"])
def test_every_overlay_and_component_is_explained(kind: str) -> None:
    there = {each.name for each in (DEPLOY / kind).iterdir()}
    rows = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(?:overlays/)?([-a-z0-9]+)`", row)}
    assert there <= named


@pytest.mark.parametrize("page", ["README.md", "deploy/README.md", "docs/install.md"])
def test_a_kustomization_of_ones_own_names_every_image(page: str) -> None:
    """One that is left out cannot be pulled: no image is published."""
    text = (DEPLOY.parent / page).read_text(encoding="utf-8")
    named = re.findall(r"\bname: (ghcr\.io/[-a-z/]+)[,\s].*?newTag: ([0-9.]+)", text, re.DOTALL)
    assert {f"{name}:{tag}" for name, tag in named} == {
        each["image"] for spec in pod_specs(base()).values() for each in containers(spec)
    }


def test_the_command_that_removes_a_component_names_every_kind() -> None:
    named = set(
        re.findall(r"[a-z]+", TEXT.partition("component=COMPONENT ")[2].partition("```")[0])
    )
    named |= set(re.findall(r"[a-z]+", TEXT.partition("With the component `monitoring` add ")[2]))
    brought = {
        obj["kind"]
        for overlay in OVERLAYS
        for obj in build(overlay)
        if "labels" in obj["metadata"]
        and (DEPLOY / "components" / obj["metadata"]["labels"][_COMPONENT]).is_dir()
    }
    assert {"RoleBinding", "ServiceMonitor", "Certificate"} <= brought
    assert {re.sub(r"y$", "ie", each.lower()).removesuffix("s") + "s" for each in brought} <= named


_COMPONENT = "app.kubernetes.io/component"
