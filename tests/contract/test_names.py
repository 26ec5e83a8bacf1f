import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import InvalidName
from contract.names import Names


def test_every_name_lives_under_the_default_domain() -> None:
    names = Names()
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
        "gpu_model": "gpu-model",
    }
    for name, value in expected.items():
        assert getattr(names, name) == f"tencent.com/{value}"


def test_one_setting_changes_the_domain_everywhere() -> None:
    names = Names("gpu.example.org")
    every = [
        getattr(names, name)
        for name in dir(Names)
        if not name.startswith("_") and isinstance(getattr(names, name), str) and name != "domain"
    ]
    assert len(every) == 20
    assert names.wishes < set(every)
    assert all(each.startswith("gpu.example.org/") for each in every)
    assert names.predicate_gpu_idx(3) == "gpu.example.org/predicate-gpu-idx-3"


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
