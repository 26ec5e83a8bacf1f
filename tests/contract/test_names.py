"""Names of ours: in their domain, in the order of the resources, and in manifests."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.demand import Demand
from contract.errors import InvalidName, quote
from contract.names import Names
from contract.resource import Resource

NAMES = """
vcuda-core vcuda-memory vcuda-core-limit predicate-time predicate-node predicate-gpu-idx-
admission-order bind-order gpu-assigned gpu-allocation gpu-cards gpu-cards- gpu-cordoned gpu-model
use-gpu-type nouse-gpu-type use-gpu-uuid nouse-gpu-uuid gpu-policy gpu-node-policy gpu-link
gpu-processes gpu-promise translated-from
"""


@pytest.mark.parametrize("domain", ["tencent.com", "a", "a-b.c-d", "x" * 253, "kubernetes.io.x"])
def test_each_name_is_under_the_domain(domain: str) -> None:
    names = Names(domain)
    found = {each: getattr(names, each) for each in dir(Names) if not each.startswith("_")}
    strings = {text for each, text in found.items() if isinstance(text, str) and each != "domain"}
    assert strings == {f"{domain}/{each}" for each in NAMES.split()}
    assert names.wishes < strings
    assert names.core == f"{domain}/vcuda-core"
    assert names.predicate_gpu_idx(3) == f"{domain}/predicate-gpu-idx-3"
    assert Names().domain == "tencent.com"


_LOWER = "must be a lower-case DNS name such as tencent.com"
_RESERVED = "kubernetes.io is reserved for Kubernetes itself, an extended resource cannot have it"


@pytest.mark.parametrize(
    ("domain", "rule"),
    [
        *((each, _LOWER) for each in ("", "Tencent.com", "-a.com", "a-.com", "a..b", "a.", "a/b")),
        *((each, _LOWER) for each in ("a\n", "a_b", "\u00e9", "x" * 254)),
        *((each, _RESERVED) for each in ("kubernetes.io", "gpu.kubernetes.io")),
    ],
)
def test_a_domain_that_is_no_name_or_reserved_is_refused(domain: str, rule: str) -> None:
    with pytest.raises(InvalidName) as caught:
        Names(domain)
    assert str(caught.value) == f"domain: Invalid value: {quote(domain)}: {rule}"


@given(st.text())
def test_any_domain_is_accepted_or_refused_without_another_error(domain: str) -> None:
    try:
        names = Names(domain)
    except InvalidName:
        return
    assert names.core == f"{domain}/vcuda-core"
    assert domain == domain.lower()


DEPLOY = Path(__file__).parents[2] / "deploy"
LISTING = [
    path
    for path in sorted(DEPLOY.rglob("*.yaml"))
    if "examples" not in path.parts and "/vcuda-core'" in path.read_text(encoding="utf-8")
]


def test_names_and_counts_are_in_the_order_of_the_resources() -> None:
    assert list(Names("example.org").resources) == [
        "example.org/vcuda-core",
        "example.org/vcuda-memory",
    ]
    assert [each.count_in(Demand(50, 8)) for each in Resource] == [50, 8]


@pytest.mark.parametrize("path", LISTING, ids=lambda path: path.name)
def test_a_manifest_that_names_one_resource_names_all(path: Path) -> None:
    found = re.findall(r"'/vcuda-(\w+)'", path.read_text(encoding="utf-8"))
    assert {found.count(each) for each in Resource} == {found.count("core")}, path


def test_the_manifests_are_found() -> None:
    assert {path.name for path in LISTING} >= {"configurations.yaml", "requests.yaml"}
