"""Roles and accounts in deploy/, without a run of any program."""

from tests.rbac.grants import accounts, read, reference, rights, role_keys, subjects

WITH_RIGHTS = ("agent", "certs", "claims", "gates", "scheduler", "view")


def test_the_webhook_may_do_nothing() -> None:
    assert rights("webhook", read()) == []


def test_every_role_is_bound_and_only_to_accounts_of_our_programs() -> None:
    objects = read()
    bindings = [each for each in objects if each["kind"].endswith("RoleBinding")]
    programs = (*WITH_RIGHTS, "webhook", "kube-scheduler", "proxy")
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
    found = {each: accounts(objects, each) for each in (*WITH_RIGHTS, "webhook", "kube-scheduler")}
    # The extender as a sidecar has that of its pod.
    assert found["kube-scheduler"] < found["scheduler"]
    found["scheduler"] -= found["kube-scheduler"]
    # A rotation of the webhook's certificates may not touch the extender's, and the reverse.
    assert {name: len(each) for name, each in found.items()} == {
        **dict.fromkeys(found, 1),
        "certs": 2,
    }
    assert len(set().union(*found.values())) == len(found) + 1
