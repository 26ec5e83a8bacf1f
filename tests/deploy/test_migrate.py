"""docs/migrate.md: what people add to their kustomization does what the page says."""

import re
import textwrap
from pathlib import Path

import yaml

from tests.deploy.kustomize import build_folder, write_overlay
from tests.deploy.manifests import DEPLOY

PAGE = (DEPLOY.parent / "docs" / "migrate.md").read_text(encoding="utf-8")
CONTROL_PLANE = {
    "key": "node-role.kubernetes.io/control-plane",
    "operator": "Exists",
    "effect": "NoSchedule",
}


def test_where_all_workers_are_cordoned_what_step_4_waits_for_finds_a_node(tmp_path: Path) -> None:
    (block,) = re.findall(r"^   ```yaml\n(.*?)^   ```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    more = yaml.safe_load(textwrap.dedent(block))
    components = ("host-driver", "vcuda", "gpu-manager", "scheduler-extender")
    built = build_folder(write_overlay(tmp_path / "mine", components, **more))
    found = {}
    for each in built:
        if each["kind"] == "Deployment":
            spec = each["spec"]["template"]["spec"]
            found[each["metadata"]["name"]] = spec.get("tolerations")
    assert {"gpu-turnstile-webhook", "gpu-turnstile-certs"} <= found.keys()
    assert {name for name, has in found.items() if has != [CONTROL_PLANE]} == set()
