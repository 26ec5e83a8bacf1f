"""Each program may send the requests that it sends, and no others.

The requests that the API server has recorded are compared with deploy/, in both directions.
"""

from pathlib import Path

import pytest

from tests.rbac import program_runs
from tests.rbac.grants import (
    Permission,
    Request,
    missing,
    read,
    rights,
    superfluous,
)

PROGRAM_RUNS = {
    "agent": program_runs.agents,
    "certs": program_runs.rotations,
    "claims": program_runs.claims,
    "gates": program_runs.gates,
    "scheduler": program_runs.extender,
    "view": program_runs.page,
}


@pytest.fixture(scope="module", params=PROGRAM_RUNS)
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def requests(program: str, tmp_path_factory: pytest.TempPathFactory) -> set[Request]:
    by_name = PROGRAM_RUNS[program](tmp_path_factory.mktemp(program))
    assert set(by_name) == {program}, "audit logs name the program"
    return by_name[program]


def test_a_program_may_do_what_it_requests_and_nothing_else(
    program: str, requests: set[Request]
) -> None:
    granted = rights(program, read())
    assert missing(requests, granted) == []
    # Checked by OpenShift's admission when an account uses an SCC: no request of ours.
    ours = [each for each in granted if each.group != "security.openshift.io"]
    assert superfluous(requests, ours) == []


KUBE_SCHEDULER = [
    Permission("ClusterRole system:kube-scheduler", verb, "", resource)
    for resource, verbs in (
        ("nodes", ("get", "list", "watch")),
        ("pods", ("get", "list", "watch", "delete")),
        ("pods/binding", ("create",)),
    )
    for verb in verbs
]
"""What Kubernetes grants of what the extender needs (``bootstrappolicy/policy.go``)."""


def test_beside_a_kube_scheduler_the_extender_needs_no_more_than_to_read_its_lease(
    tmp_path: Path,
) -> None:
    requests = program_runs.sidecar(tmp_path)["scheduler"]
    lease = Request(
        *("get", "coordination.k8s.io", "leases", "gpu-turnstile", "gpu-turnstile-kube-scheduler")
    )
    assert missing(requests, KUBE_SCHEDULER) == [lease]
    (role,) = (
        each
        for each in read()
        if each["kind"] == "Role" and each["metadata"]["name"] == "gpu-turnstile-kube-scheduler"
    )
    assert {
        "apiGroups": [lease.group],
        "resources": [lease.resource],
        "resourceNames": [lease.name],
        "verbs": ["get", "update"],
    } in role["rules"]
