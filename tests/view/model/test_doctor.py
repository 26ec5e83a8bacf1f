"""The doctor's findings of a healthy cluster, leftovers and refused pods, and its exit code."""

from collections import defaultdict
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from unittest.mock import ANY

import pytest

from tests.deploy.kustomize import build_components
from tests.view import scenes
from tests.view.model import test_doctor_control_plane, test_doctor_nodes
from tests.view.model.doctor_facts import (
    MINUTE,
    NOW,
    OWNED,
    UNHEALTHY,
    Changes,
    findings,
    owned_without,
    problems,
    refused,
    without_plugin,
)
from view.model.doctor import control_plane
from view.model.doctor.facts import Finding, Level, ManagedObject
from view.terminal.doctor import exit_code

DEPLOY = Path(__file__).parents[3] / "deploy"
CLOSING = "client connection is closing"


def test_a_healthy_cluster_has_no_problems() -> None:
    assert problems() == []
    assert {each.check for each in findings()} == {
        *("kubernetes-version", "webhook", "webhook-configuration", "webhook-replicas"),
        *("webhook-certificate", "policies", "agents", "proxies", "kubelet", "other-plugins"),
        *("agent-requests", "agents-rollout"),
        *("cards", "allocatable", "scheduler-own", "extender-lease"),
        *("extender-asked", "enforcement", "allocations", "leftovers"),
        *("refusals", "agent-disks"),
    }


def test_only_findings_without_a_command_name_a_page_to_read() -> None:
    tables = (test_doctor_control_plane.PROBLEMS, test_doctor_nodes.PROBLEMS)
    changes = [each for table in tables for each in table.values()]
    changes += [{"managed": managed} for managed in LEFTOVERS.values()]
    runs = {each.run for changed in changes for each in findings(**changed)}
    pages = {each for each in runs if each.startswith("docs/")}
    assert pages == {
        "docs/install.md#2-choose-scheduler-device-injection-and-enforcement",
        "docs/install.md#a-second-kube-scheduler",
        "docs/install.md#pods-of-other-systems",
        "docs/install.md#what-you-need",
        "docs/options.md#what-hami-core-needs-on-a-node",
        "docs/upgrade.md#from-020",
    }


LEFTOVERS: dict[str, list[ManagedObject]] = {
    "component view has no Deployment gpu-turnstile-view any more; "
    "left over: 1 object (ServiceAccount)": owned_without("view"),
    "from a version before 0.3.0, without component labels: CronJob gpu-turnstile-certs": [
        *OWNED,
        ManagedObject("CronJob", "gpu-turnstile-certs", ""),
    ],
}


@pytest.mark.parametrize(("expected", "managed"), LEFTOVERS.items(), ids=["0.3.0", "before"])
def test_leftovers_are_the_only_finding(expected: str, managed: list[ManagedObject]) -> None:
    assert problems(managed=managed) == [f"leftovers warning: {expected}"]


@pytest.mark.parametrize(
    "component", ["certs", "dra", "scheduler-extender", "scheduler-own", "view"]
)
def test_leftovers_are_deleted_by_labels_that_are_only_ours(component: str) -> None:
    """Others have a component ``webhook`` too: cert-manager's Deployment has this very label."""
    left = owned_without(component)
    (found,) = findings("leftovers", managed=left)
    ours = f"app.kubernetes.io/part-of=gpu-turnstile,app.kubernetes.io/component={component}"
    page = (DEPLOY / "README.md").read_text(encoding="utf-8").replace("\\\n    ", "")
    assert found.run.split() == ["kubectl", "delete", "--all-namespaces", "--selector", ours, ANY]
    kinds, _, more = found.run.partition(",deviceclasses")
    assert kinds.replace(f"component={component}", "component=COMPONENT") in page
    assert (found.run != kinds, more) == (component == "dra", "")


def test_the_workloads_of_components_are_those_that_are_installed() -> None:
    own = build_components("scheduler-own")
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for each in (*build_components("scheduler-extender", "view", "dra"), *own):
        if each["kind"] in ("DaemonSet", "Deployment"):
            component = each["metadata"]["labels"]["app.kubernetes.io/component"]
            found[component].add((each["kind"], each["metadata"]["name"]))
    found["scheduler-extender"].remove(("Deployment", "gpu-turnstile-scheduler-certs"))
    found["dra"] -= {("DaemonSet", f"gpu-turnstile-{each}-dra") for each in ("agent", "proxy")}
    assert found == {name: {workload} for name, workload in control_plane.WORKLOADS.items()}


def test_a_missing_part_of_every_installation_is_applied_again() -> None:
    (found,) = findings("leftovers", managed=owned_without("webhook"))
    assert found.run == "kubectl apply -k YOUR-KUSTOMIZATION"


def test_missing_objects_of_a_helm_release_are_restored_by_helm() -> None:
    owned = [replace(each, release=("gpus", "team")) for each in OWNED]
    owned[0] = replace(owned[0], release=("a-try", "elsewhere"))  # first by the alphabet
    helm = "helm upgrade gpus YOUR-CHART --namespace team --reuse-values"
    left = [each for each in owned if (each.component, each.kind) != ("webhook", "Deployment")]
    missing: list[Changes] = [{"mutating": None}, {"policies": {}}, {"daemonsets": {}}]
    for changed in (*missing, {"managed": left}):
        found = findings(**{"managed": owned} | changed)
        assert {each.run for each in found if each.level is not Level.OK} == {helm}


@pytest.mark.parametrize(
    ("levels", "code"),
    [
        ({"webhook": Level.OK, "agents": Level.UNKNOWN}, 0),
        ({"webhook": Level.WARNING, "agents": Level.OK}, 0),
        ({"webhook": Level.ERROR, "agents": Level.UNKNOWN}, 1),
        ({"webhook": Level.UNKNOWN, "agents": Level.UNKNOWN}, 3),
    ],
)
def test_the_exit_code_is_3_if_only_the_version_may_be_read(
    levels: dict[str, Level], code: int
) -> None:
    """Every user may read the version: it says nothing of an installation."""
    found = [Finding(check, level, "") for check, level in levels.items()]
    assert exit_code([Finding("kubernetes-version", Level.OK, ""), *found]) == code


KNEW_NONE = "because the kubelet knew no agent"
REFUSALS: dict[str, Changes] = {
    "Deployment default/web: refused 137 times in 20 s, last 3 min ago: "
    "default-scheduler does not see cards": {"refused": refused(scenes.storm(), 3 * MINUTE)},
    f'16 pods failed within 4 s, last 3 min ago, {KNEW_NONE} ("{UNHEALTHY}"): '
    "its proxy ended, the next one started at 23:57:02 UTC": {
        "refused": refused(without_plugin(16, UNHEALTHY), 3 * MINUTE),
        "proxy_starts": {"n1": NOW - 3 * MINUTE + timedelta(seconds=2)},
    },
    # no other proxy since
    f'2 pods failed within 4 s, last 0 s ago, {KNEW_NONE} ("{CLOSING}")': {
        "refused": refused(without_plugin(2, CLOSING))
    },
}


@pytest.mark.parametrize(("expected", "changed"), REFUSALS.items())
def test_refused_pods_are_counted_and_their_cause_is_named(expected: str, changed: Changes) -> None:
    assert problems(**changed) == [f"refusals warning: {expected}"]


def test_refusals_of_an_hour_ago_or_at_once_are_no_problem() -> None:
    assert problems(refused=refused(scenes.storm(), 61 * MINUTE)) == []
    assert problems(refused=refused(scenes.storm(2, seconds=0))) == [], "not again"


def test_another_reason_than_cards_is_quoted() -> None:
    storm = scenes.storm(3)
    for each in storm:
        each["status"]["message"] = "rpc error: code = X desc = gpu-turnstile: state-dir: full"
    (found,) = findings("refusals", refused=refused(storm))
    assert found.text.endswith("20 s, last 0 s ago: gpu-turnstile: state-dir: full")
    assert (found.run, found.nodes) == ("kubectl gpu explain -n default web-5d-2", ("n1",))
