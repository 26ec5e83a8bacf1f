import pytest

from contract.names import Names
from tests.webhook.admission.building import Json
from webhook.admission.validation import read_pod

NAMES = Names()


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
