import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import InvalidName, quote
from contract.names import Names

NAMES = """
vcuda-core vcuda-memory vcuda-core-limit predicate-time predicate-node predicate-gpu-idx-
admission-order bind-order gpu-assigned gpu-allocation gpu-cards gpu-cards- gpu-cordoned gpu-model
use-gpu-type nouse-gpu-type use-gpu-uuid nouse-gpu-uuid gpu-policy gpu-node-policy gpu-link
translated-from
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
