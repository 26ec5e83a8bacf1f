from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.names import Names
from contract.requests import read_pod_demand
from tests.examples import any_json
from webhook.admission.decision import bounded
from webhook.admission.warnings import about_environment, about_runtime_class

NAMES = Names()
LIMITS = {NAMES.core: "30", NAMES.memory: "4"}


def container(name: str = "main", *variables: str, limits: Any = LIMITS) -> dict[str, Any]:
    env = [{"name": each, "value": "all"} for each in variables]
    return {"name": name, "resources": {"limits": limits}, "env": env}


def about(spec: Any) -> list[str]:
    demand, _ = read_pod_demand({"spec": spec}, NAMES)
    return list(about_environment(spec, demand))


@pytest.mark.parametrize(
    "variable",
    [
        "NVIDIA_VISIBLE_DEVICES",
        *(f"CUDA_DEVICE_{each}" for each in ("MEMORY_LIMIT", "MEMORY_LIMIT_0", "SM_LIMIT")),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE",
        "GPU_CORE_UTILIZATION_POLICY",
    ],
)
@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_a_variable_that_overrides_the_nodes_settings_is_warned_of(
    field: str, variable: str
) -> None:
    plain = container("plain", variable, limits={})
    spec = {field: [container("main", "PATH", "CUDA_VISIBLE_DEVICES", variable), plain]}
    assert about(spec) == [f"container main: env {variable} overrides the node's value"]


MAY_LACK = "it may lack libcuda, then CUDA and HAMi-core fail"
LACKS_NVML = "container main: NVIDIA_DRIVER_CAPABILITIES lacks utility: HAMi-core fails"
LACKS = "container main: NVIDIA_DRIVER_CAPABILITIES lacks compute: CUDA and HAMi-core fail"


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        (["utility"], [LACKS]),
        (["graphics, display"], [LACKS]),
        (["all", "video,utility"], [LACKS]),  # the last one counts
        (["utility", "compute,utility"], []),
        (["compute"], [LACKS_NVML]),
        (["compute,utility"], []),
        (["utility, compute"], []),
        (["all"], []),
        ([""], []),  # NVIDIA's runtime then takes utility,compute
        ([None], []),  # from a ConfigMap: unknown
        ([5], []),
    ],
)
def test_driver_capabilities_without_libcuda_are_warned_of(
    values: list[Any], lines: list[str]
) -> None:
    spec = {"containers": [container(), container("plain", limits={})]}
    for each in spec["containers"]:
        each["env"] = [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": value} for value in values]
    assert about(spec) == lines


@pytest.mark.parametrize(
    ("ours", "given", "lines"),
    [
        ("nvidia", "kata", [f"runtimeClassName kata, not nvidia: {MAY_LACK}"]),
        *(("nvidia", given, []) for given in (None, "nvidia", "nvidia-cdi", "", 5)),
        ("", "kata", []),  # which class has the driver is unknown
    ],
)
def test_another_runtime_class_than_the_clusters_is_warned_of(
    ours: str, given: object, lines: list[str]
) -> None:
    assert list(about_runtime_class({"runtimeClassName": given}, ours)) == lines


junk = any_json("name", "env", "containers", "x")


@given(st.lists(junk | st.fixed_dictionaries({"name": junk}), max_size=3), junk)
def test_warnings_about_hostile_specs_are_bounded(env: list[Any], more: Any) -> None:
    spec = {"containers": [{**container("m" * 200), "env": env}, more], "initContainers": more}
    for line in about(spec):
        assert bounded([line])[0] == line  # nothing is cut
    assert list(about_environment(more, read_pod_demand({"spec": spec}, NAMES)[0])) is not None
