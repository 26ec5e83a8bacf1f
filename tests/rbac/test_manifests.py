"""Reading what deploy/ grants, on small files."""

from typing import Any

from tests.rbac.comparison import never_granted, too_little, too_much
from tests.rbac.manifests import Account, Manifest, granted, subjects, unbound
from tests.rbac.rules import Request

AGENT = Account("gpu-turnstile", "agent")


def workload(kind: str, *args: str, account: str = "agent", **pod: Any) -> Manifest:
    template = {
        "spec": {"serviceAccountName": account, "containers": [{"name": "c", "args": list(args)}]}
        | pod
    }
    spec: dict[str, Any] = {"template": template}
    if kind == "CronJob":
        spec = {"jobTemplate": {"spec": spec}}
    return Manifest("w.yaml", {"kind": kind, "metadata": {"name": "w"}, "spec": spec})


def role(*verbs: str) -> Manifest:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": list(verbs)}]
    return Manifest("r.yaml", {"kind": "ClusterRole", "metadata": {"name": "r"}, "rules": rules})


def binding(of: str = "ClusterRoleBinding", **subject: str) -> Manifest:
    who = {"kind": "ServiceAccount", "name": "agent", "namespace": "gpu-turnstile"} | subject
    return Manifest(
        "b.yaml",
        {
            "kind": of,
            "metadata": {"name": "b"},
            "roleRef": {"kind": "ClusterRole", "name": "r"},
            "subjects": [who],
        },
    )


def test_a_role_holds_where_it_is_bound() -> None:
    everywhere = granted([role("get"), binding()], AGENT)
    assert [each.namespace for each in everywhere] == [""]
    here = granted([role("get"), binding("RoleBinding")], AGENT)
    assert [each.namespace for each in here] == ["gpu-turnstile"]
    assert granted([role("get"), binding(name="other")], AGENT) == []


def test_a_role_that_nobody_has_and_a_stranger_are_named() -> None:
    assert unbound([role("get")], {AGENT}) == [
        "r.yaml: ClusterRole r is bound to nobody: remove it"
    ]
    (line,) = unbound([role("get"), binding(name="default")], {AGENT})
    who = "ServiceAccount gpu-turnstile/default"
    assert line == f"b.yaml: ClusterRoleBinding b: {who} runs none of our programs"
    everybody = binding(kind="Group", name="system:authenticated")
    assert subjects(everybody) == {Account("Group", "system:authenticated")}
    assert unbound([role("get"), binding()], {AGENT}) == []


# --- what the comparison says ------------------------------------------------------------

PODS = [Request("get", "", "pods", "a", "p"), Request("get", "", "pods", "b", "q")]
RUNS = workload("DaemonSet", "agent")


def test_a_verb_that_was_removed_is_missing() -> None:
    first, second = too_little("agent", PODS, [RUNS, role("list"), binding()])
    who = "python -m agent (ServiceAccount gpu-turnstile/agent)"
    what = 'verb "get" on "pods" (apiGroup "")'
    assert first == f'r.yaml: {who} needs {what} named "p", in namespace a: add it'
    assert second == f'r.yaml: {who} needs {what} named "q", in namespace b: add it'


def test_a_verb_that_was_added_is_superfluous() -> None:
    (line,) = too_much("agent", PODS, [RUNS, role("get", "delete"), binding()])
    what = 'verb "delete" on "pods" (apiGroup "")'
    assert line == f"r.yaml: ClusterRole r: {what}: python -m agent does not need that: remove it"


def test_names_and_namespaces_of_tests_do_not_matter_to_the_net() -> None:
    role_ = role("get")
    role_.body["rules"][0]["resourceNames"] = ["p"]
    manifests = [RUNS, role_, binding("RoleBinding")]
    assert too_little("agent", PODS, manifests)
    assert never_granted("agent", PODS, manifests) == []
    (line,) = never_granted("agent", [Request("delete", "", "pods", "a", "p")], manifests)
    assert line == (
        "deploy/ lets python -m agent do no such thing: "
        'verb "delete" on "pods" (apiGroup "") named "p", in namespace a'
    )
