"""Reading what deploy/ grants, on small files."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.rbac.comparison import never_granted, rights, too_little, too_much
from tests.rbac.manifests import (
    Account,
    Manifest,
    accounts,
    granted,
    read,
    subjects,
    tokenless,
    unbound,
)
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


@pytest.mark.parametrize("kind", ["CronJob", "DaemonSet", "Deployment", "Job", "StatefulSet"])
def test_the_account_of_a_program_is_that_of_the_workload_that_starts_it(kind: str) -> None:
    for started in (("agent", "--inject", "cdi"), ("python", "-m", "agent"), ("-m", "agent")):
        assert accounts([workload(kind, *started)], "agent") == {AGENT}
        assert accounts([workload(kind, *started)], "webhook") == set()


def test_a_program_that_is_started_as_an_init_container_counts() -> None:
    pod = workload("Job", "webhook", initContainers=[{"name": "i", "args": ["certs", "rotate"]}])
    assert accounts([pod], "certs") == {AGENT}
    assert accounts([pod], "webhook") == {AGENT}


def test_a_patch_of_a_workload_and_other_kinds_start_nothing() -> None:
    patch = Manifest("p.yaml", {"kind": "DaemonSet", "metadata": {"name": "w"}})
    other = Manifest("s.yaml", {"kind": "Service", "metadata": {"name": "s"}, "spec": {}})
    assert accounts([patch, other, workload("Job")], "agent") == set()


def test_files_are_read_whole_and_named_from_the_repository(tmp_path: Path) -> None:
    folder = tmp_path / "deploy" / "base"
    folder.mkdir(parents=True)
    (folder / "all.yaml").write_text(yaml.safe_dump_all([role("get").body, None, {"a": 1}]))
    (folder / "kustomization.yaml").write_text("kind: Kustomization\nresources: [all.yaml]\n")
    removed = {**role("get").body, "$patch": "delete"}
    (folder / "without.yaml").write_text(yaml.safe_dump(removed))
    (found,) = read(tmp_path / "deploy", root=tmp_path)
    assert (found.file, found.kind, found.name) == ("deploy/base/all.yaml", "ClusterRole", "r")
    assert found.namespace == "gpu-turnstile"


def test_a_role_holds_where_it_is_bound() -> None:
    everywhere = granted([role("get"), binding()], AGENT)
    assert [each.namespace for each in everywhere] == [""]
    here = granted([role("get"), binding("RoleBinding")], AGENT)
    assert [each.namespace for each in here] == ["gpu-turnstile"]
    assert granted([role("get"), binding(name="other")], AGENT) == []


def test_a_binding_of_a_role_that_is_not_there_is_named() -> None:
    with pytest.raises(LookupError, match=r"^b.yaml: ClusterRoleBinding b: there is no ClusterRo"):
        granted([binding()], AGENT)


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


def test_a_pod_has_a_token_unless_it_or_its_account_says_no() -> None:
    def account(**fields: Any) -> Manifest:
        return Manifest(
            "a.yaml", {"kind": "ServiceAccount", "metadata": {"name": "agent"}, **fields}
        )

    no: dict[str, Any] = {"automountServiceAccountToken": False}
    assert not tokenless([account(), workload("Job", "agent")], AGENT)
    assert not tokenless([workload("Job", "agent")], AGENT)
    assert tokenless([account(**no), workload("Job", "agent")], AGENT)
    assert tokenless([account(), workload("Job", "agent", **no)], AGENT)
    yes: dict[str, Any] = {"automountServiceAccountToken": True}
    assert not tokenless([account(**no), workload("Job", "agent", **yes)], AGENT)


# --- what the comparison says ------------------------------------------------------------

PODS = [Request("get", "", "pods", "a", "p"), Request("get", "", "pods", "b", "q")]
RUNS = workload("DaemonSet", "agent")


def test_what_is_granted_as_asked_for_is_right() -> None:
    manifests = [RUNS, role("get"), binding()]
    assert len(rights("agent", manifests)) == 1
    assert too_little("agent", PODS, manifests) == []
    assert too_much("agent", PODS, manifests) == []


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


def test_a_program_without_an_account_is_told_as_such() -> None:
    (line,) = too_little("agent", PODS[:1], [])
    assert line.startswith(
        "deploy/ (nothing is bound to its account): python -m agent (no account that deploy/ has) "
    )


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
