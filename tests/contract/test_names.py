import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import InvalidName
from contract.names import Names

patient = settings(deadline=None)  # a busy machine is no failure


def test_every_name_lives_under_the_default_domain() -> None:
    names = Names()
    assert {
        "core": names.core,
        "memory": names.memory,
        "predicate_time": names.predicate_time,
        "admission_order": names.admission_order,
        "bind_order": names.bind_order,
        "predicate_node": names.predicate_node,
        "gpu_assigned": names.gpu_assigned,
        "gpu_allocation": names.gpu_allocation,
        "predicate_gpu_idx_prefix": names.predicate_gpu_idx_prefix,
        "gpu_cards": names.gpu_cards,
    } == {
        "core": "tencent.com/vcuda-core",
        "memory": "tencent.com/vcuda-memory",
        "predicate_time": "tencent.com/predicate-time",
        "admission_order": "tencent.com/admission-order",
        "bind_order": "tencent.com/bind-order",
        "predicate_node": "tencent.com/predicate-node",
        "gpu_assigned": "tencent.com/gpu-assigned",
        "gpu_allocation": "tencent.com/gpu-allocation",
        "predicate_gpu_idx_prefix": "tencent.com/predicate-gpu-idx-",
        "gpu_cards": "tencent.com/gpu-cards",
    }


def test_one_setting_changes_the_domain_everywhere() -> None:
    names = Names("gpu.example.org")
    every = [
        getattr(names, name)
        for name in dir(Names)
        if not name.startswith("_") and isinstance(getattr(names, name), str) and name != "domain"
    ]
    assert len(every) == 16
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


@patient
@given(st.text())
def test_a_domain_is_accepted_or_refused_and_nothing_else_happens(domain: str) -> None:
    try:
        names = Names(domain)
    except InvalidName:
        return
    assert names.core == f"{domain}/vcuda-core"
    assert domain == domain.lower()
