import pytest

from contract.names import Names
from tests.webhook.admission.building import Json
from webhook.admission.validation import read_pod

NAMES = Names()


def test_a_pod_without_gpus_is_not_read(pod: Json) -> None:
    pod["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1"}}
    pod["metadata"] = "whatever"
    assert read_pod(pod, NAMES) is None


@pytest.mark.parametrize("metadata", [None, {}, {"annotations": None}, {"annotations": {}}])
def test_metadata_may_be_missing(pod: Json, metadata: object) -> None:
    found = read_pod(pod | {"metadata": metadata}, NAMES)
    assert found is not None
    assert [each.name for each in found.demand.containers] == ["main"]
    assert found.errors == ()


@pytest.mark.parametrize("path", ["", "spec.jobTemplate.spec.template."])
@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ("x", 'metadata: Invalid value: "x": must be a mapping'),
        ({"annotations": []}, "metadata.annotations: Invalid value: a list: must be a mapping"),
        ({"annotations": False}, "metadata.annotations: Invalid value: false: must be a mapping"),
        (
            {"annotations": {NAMES.use_gpu_type: "A100", NAMES.gpu_policy: "fair"}},
            (
                f'metadata.annotations[{NAMES.gpu_policy}]: Invalid value: "fair": '
                "must be binpack or spread"
            ),
        ),
    ],
)
def test_every_finding_has_its_path_from_the_root(
    pod: Json, metadata: object, message: str, path: str
) -> None:
    pod["metadata"] = metadata
    pod["spec"]["containers"][0]["resources"]["limits"] = {NAMES.core: "150"}
    found = read_pod(pod, NAMES, path=path)
    assert found is not None
    first, second = found.errors
    assert str(first) == f"{path}{message}"
    assert second.path == f"{path}spec.containers[0].resources.limits[{NAMES.core}]"
