"""Names of resources that are nearly ours."""

from typing import Any

import pytest

from contract.names import Names
from contract.spelling import find_misspelt

Json = dict[str, Any]
NAMES = Names()


def _spec(*listings: Json, field: str = "containers") -> Json:
    return {field: [{"name": "c", "resources": each} for each in listings]}


@pytest.mark.parametrize(
    ("name", "right"),
    [
        *((name, NAMES.core) for name in ("vcuda-cores", "vcuda-cor", "vcuda_core", "vcuda")),
        *((name, NAMES.memory) for name in ("vcuda-mem", "vcuda-memery", "vcuda-memories")),
    ],
)
def test_a_name_of_our_domain_that_is_nearly_ours_is_an_error_with_the_right_name(
    name: str, right: str
) -> None:
    (error,), warnings = find_misspelt(_spec({"limits": {f"tencent.com/{name}": "50"}}), NAMES)
    assert str(error) == (
        f"spec.containers[0].resources.limits[tencent.com/{name}]: Invalid value: "
        f'"50": no node has such a resource: write {right}'
    )
    assert warnings == ()


@pytest.mark.parametrize("domain", ["tencent.io", "tencent.co", "example.com"])
def test_one_of_another_domain_is_a_warning_once(domain: str) -> None:
    limits = {f"{domain}/vcuda-core": "50", f"{domain}/vcuda-mem": "8"}
    errors, warnings = find_misspelt(_spec({"limits": limits}, {"requests": limits}), NAMES)
    assert errors == ()
    assert warnings == (
        f"write tencent.com/vcuda-core, {domain}/vcuda-core is not served here",
        f"write tencent.com/vcuda-memory, {domain}/vcuda-mem is not served here",
    )


@pytest.mark.parametrize(
    "name",
    [
        *(NAMES.core, NAMES.memory, "cpu", "nvidia.com/gpu", "aliyun.com/gpu-mem"),
        *("tencent.com/other", "tencent.com/vcuda-something-else"),
    ],
)
def test_our_own_and_foreign_names_cause_no_warning(name: str) -> None:
    assert find_misspelt(_spec({"limits": {name: "1"}}), NAMES) == ((), ())


def test_requests_that_the_api_server_copied_from_limits_are_not_reported() -> None:
    asked = {"tencent.com/vcuda-cores": "50"}
    errors, _ = find_misspelt(
        _spec({"limits": asked, "requests": asked}, field="initContainers"), NAMES, path="s"
    )
    assert [each.path for each in errors] == [
        "s.initContainers[0].resources.limits[tencent.com/vcuda-cores]"
    ]


def test_of_thousands_of_names_only_a_few_are_listed() -> None:
    limits = {f"tencent.com/vcuda-core{each}": "1" for each in range(5000)}
    assert len(find_misspelt(_spec({"limits": limits}), NAMES)[0]) == 32
    assert find_misspelt(_spec({"limits": {"a" * 10**6 + "/vcuda-core": "1"}}), NAMES) == ((), ())
