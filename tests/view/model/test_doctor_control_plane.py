"""The doctor's checks of webhook, certificates, policies, scheduler and extender."""

from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from tests.view.model.doctor_facts import (
    BOUND,
    HEALTHY_PROGRAMS,
    NO_EXTENDER,
    NOW,
    OWNED,
    Changes,
    findings,
    pod,
    problems,
    server,
    without,
)
from view.model.doctor import control_plane, dra
from view.model.doctor.facts import Lease, ManagedObject, UnreadSource, WebhookEntry
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
    "extender-lease error: k is the leader, last renewal 60 seconds ago": {
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


@pytest.mark.parametrize(
    ("besides", "pods", "pending"),
    [
        ({}, 2, "2 pods"),
        ({"extenders": {"k": server("scheduler", requests=0)}}, 2, "2 pods"),
        (NO_EXTENDER, 1, "1 pod"),
    ],
    ids=["called", "never called", "not installed"],
)
def test_failed_requests_to_the_extender_are_an_error(
    besides: Changes, pods: int, pending: str
) -> None:
    found = problems(unreached=[LOOKUP] * pods, **besides)
    text = f"extender-asked error: a scheduler's requests to it fail ({pending} pending): {LOOKUP}"
    assert found[-1] == text
    assert len(found) == 1 + ("programs" in besides)


def test_an_extender_without_pods_is_not_reported_as_not_installed() -> None:
    """Its Deployment exists without replicas: GPU pods get no node."""
    assert problems(programs=without("kube-scheduler"), leases={}, extenders={}) == [
        "scheduler-own error: Deployment gpu-turnstile-kube-scheduler has no pods, or is missing",
        "extender-lease error: it has no leader: it binds no pods",
        "extender-asked unknown: the metrics of no replica were read",
    ]


@pytest.mark.parametrize(
    ("files", "policies"),
    [
        ("base/policies/*.yaml", control_plane.POLICIES),
        ("components/dra/*policies.yaml", dra.POLICIES),
    ],
)
def test_the_policies_are_those_that_are_installed(files: str, policies: tuple[str, ...]) -> None:
    installed = {
        each["metadata"]["name"]
        for path in DEPLOY.glob(files)
        for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        if each["kind"] == "ValidatingAdmissionPolicy"
    }
    assert set(policies) == installed
