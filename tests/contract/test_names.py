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


@pytest.mark.parametrize(
    "domain",
    ["", "Tencent.com", "-a.com", "a-.com", "a..b", "a.", "a/b", "a\n", "a_b", "\u00e9", "x" * 254],
)
def test_a_domain_the_api_server_would_refuse_is_refused(domain: str) -> None:
    with pytest.raises(InvalidName) as caught:
        Names(domain)
    assert str(caught.value) == (
        f"domain: Invalid value: {quote(domain)}: must be a lower-case DNS name such as tencent.com"
    )


@pytest.mark.parametrize("domain", ["kubernetes.io", "gpu.kubernetes.io"])
def test_the_domain_of_kubernetes_is_refused(domain: str) -> None:
    with pytest.raises(InvalidName) as caught:
        Names(domain)
    assert str(caught.value) == (
        f'domain: Invalid value: "{domain}": kubernetes.io is reserved for Kubernetes itself, '
        "an extended resource cannot have it"
    )


@given(st.text())
def test_any_domain_is_accepted_or_refused_without_another_error(domain: str) -> None:
    try:
        names = Names(domain)
    except InvalidName:
        return
    assert names.core == f"{domain}/vcuda-core"
    assert domain == domain.lower()
