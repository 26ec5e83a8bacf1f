import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import InvalidName
from contract.names import Names


@pytest.mark.parametrize("domain", ["tencent.com", "gpu.example.org"])
def test_every_name_lives_under_the_domain(domain: str) -> None:
    names = Names(domain)
    expected = {
        "core": "vcuda-core",
        "memory": "vcuda-memory",
        "predicate_time": "predicate-time",
        "admission_order": "admission-order",
        "bind_order": "bind-order",
        "predicate_node": "predicate-node",
        "gpu_assigned": "gpu-assigned",
        "gpu_allocation": "gpu-allocation",
        "predicate_gpu_idx_prefix": "predicate-gpu-idx-",
        "gpu_cards": "gpu-cards",
        "gpu_cordoned": "gpu-cordoned",
        "gpu_model": "gpu-model",
        "use_gpu_type": "use-gpu-type",
        "nouse_gpu_type": "nouse-gpu-type",
        "use_gpu_uuid": "use-gpu-uuid",
        "nouse_gpu_uuid": "nouse-gpu-uuid",
        "gpu_policy": "gpu-policy",
        "gpu_node_policy": "gpu-node-policy",
        "gpu_link": "gpu-link",
        "core_limit": "vcuda-core-limit",
    }
    found = {name: getattr(names, name) for name in dir(Names) if not name.startswith("_")}
    strings = {name: each for name, each in found.items() if isinstance(each, str)}
    del strings["domain"]
    assert strings == {name: f"{domain}/{each}" for name, each in expected.items()}
    assert names.wishes < set(strings.values())
    assert names.predicate_gpu_idx(3) == f"{domain}/predicate-gpu-idx-3"
    assert Names().domain == "tencent.com"


@pytest.mark.parametrize(
    "domain", ["tencent.com", "a", "1", "a-b.c-d", "x" * 253, "localhost", "kubernetes.io.example"]
)
def test_a_subdomain_is_accepted(domain: str) -> None:
    assert Names(domain).core == f"{domain}/vcuda-core"


@pytest.mark.parametrize(
    ("domain", "shown"),
    [
        ("", '""'),
        ("Tencent.com", '"Tencent.com"'),
        ("-a.com", '"-a.com"'),
        ("a-.com", '"a-.com"'),
        ("a..b", '"a..b"'),
        (".a", '".a"'),
        ("a.", '"a."'),
        ("a/b", '"a/b"'),
        ("a b", '"a b"'),
        ("a\n", '"a\\n"'),
        ("a_b", '"a_b"'),
        ("é", '"\\u00e9"'),
        ("x" * 254, '"' + "x" * 64 + '"...'),
    ],
)
def test_a_domain_the_api_server_would_refuse_is_refused(domain: str, shown: str) -> None:
    with pytest.raises(InvalidName) as caught:
        Names(domain)
    assert str(caught.value) == (
        f"domain: Invalid value: {shown}: must be a lower-case DNS name such as tencent.com"
    )


@pytest.mark.parametrize("domain", ["kubernetes.io", "gpu.kubernetes.io"])
def test_the_domain_of_kubernetes_is_refused(domain: str) -> None:
    with pytest.raises(InvalidName) as caught:
        Names(domain)
    assert str(caught.value) == (
        f'domain: Invalid value: "{domain}": kubernetes.io is reserved for Kubernetes itself, '
        "an extended resource cannot live there"
    )


@given(st.text())
def test_a_domain_is_accepted_or_refused_and_nothing_else_happens(domain: str) -> None:
    try:
        names = Names(domain)
    except InvalidName:
        return
    assert names.core == f"{domain}/vcuda-core"
    assert domain == domain.lower()
