"""Labels and warnings of verdicts, and what pods are warned of."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.demand import ContainerDemand, ContainerKind, Demand, PodDemand
from contract.errors import FieldError
from contract.names import Names
from contract.requests import read_pod_demand
from tests.examples import any_json
from webhook.admission.decision import Decision, bounded
from webhook.admission.warnings import about_environment, about_memory, about_runtime_class, advise

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


# --- verdicts, and requests -------------------------------------------------------------


def test_ten_warnings_of_120_printable_characters_are_shown() -> None:
    """The eleventh turns the tenth into a count."""
    lines = [f"warning {number}" for number in range(12)]
    assert bounded(lines[:10]) == tuple(lines[:10])
    assert bounded(lines) == (*lines[:9], "and 3 more warnings like these")
    assert bounded(["x" * 121, "x" * 120]) == ("x" * 117 + "...", "x" * 120)
    assert bounded(["a\nb\x7fc\u2028d"]) == ("a?b?c?d",)


def test_a_verdict_is_named_by_what_it_does() -> None:
    error = FieldError("spec", "no", "b")
    other = FieldError("spec", "no", "a")
    assert Decision().label == "allowed"
    assert Decision(patch=({"op": "add"},)).label == "patched"
    denied = Decision(errors=(error, other, error))
    assert (denied.label, denied.allowed, denied.rules) == ("denied", False, ("a", "b"))


def _advise(demand: Demand, *, largest: int = 0, **annotations: object) -> list[str]:
    pod = PodDemand((ContainerDemand("main", ContainerKind.MAIN, 0, demand),))
    given = {f"{NAMES.domain}/{key.replace('_', '-')}": each for key, each in annotations.items()}
    return [*about_memory(pod, largest, in_blocks=True), *advise(pod, given, names=NAMES)]


@pytest.mark.parametrize(
    ("demand", "largest", "line"),
    [
        *((Demand(*usual), 0, "") for usual in ((50, 8), (100, 0), (300, 7), (0, 8), (50, 97))),
        *((Demand(*most), 96, "") for most in ((50, 96), (200, 192), (100, 2 * 96, 2))),
        (Demand(800, 8 * 1024), 0, ""),  # some cards have 256 GiB
        (Demand(50, 97), 96, "97 memory blocks, but the largest known card has 96"),
        (
            *(Demand(100, 2 * 97, 2), 96),
            "97 memory blocks of each of 2 cards, but the largest known card has 96",
        ),
        (
            *(Demand(50, 2048), 96),
            "2048 memory blocks, but the largest known card has 96: 2048 MiB are 8 of 256 MiB",
        ),
        (
            *(Demand(200, 16000), 0),
            "8000 memory blocks of 256 MiB are 2000 GiB on one card: 8000 MiB are 32",
        ),
    ],
)
def test_memory_that_no_card_has_may_be_in_mib(demand: Demand, largest: int, line: str) -> None:
    assert _advise(demand, largest=largest) == [f"container main: {line}"] * bool(line)


def test_a_wish_that_names_a_card_otherwise_than_by_a_uuid_is_warned_of() -> None:
    field = f"metadata.annotations[{NAMES.nouse_gpu_uuid}]"
    use, nouse = "GPU-5f3c1a2e,gpu-1,MIG-2", "0,GPU-1,all"
    assert _advise(Demand(50, 4), use_gpu_uuid=use, nouse_gpu_uuid=nouse) == [
        f"{field}: {each} is no UUID: kubectl gpu nodes" for each in ("0", "all")
    ]


@pytest.mark.parametrize(
    ("demand", "limit", "requested"),
    [
        (Demand(50, 4), "30", "50 cores"),
        *((Demand(50, 4), limit, "") for limit in ("50", "100", "many")),  # the last is an error
        (Demand(100, 4), "30", ""),
        (Demand(100, 4, 2), "50", ""),
        (Demand(100, 4, 2), "49", "50 cores of each of 2 cards"),
    ],
)
def test_a_limit_below_the_request_of_a_share_is_warned_of(
    demand: Demand, limit: str, requested: str
) -> None:
    line = f"container main: {requested}, but vcuda-core-limit allows only {limit}"
    assert _advise(demand, vcuda_core_limit=limit) == [line] * bool(requested)
