"""The switch without which the suite uses no cluster; runs with the unit tests."""

import pytest

from tests.e2e.settings import NotRequested, read_settings

CLUSTER = {"KUBECONFIG": "/etc/kube"}
NOT_REQUESTED = "uses a real cluster: run it with `make e2e`, or set GPU_TURNSTILE_E2E=1"
NO_CLUSTER = "KUBECONFIG is not set: no cluster to run against"
TOGETHER = "the suite needs its node for itself: run it without --numprocesses"


@pytest.mark.parametrize(
    ("environ", "marks", "reason"),
    [
        (CLUSTER, "", NOT_REQUESTED),
        (CLUSTER, "not e2e", NOT_REQUESTED),
        ({"KUBECONFIG": ""}, "e2e", NO_CLUSTER),
        (CLUSTER | {"PYTEST_XDIST_WORKER": "gw0"}, "e2e", TOGETHER),
    ],
)
def test_the_suite_is_skipped_with_a_reason(
    environ: dict[str, str], marks: str, reason: str
) -> None:
    with pytest.raises(NotRequested) as raised:
        read_settings(environ, marks=marks)
    assert str(raised.value) == reason


def test_an_upgrade_is_commands_separated_by_semicolons() -> None:
    environ = CLUSTER | {"GPU_TURNSTILE_E2E_UPGRADE_KUBELET": "switch '/opt/new kubelet'; back;"}
    steps = read_settings(environ, marks="e2e").upgrade_kubelet
    assert steps == (("switch", "/opt/new kubelet"), ("back",))
