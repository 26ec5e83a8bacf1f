import pytest

from contract.runtimes import cdi_problem, runtime_of


@pytest.mark.parametrize(
    ("runtime", "problem"),
    [
        ("containerd://1.6.20", "containerd 1.6.20 reads no CDI specs, 1.7 and newer do"),
        ("containerd://v1.6.0-rc.1", "containerd 1.6.0-rc.1 reads no CDI specs, 1.7 and newer do"),
        ("containerd://1.7.0", ""),
        ("containerd://1.10.0", ""),
        ("containerd://2.1.6", ""),
        ("containerd://Unknown", ""),
        ("cri-o://1.36.2", ""),
        ("docker://1.6.2", ""),
        ("", ""),
    ],
)
def test_containerd_before_1_7_reads_no_cdi_specs(runtime: str, problem: str) -> None:
    assert cdi_problem(runtime) == problem
    assert (
        cdi_problem(runtime_of({"status": {"nodeInfo": {"containerRuntimeVersion": runtime}}}))
        == problem
    )


@pytest.mark.parametrize("node", [{}, {"status": None}, {"status": {"nodeInfo": None}}])
def test_a_node_may_show_no_runtime(node: dict[str, object]) -> None:
    assert runtime_of(node) == ""
