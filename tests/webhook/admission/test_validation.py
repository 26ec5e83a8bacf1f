from typing import Any

import pytest

from contract.names import Names
from webhook.admission.validation import read_pod

NAMES = Names()
Json = dict[str, Any]


def test_a_pod_without_gpus_is_not_read(pod: Json) -> None:
    pod["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1"}}
    pod["metadata"] = "whatever"
    assert read_pod(pod, NAMES) is None


@pytest.mark.parametrize("metadata", [None, {}, {"annotations": None}, {"annotations": {}}])
def test_metadata_may_be_missing(pod: Json, metadata: object) -> None:
    found = read_pod(pod | {"metadata": metadata}, NAMES)
    assert found is not None
    demand, errors = found
    assert [each.name for each in demand.containers] == ["main"]
    assert errors == ()


@pytest.mark.parametrize("path", ["", "spec.jobTemplate.spec.template."])
def test_every_finding_has_its_path_from_the_root(pod: Json, path: str) -> None:
    pod["metadata"]["annotations"] = []
    pod["spec"]["containers"][0]["resources"]["limits"] = {NAMES.core: "150"}
    found = read_pod(pod, NAMES, path=path)
    assert found is not None
    assert [(each.path, each.rule) for each in found[1]] == [
        (f"{path}metadata.annotations", "not-a-mapping"),
        (f"{path}spec.containers[0].resources.limits[{NAMES.core}]", "not-whole-cards"),
    ]


@pytest.mark.parametrize("path", ["", "spec.template."])
def test_wishes_that_are_malformed_are_findings(pod: Json, path: str) -> None:
    pod["metadata"]["annotations"] = {NAMES.use_gpu_type: "A100", NAMES.gpu_policy: "fair"}
    found = read_pod(pod, NAMES, path=path)
    assert found is not None
    assert [str(each) for each in found[1]] == [
        (
            f'{path}metadata.annotations[{NAMES.gpu_policy}]: Invalid value: "fair": '
            "must be binpack or spread"
        )
    ]
