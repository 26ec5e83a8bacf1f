"""The doctor's findings: of the control plane, leftovers and refused pods; its exit code."""

from collections import defaultdict
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from unittest.mock import ANY

import pytest
import yaml

from tests.deploy.kustomize import build_components
from tests.view import scenes
from tests.view.model.doctor_facts import (
    BOUND,
    HEALTHY_PROGRAMS,
    MINUTE,
    NO_EXTENDER,
    NOW,
    OWNED,
    UNHEALTHY,
    Changes,
    findings,
    owned_without,
    pod,
    problems,
    refused,
    server,
    without,
    without_plugin,
)
from view.model.doctor import control_plane, dra
from view.model.doctor.facts import (
    CardChecks,
    DryRun,
    Finding,
    Lease,
    Level,
    ManagedObject,
    UnreadSource,
    WebhookEntry,
)
from view.model.usage import MetricSample
from view.terminal.doctor import exit_code

DEPLOY = Path(__file__).parents[3] / "deploy"
WITH_EXTENDER: Changes = {
    "programs": [*without("kube-scheduler"), pod("scheduler", "s")],
    "managed": [
        *(each for each in OWNED if each.component != "scheduler-own"),
        ManagedObject("Deployment", "gpu-turnstile-scheduler", "scheduler-extender"),
        ManagedObject("Deployment", "gpu-turnstile-scheduler-certs", "scheduler-extender"),
    ],
    "leases": {"gpu-turnstile-scheduler": Lease("s", NOW - timedelta(seconds=2), 10)},
    "extenders": {"s": server("scheduler")},
}
"""The cluster's own kube-scheduler calls the extender."""


def test_an_extender_of_the_clusters_own_scheduler_is_healthy() -> None:
    assert problems(**WITH_EXTENDER) == []
    found = {each.check for each in findings(**WITH_EXTENDER)}
    assert {"scheduler-extender", "extender-certificate"} <= found
    assert "scheduler-own" not in found


def of_version(version: str) -> Changes:
    """The second kube-scheduler is of this version."""
    image = f"registry.example:5000/kube-scheduler:{version}"
    return {"programs": [*without("kube-scheduler"), pod("kube-scheduler", "k", image=image)]}


EVICTING = {"team-a": "reclaimWithinCohort: Any", "team-b": ""}
EVICTS = (
    "ClusterQueues evict pods until quota is free, on whichever cards: team-a "
    "(reclaimWithinCohort: Any); "
)
PREEMPTS = {"k": server("scheduler", preempts=True)}
OFF = f"kueue warning: {EVICTS}the scheduler's --preempt is off, so the pod may stay pending"


def test_kueue_beside_a_scheduler_that_does_not_preempt_is_a_warning() -> None:
    off = {"queues": EVICTING}
    assert problems(**off) == [OFF]
    assert problems(**off, extenders=PREEMPTS) == []
    assert problems(**off, extenders=PREEMPTS | {"k2": server("scheduler")}) == [OFF]
    assert problems(queues={"team-b": ""}) == problems(queues={}) == []
    (kubectl,) = findings("kueue", **off)
    assert kubectl.run.endswith("  # with the component scheduler-preemption: " + QUEUES)
    (other,) = findings("kueue", **WITH_EXTENDER | off)
    assert other.run.endswith("  # with the component scheduler-extender-preemption: " + QUEUES)
    helm = findings("kueue", **off, managed=[replace(each, release=("g", "n")) for each in OWNED])
    assert helm[0].run.endswith(f" --reuse-values --set preemption=true  # {QUEUES}")


def test_kueue_with_a_check_that_nobody_answers_or_no_queue_names() -> None:
    unanswered, unnamed = CardChecks(["cards"], []), CardChecks(["cards"], ["team-a"])
    others = [each for each in OWNED if each.component != "scheduler-queues"]
    without: Changes = {"queues": {}, "managed": others}
    (found,) = problems(**without, card_checks=unanswered)
    assert found == (
        "kueue error: AdmissionCheck cards has no controller (component scheduler-queues or "
        "scheduler-extender-queues), so Kueue admits nothing in its queues"
    )
    installed: Changes = {"queues": {}, "managed": OWNED}
    assert problems(**installed, card_checks=unanswered) == []
    (found,) = problems(**installed, card_checks=unnamed)
    assert found == (
        "kueue warning: no check gpu-turnstile.io/cards in ClusterQueues team-a: they admit pods "
        "by quota that may find no card"
    )
    assert problems(**without, card_checks=CardChecks([], ["team-a"])) == []


QUEUES = "docs/queues.md#preemption"


@pytest.mark.parametrize(
    ("end", "changed"),
    [
        ("no scheduler sees cards, so the pod may fail on its node", NO_EXTENDER),
        (
            "kube-scheduler evicts nobody for a claim, so the pod may stay pending",
            {"dry_run": DryRun(stamped=True, claims="on"), "extenders": PREEMPTS},
        ),
        (
            "whether the scheduler's --preempt is on cannot be read",
            {"extenders": {"k": UnreadSource("503")}},
        ),
    ],
)
def test_kueue_where_no_extender_frees_a_card(end: str, changed: Changes) -> None:
    (found,) = findings("kueue", **changed, queues=EVICTING)
    assert found.text == EVICTS + end
    unread = "cannot be read" in end
    assert (found.level, found.run) == ((Level.UNKNOWN, "") if unread else (Level.WARNING, QUEUES))


@pytest.mark.parametrize("version", ["v1.36.9", "v1.36.2", "v1.35.0-rc.1", "mine"])
def test_a_second_kube_scheduler_may_be_one_version_behind(version: str) -> None:
    assert problems(**of_version(version)) == []


def entry(name: str = "pods", policy: str = "Fail", *, has_ca_bundle: bool = True) -> WebhookEntry:
    return WebhookEntry(f"{name}.gpu-turnstile.io", policy, has_ca_bundle=has_ca_bundle)


ACCEPTED = [
    MetricSample("gpu_turnstile_webhook_accepts", {"system": each}, 1) for each in ("hami", "kai")
]
ACCEPTING = {"w1": server("webhook"), "w2": [*server("webhook"), *ACCEPTED]}

PROBLEMS: dict[str, Changes] = {
    "kubernetes-version error: v1.29.4: gpu-turnstile needs Kubernetes 1.30 or newer": {
        "version": "v1.29.4"
    },
    "kubernetes-version unknown: cannot read the version 'latest'": {"version": "latest"},
    "webhook-configuration error: MutatingWebhookConfiguration gpu-turnstile is missing": {
        "mutating": None
    },
    "webhook-configuration error: webhook pods.gpu-turnstile.io is missing": {"mutating": []},
    "webhook-configuration error: pods.gpu-turnstile.io has failurePolicy Ignore: GPU pods "
    "may be created without stamps": {"mutating": [entry(policy="Ignore")]},
    "webhook-configuration error: without a caBundle: pods.gpu-turnstile.io": {
        "mutating": [entry(has_ca_bundle=False)]
    },
    "webhook-configuration error: dialects.gpu-turnstile.io sends pods of other systems, and "
    "w1 has no --accept": {"mutating": [entry(), entry("dialects")], "webhooks": ACCEPTING},
    "webhook-configuration error: w2 has --accept hami,kai, and dialects.gpu-turnstile.io is "
    "missing: not all such pods are translated": {"webhooks": ACCEPTING},
    "webhook-certificate warning: the certificate of w1 expires in 9 days": {
        "webhooks": {"w1": server("webhook", timedelta(days=9))}
    },
    "webhook-certificate error: the certificate of w1 expired 3 days ago": {
        "webhooks": {"w1": server("webhook", timedelta(days=-3))}
    },
    "webhook-certificate unknown: w1: 503": {"webhooks": {"w1": UnreadSource("503")}},
    "policies error: missing: gpu-turnstile-agent-node": {
        "policies": dict.fromkeys(control_plane.POLICIES[1:], True)
    },
    "policies error: without a binding: gpu-turnstile-stamps": {
        "policies": BOUND | {"gpu-turnstile-stamps": False}
    },
    "extender-lease error: it has no leader: it binds no pods. k was the last one, last renewal 60 "
    "seconds ago, valid for 15 s": {
        "leases": {"gpu-turnstile-kube-scheduler": Lease("k", NOW - timedelta(seconds=60), 15)}
    },
    "extender-lease error: it has no leader: it binds no pods": {
        "leases": {"gpu-turnstile-scheduler": Lease("of an earlier installation", NOW, 10)}
    },
    "extender-asked warning: no scheduler has called it since it started: no GPU pod was "
    "created since, or each names another scheduler": {
        "extenders": {"k": server("scheduler", requests=0)}
    },
    "extender-asked warning: no scheduler has called it since it started: GPU pods are scheduled "
    "by counts per node": WITH_EXTENDER | {"extenders": {"s": server("scheduler", requests=0)}},
    "extender-certificate error: the certificate of s expired 2 days ago": WITH_EXTENDER
    | {"extenders": {"s": server("scheduler", timedelta(days=-2))}},
    "scheduler-extender warning: installed beside scheduler-own, which has an extender: no "
    "scheduler calls this one": {"programs": [*HEALTHY_PROGRAMS, pod("scheduler", "s")]},
    "scheduler-own error: kube-scheduler v1.37.0 is newer than the API server, v1.36.2": (
        of_version("v1.37.0")
    ),
    "scheduler-own warning: kube-scheduler v1.34.9 is two or more versions older than the API "
    "server, v1.36.2": of_version("v1.34.9"),
}


@pytest.mark.parametrize(("expected", "changed"), PROBLEMS.items(), ids=range(len(PROBLEMS)))
def test_each_problem_is_the_only_finding(expected: str, changed: Changes) -> None:
    assert problems(**changed) == [expected]


NOT_INSTALLED = (
    "not installed: no scheduler sees cards, so a pod can be sent to a node where no card has "
    "room, and fails there; harmless if all pods request whole cards, or shares of one size that "
    "divides a card"
)


def test_without_an_extender_a_warning_says_that_no_scheduler_sees_cards() -> None:
    """It may be on purpose, so it is no error: with whole cards, or one size of shares."""
    assert problems(**NO_EXTENDER) == [f"scheduler-extender warning: {NOT_INSTALLED}"]
    assert exit_code(findings(**NO_EXTENDER)) == 0
    release = ManagedObject("Deployment", "gpu-turnstile-webhook", "webhook", ("gpus", "infra"))
    (by_kubectl,) = findings("scheduler-extender", **NO_EXTENDER)
    assert by_kubectl.run == (
        "kubectl apply -k YOUR-KUSTOMIZATION  # with the component scheduler-own: "
        "docs/install.md#a-scheduler-that-sees-cards"
    )
    (by_helm,) = findings("scheduler-extender", **NO_EXTENDER | {"managed": [release]})
    helm = "helm upgrade gpus YOUR-CHART --namespace infra --reuse-values --set scheduling=own"
    assert by_helm.run == helm


LOOKUP = 'Post "http://127.0.0.1:8444/filter": dial tcp 127.0.0.1:8444: connect: connection refused'


def test_failed_requests_to_the_extender_are_an_error() -> None:
    text = f"extender-asked error: a scheduler's requests to it fail ({{}} pending): {LOOKUP}"
    assert problems(unreached=[LOOKUP] * 2) == [text.format("2 pods")]
    never_called = {"k": server("scheduler", requests=0)}
    assert problems(unreached=[LOOKUP] * 2, extenders=never_called) == [text.format("2 pods")]
    _not_installed, found = problems(unreached=[LOOKUP], **NO_EXTENDER)
    assert found == text.format("1 pod")


def test_an_extender_without_pods_is_not_reported_as_not_installed() -> None:
    """Its Deployment exists without replicas: GPU pods get no node."""
    assert problems(programs=without("kube-scheduler"), leases={}, extenders={}) == [
        "scheduler-own error: Deployment gpu-turnstile-kube-scheduler has no pods, or is missing",
        "extender-lease error: it has no leader: it binds no pods",
        "extender-asked unknown: the metrics of no replica were read",
    ]
    (found,) = problems(programs=without("webhook"), ending=[pod("webhook", "w", due=NOW)])
    missing = "Deployment gpu-turnstile-webhook has no pods, or is missing"
    assert found == f"webhook-replicas error: {missing}; 1 pod ending or ended"
    owned = [replace(each, replicas=0 if each.kind == "Deployment" else None) for each in OWNED]
    (found,) = problems(programs=without("webhook"), managed=owned)
    assert found == f"webhook-replicas error: {missing.partition(',')[0]}: spec.replicas is 0"


def test_the_policies_are_those_that_are_installed() -> None:
    folders = {"base/policies/*": control_plane.POLICIES, "components/dra/*policies": dra.POLICIES}
    for files, policies in folders.items():
        texts = [each.read_text(encoding="utf-8") for each in DEPLOY.glob(f"{files}.yaml")]
        objects = [each for text in texts for each in yaml.safe_load_all(text)]
        found = [each for each in objects if each["kind"] == "ValidatingAdmissionPolicy"]
        assert {each["metadata"]["name"] for each in found} == {*policies}


CLOSING = "client connection is closing"


def test_a_healthy_cluster_has_no_problems() -> None:
    assert problems() == []


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
    own = build_components("scheduler-own", "scheduler-queues")
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
    changes: list[Changes] = [{"mutating": None}, {"policies": {}}, {"daemonsets": {}}, {}]
    for changed in changes:
        found = findings(**{**changed, "managed": owned if changed else left})
        assert {each.run for each in found if each.level is not Level.OK} == {helm}


def test_the_exit_code_is_3_if_only_the_version_may_be_read() -> None:
    """Every user may read the version: it says nothing of an installation."""
    codes = {Level.OK: 0, Level.WARNING: 0, Level.ERROR: 1, Level.UNKNOWN: 3}
    for level, code in codes.items():
        found = [Finding("webhook", level, ""), Finding("agents", Level.UNKNOWN, "")]
        assert exit_code([Finding("kubernetes-version", Level.OK, ""), *found]) == code


KNEW_NONE = "because the kubelet knew no agent"
REFUSALS: dict[str, Changes] = {
    "Deployment default/web: refused 137 times in 20 s, last 3 min ago: "
    "default-scheduler does not see cards": {"refused": refused(scenes.storm(), 3 * MINUTE)},
    # the last one alone had another reason
    "Deployment default/web: refused 4 times in 20 s, last 3 min ago: gpu-turnstile: state-dir: "
    "full (3 of 4; 1 for other reasons)": {
        "refused": refused(
            [*scenes.storm(4, why="state-dir: full")[:3], scenes.storm(4, why="unavailable")[3]],
            3 * MINUTE,
        )
    },
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
