"""Misspelt names of ours."""

from typing import Any

import pytest

from contract.names import Names
from contract.other_systems import REQUESTS, RESOURCES, WISHES
from contract.spelling import (
    MisnamedRequest,
    advise_names,
    find_misnamed,
    intended_cards,
    intended_wish,
)

Json = dict[str, Any]
NAMES = Names()


def _pod(*listings: Json, field: str = "containers") -> Json:
    return {"spec": {field: [{"name": "c", "resources": each} for each in listings]}}


def _find(pod: Json) -> tuple[MisnamedRequest, ...]:
    return find_misnamed(pod, NAMES)


def _advice(pod: Json) -> tuple[str, ...]:
    return advise_names(_find(pod))


@pytest.mark.parametrize(
    ("name", "right"),
    [
        *(
            (name, NAMES.core)
            for name in ("vcuda-cores", "vcuda-cor", "vcuda_core", "vcuda", "vCUDA-core")
        ),
        *((name, NAMES.memory) for name in ("vcuda-mem", "vcuda-memery", "vcuda-memories")),
    ],
)
def test_a_name_of_our_domain_that_is_nearly_ours_is_an_error_with_the_right_name(
    name: str, right: str
) -> None:
    (found,) = _find(_pod({"limits": {f"tencent.com/{name}": "50"}}))
    assert str(found.error) == (
        f"spec.containers[0].resources.limits[tencent.com/{name}]: Invalid value: "
        f'"50": no node has such a resource: write {right}'
    )
    assert found.replaces == f"spec.containers[0].resources.limits[{right}]"


@pytest.mark.parametrize("domain", ["tencent.io", "tencent.co", "example.com"])
def test_a_name_of_another_domain_has_advice_once(domain: str) -> None:
    limits = {f"{domain}/vcuda-core": "50", f"{domain}/vcuda-mem": "8"}
    pod = _pod({"limits": limits}, {"requests": limits})
    assert not any(each.error for each in _find(pod))
    assert _advice(pod) == (
        f"write tencent.com/vcuda-core, {domain}/vcuda-core is not served here",
        f"write tencent.com/vcuda-memory, {domain}/vcuda-mem is not served here",
    )


@pytest.mark.parametrize(
    ("name", "right"),
    [
        *((name, NAMES.of(resource)) for name, resource in RESOURCES.items()),
        ("nvidia.com/mig-1g.10gb", NAMES.core),
        *((f"tencent.com/{name}", NAMES.core) for name in ("gpu", "gpus", "gpu-core", "GPU")),
        *((f"tencent.com/{name}", NAMES.memory) for name in ("gpumem", "gpu-memory")),
    ],
)
def test_another_systems_resource_has_advice_and_is_no_error(name: str, right: str) -> None:
    unit = "100 is one card" if right == NAMES.core else "in blocks"
    pod = _pod({"limits": {name: "1"}}, {"limits": {name: "1"}})
    assert not any(each.error for each in _find(pod))
    assert _advice(pod) == (f"write {right} ({unit}): gpu-turnstile does not serve {name}",)
    assert _find(_pod({"limits": {name: "0"}})) == (), "0 requests nothing"


def test_the_names_of_one_system_have_one_sentence_for_each_resource() -> None:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096, "nvidia.com/gpucores": 30}
    cores, memory = _advice(_pod({"limits": limits}))
    assert cores.endswith("gpu-turnstile does not serve nvidia.com/gpu, nvidia.com/gpucores")
    assert memory.endswith("gpu-turnstile does not serve nvidia.com/gpumem")


def test_a_share_that_an_annotation_requests_has_advice() -> None:
    for key, resource in REQUESTS.items():
        unit = "100 is one card" if NAMES.of(resource) == NAMES.core else "in blocks"
        assert _advice({"metadata": {"annotations": {key: "0.5"}}, "spec": {}}) == (
            f"write {NAMES.of(resource)} in limits ({unit}): gpu-turnstile does not serve {key}",
        )


@pytest.mark.parametrize(
    "name",
    [
        *(NAMES.core, NAMES.memory, "cpu", "amd.com/gpu", "gpu.intel.com/i915", "example.com/gpu"),
        *("tencent.com/other", "tencent.com/vcuda-something-else"),
    ],
)
def test_our_own_and_foreign_names_cause_no_warning(name: str) -> None:
    assert _find(_pod({"limits": {name: "1"}})) == ()


def test_requests_that_the_api_server_copied_from_limits_are_not_reported() -> None:
    misspelt = {"tencent.com/vcuda-cores": "50"}
    pod = _pod({"limits": misspelt, "requests": misspelt}, field="initContainers")
    assert [each.error and each.error.path for each in find_misnamed(pod, NAMES, path="t.")] == [
        "t.spec.initContainers[0].resources.limits[tencent.com/vcuda-cores]"
    ]


def test_only_a_few_of_thousands_of_names_are_listed() -> None:
    limits = {f"tencent.com/vcuda-core{each}": "1" for each in range(5000)}
    assert len(_find(_pod({"limits": limits}))) == 32
    assert _find(_pod({"limits": {"a" * 10**6 + "/vcuda-core": "1"}})) == ()


@pytest.mark.parametrize(
    ("key", "right"),
    [
        *((name, name.rpartition("/")[2]) for name in sorted(NAMES.wishes)),
        *WISHES.items(),
        *(
            (key, "use-gpu-type")
            for key in (
                "tencent.com/use-gputype",  # HAMi's word in our domain
                *("tencent.com/Use-GPU-Type", "Tencent.com/use-gpu-type"),
                *("tencent.com/use_gpu_type", "tencent.com/use-gpu-types", "tencent.com/gpu-type"),
                *("tencent.io/use-gpu-type", "example.com/Use-GPU-types", "use-gpu-type"),
            )
        ),
        ("tencent.com/gpu-scheduler-policy", "gpu-policy"),
        ("tencent.com/nouse-gpu-uuids", "nouse-gpu-uuid"),
        ("tencent.com/gpu-polcy", "gpu-policy"),
        ("tencent.com/vcuda-corelimit", "vcuda-core-limit"),
    ],
)
def test_a_misspelt_wish_is_recognized(key: str, right: str) -> None:
    assert intended_wish(key, NAMES) == f"tencent.com/{right}"


@pytest.mark.parametrize(
    "key",
    [
        *(NAMES.predicate_time, NAMES.admission_order, NAMES.bind_order, NAMES.predicate_node),
        *(NAMES.gpu_assigned, NAMES.gpu_allocation, NAMES.predicate_gpu_idx("init-0")),
        *(NAMES.core, NAMES.memory, NAMES.gpu_cordoned, NAMES.gpu_cards, NAMES.gpu_model),
        *("tencent.com/other", "tencent.com/vcuda-device", "tencent.com/", "", "/", "app"),
        *("gpu-type", "example.com/gpu-type", "nvidia.com/gpu.product", "gpu"),
        *("example.com/node-scheduler-policy", "a" * 10**6),
    ],
)
def test_other_annotations_are_not_taken_for_wishes(key: str) -> None:
    assert intended_wish(key, NAMES) == ""


@pytest.mark.parametrize(
    ("key", "container"),
    [
        *(
            (f"tencent.com/{name}", "main")
            for name in (
                *("gpu-cards-main", "gpu-card-main", "gpu-cards_main", "gpu-cards.main"),
                *("gpu_cards_main", "gpucards-main", "GPU-Cards-main", "vcuda-cards-main"),
            )
        ),
        ("tencent.com/gpu-card-mian", "mian"),  # its reader reports the right name
        ("tencent.com/gpu-cards", "<container>"),
        ("tencent.com/gpu-card-", "<container>"),
        ("tencent.io/gpu-cards-main", "main"),
        ("gpu-card-main", "main"),
    ],
)
def test_a_misspelt_number_of_cards_is_recognized(key: str, container: str) -> None:
    right = NAMES.gpu_cards_of(container)
    assert intended_cards(key, NAMES, ["main", "side"]) == right
    if container == "<container>":  # the only one is named
        assert intended_cards(key, NAMES, ["main"]) == NAMES.gpu_cards_of("main")


@pytest.mark.parametrize(
    "key",
    [
        *("gpu-card", "example.com/gpu-cards", "gpu-card-type", "example.com/gpu-cards-other"),
        *("tencent.com/gpu-cardsmain", "tencent.com/cards-main", "tencent.com/gpu-cordoned"),
        *("", "/", "tencent.com/gpu-cards-" + "a" * 10**6, *sorted(NAMES.wishes)),
    ],
)
def test_other_annotations_do_not_divide_a_share(key: str) -> None:
    assert intended_cards(key, NAMES, ["main", "side"]) == ""
