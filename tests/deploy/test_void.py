"""The component ``void``: containers without GPUs that may see none."""

from typing import Any

import pytest

from simulator.manifests import read_manifests
from tests.deploy.manifests import DEPLOY, Json
from tests.deploy.policies import Update, denials
from tests.deploy.policy_examples import NAMES, OTHER_USER

POLICY, BINDING = read_manifests(DEPLOY / "components/void/policy.yaml")
VOID = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
GPU = {"resources": {"limits": {NAMES.core: "100"}}}
ZERO = {"resources": {"limits": {NAMES.core: "0"}}}
ALL = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
FROM = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}


def _denied(**containers: list[Json]) -> list[str]:
    spec: Json = {"containers": []}
    for field, listed in containers.items():
        spec[field] = [{"name": f"{field[0]}{at}", **each} for at, each in enumerate(listed)]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    return denials(_everywhere(), Update(OTHER_USER, {}, pod, operation="CREATE"))


def _everywhere() -> Json:
    constraints = {**POLICY["spec"]["matchConstraints"], "namespaceSelector": {}}
    return {**POLICY, "spec": {**POLICY["spec"], "matchConstraints": constraints}}


@pytest.mark.parametrize(
    ("containers", "names"),
    [
        ({"containers": [{"env": VOID}]}, ""),
        ({"containers": [GPU, {}]}, "c1"),
        ({"containers": [ZERO]}, "c0"),
        ({"containers": [{"env": []}, {"env": [ALL]}, {"env": [FROM]}]}, "c0, c1, c2"),
        ({"containers": [{"env": [*VOID, ALL]}]}, "c0"),
        ({"containers": [{"env": VOID}], "initContainers": [{}]}, "i0"),
        ({"containers": [{"env": VOID}], "ephemeralContainers": [{}]}, "e0"),
    ],
)
def test_a_container_that_requests_no_gpu_must_set_its_visible_devices_to_none(
    containers: dict[str, Any], names: str
) -> None:
    found = _denied(**containers)
    assert [each.split(": ")[0] for each in found] == ([f"containers {names}"] if names else [])


def test_the_policy_applies_only_to_labelled_namespaces() -> None:
    selector = POLICY["spec"]["matchConstraints"]["namespaceSelector"]
    assert selector == {"matchLabels": {"gpu-turnstile.io/void": "demanded"}}
    assert (
        denials(POLICY, Update(OTHER_USER, {}, {"kind": "Pod", "spec": {}}, operation="CREATE"))
        == []
    )
    assert BINDING["spec"] == {
        "policyName": POLICY["metadata"]["name"],
        "validationActions": ["Deny", "Audit"],
    }
