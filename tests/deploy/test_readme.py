"""Kustomizations of the documents can be built; deploy/README.md names all overlays."""

import os
import re
import textwrap
from pathlib import Path

import pytest
import yaml

from tests.deploy.kustomize import (
    COMPONENTS,
    OVERLAYS,
    SCHEDULERS,
    build,
    build_components,
    build_folder,
    taken_by,
    write_overlay,
)
from tests.deploy.manifests import DEPLOY, VERSION, containers, environment, pod_specs

ROOT = DEPLOY.parent
TEXT = (DEPLOY / "README.md").read_text(encoding="utf-8")
_COMPONENT = "app.kubernetes.io/component"


def _blocks(page: str, part: str) -> list[str]:
    """Return the blocks of YAML of a page that have a part."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^ *```yaml\n(.*?)^ *```$", text, flags=re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(each) for each in found if part in each]


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_the_documented_kustomization_can_be_built_and_names_every_image(
    page: str, tmp_path: Path
) -> None:
    """An image that is left out cannot be pulled: none is published."""
    (block,) = _blocks(page, "kind: Kustomization")
    here = os.path.relpath(DEPLOY, tmp_path.resolve())
    text = re.sub(r"(?m)\.\./(gpu-turnstile/)?deploy\b(?! )", here, block)
    (tmp_path / "kustomization.yaml").write_text(text, encoding="utf-8")
    images = {
        each["image"]
        for spec in pod_specs(build_folder(tmp_path)).values()
        for each in containers(spec)
    }
    ours, second = f"registry.example.org/gpu-turnstile:{VERSION}", "registry.k8s.io/kube-scheduler"
    assert images == {ours, f"{second}:v1.36.2"}
    assert {"name": second, "newTag": "v1.36.2"} in yaml.safe_load(block)["images"]


def test_a_patch_of_settings_reaches_the_agent_alone(tmp_path: Path) -> None:
    (block,) = _blocks("deploy/README.md", "GPU_TURNSTILE_POLICY")
    found = pod_specs(build_folder(write_overlay(tmp_path / "mine", **yaml.safe_load(block))))
    plain = pod_specs(build(""))
    agent = containers(found.pop("DaemonSet/gpu-turnstile-agent"))[0]
    assert environment(agent)["GPU_TURNSTILE_POLICY"] == "spread"
    assert found.items() < plain.items()


def test_where_all_workers_are_cordoned_webhook_and_certs_run_on_the_control_plane(
    tmp_path: Path,
) -> None:
    """Step 4 of docs/migrate.md waits for them."""
    (block,) = _blocks("docs/migrate.md", "tolerations")
    components = ("host-driver", "vcuda", "gpu-manager", "scheduler-extender")
    built = build_folder(write_overlay(tmp_path / "mine", components, **yaml.safe_load(block)))
    key = "node-role.kubernetes.io/control-plane"
    wanted = [{"key": key, "operator": "Exists", "effect": "NoSchedule"}]
    found = {name: spec for name, spec in pod_specs(built).items() if "Deployment" in name}
    assert {"Deployment/gpu-turnstile-webhook", "Deployment/gpu-turnstile-certs"} <= found.keys()
    assert [name for name, spec in found.items() if spec["tolerations"] != wanted] == []


def test_every_overlay_and_component_is_explained() -> None:
    overlays = re.findall(
        r"^\| `(overlays/[-a-z0-9]+)` \| .* \| (.*) \|$", TEXT, flags=re.MULTILINE
    )
    assert {name: re.findall(r"`([-a-z]+)`", taken) for name, taken in overlays} == {
        each: taken_by(each) for each in OVERLAYS[1:]
    }
    below = TEXT.partition("\n## Components\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `([-a-z]+)` \|", below, flags=re.MULTILINE)) == [*COMPONENTS]


def test_the_command_that_removes_a_component_names_every_kind() -> None:
    named = set(
        re.findall(r"[a-z]+", TEXT.partition("component=COMPONENT ")[2].partition("```")[0])
    )
    named |= set(re.findall(r"[a-z]+", TEXT.partition("With the component `monitoring` add ")[2]))
    brought = {
        each["kind"]
        for excluded in SCHEDULERS
        for each in build_components(
            *(each for each in COMPONENTS if each not in excluded | {"domain"})
        )
        if each["metadata"]["labels"][_COMPONENT] in COMPONENTS
    }
    assert {"RoleBinding", "ServiceMonitor", "Certificate"} <= brought
    ends = {"y": "ies", "ss": "sses", "s": "s"}
    plurals = {
        re.sub("(y|ss|s|)$", lambda end: ends.get(end[0], "s"), each.lower(), count=1)
        for each in brought
    }
    assert plurals <= named


@pytest.mark.parametrize("component", ["use", "vcuda"])
@pytest.mark.parametrize("by_claims", [False, True])
def test_the_patch_for_cri_o_leads_the_agent_to_its_socket(
    component: str, by_claims: bool, tmp_path: Path
) -> None:
    (block,) = _blocks("docs/distributions.md", "crio.sock")
    name = "gpu-turnstile-agent-dra" if by_claims else "gpu-turnstile-agent"
    patches = yaml.safe_load(block.replace("gpu-turnstile-agent", name))
    chosen = [component, "dra"] if by_claims else [component]
    objects = build_folder(write_overlay(tmp_path / "mine", chosen, **patches))
    agent = pod_specs(objects)[f"DaemonSet/{name}"]
    (container,) = containers(agent)
    socket = Path(environment(container)["GPU_TURNSTILE_CRI_SOCKET"])
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in agent["volumes"]}
    path = volumes[mounts[str(socket.parent)]]["hostPath"]["path"]
    assert f"{path}/{socket.name}" == "/run/crio/crio.sock"
