"""Each program may do what it asks for, and nothing else; the webhook may do nothing.

What the API server has recorded of it is held against deploy/, in both directions.
"""

from pathlib import Path

import pytest

from scheduler import election
from tests.rbac import program_runs
from tests.rbac.grants import (
    Permission,
    Request,
    accounts,
    missing,
    read,
    reference,
    rights,
    role_keys,
    subjects,
    superfluous,
)

PROGRAM_RUNS = {
    "agent": program_runs.agents,
    "certs": program_runs.rotations,
    "claims": program_runs.claims,
    "scheduler": program_runs.extender,
    "view": program_runs.page,
}


@pytest.fixture(scope="module", params=PROGRAM_RUNS)
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def heard(program: str, tmp_path_factory: pytest.TempPathFactory) -> set[Request]:
    by_name = PROGRAM_RUNS[program](tmp_path_factory.mktemp(program))
    assert set(by_name) == {program}, "audit logs name who asked"
    return by_name[program]


def test_a_program_may_do_what_it_asks_for_and_nothing_else(
    program: str, heard: set[Request]
) -> None:
    granted = rights(program, read())
    assert missing(heard, granted) == []
    # By OpenShift's admission, which asks whether an account may use an SCC: no request of ours.
    ours = [each for each in granted if each.group != "security.openshift.io"]
    assert superfluous(heard, ours) == []


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(election, "LAST_REQUESTS", -4.5)  # nobody else binds
    heard = program_runs.sidecar(tmp_path)["scheduler"]
    lease = Request(
        *("get", "coordination.k8s.io", "leases", "gpu-turnstile", "gpu-turnstile-kube-scheduler")
    )
    assert missing(heard, KUBE_SCHEDULER) == [lease]
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


def test_the_webhook_may_ask_for_nothing() -> None:
    assert rights("webhook", read()) == []


def test_every_role_is_bound_and_only_to_accounts_of_our_programs() -> None:
    objects = read()
    bindings = [each for each in objects if each["kind"].endswith("RoleBinding")]
    programs = (*PROGRAM_RUNS, "webhook", "kube-scheduler", "proxy")
    ours = set().union(*(accounts(objects, each) for each in programs))
    ours.add(("Group", "system:serviceaccounts:gpu-turnstile"))  # its SCC on OpenShift
    ours.add(("Group", "system:nodes"))  # below
    assert role_keys(objects) - set(map(reference, bindings)) == set()
    assert [each for each in bindings if subjects(each) - ours] == []


def test_kubelets_may_read_claims_by_name_and_nothing_else() -> None:
    objects = read()
    kubelets = ("Group", "system:nodes")
    (binding,) = (
        each
        for each in objects
        if each["kind"].endswith("RoleBinding") and kubelets in subjects(each)
    )
    (role,) = (
        each
        for each in objects
        if each["kind"] == "ClusterRole" and each["metadata"]["name"] == binding["roleRef"]["name"]
    )
    assert role["rules"] == [
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]}
    ]


def test_each_program_has_an_account_of_its_own() -> None:
    objects = read()
    found = {each: accounts(objects, each) for each in (*PROGRAM_RUNS, "webhook", "kube-scheduler")}
    # The extender as a sidecar has that of its pod.
    assert found["kube-scheduler"] < found["scheduler"]
    found["scheduler"] -= found["kube-scheduler"]
    # A rotation of the webhook's certificates may not touch the extender's, and the reverse.
    assert {name: len(each) for name, each in found.items()} == {
        **dict.fromkeys(found, 1),
        "certs": 2,
    }
    assert len(set().union(*found.values())) == len(found) + 1
