"""The doctor's checks of Dynamic Resource Allocation."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from contract.claims import SHAPE_LABEL
from contract.inventory import Amounts
from tests.view.model.doctor_facts import (
    BOTH,
    BOUND,
    HEALTHY_PROGRAMS,
    MINUTE,
    NO_EXTENDER,
    NOW,
    OWNED,
    UNHEALTHY,
    Changes,
    findings,
    node,
    pod,
    problems,
    refused,
    with_agent,
    without,
    without_plugin,
)
from view.model.doctor import dra
from view.model.doctor.facts import (
    DaemonSet,
    DryRun,
    Level,
    ManagedObject,
    NodeSlice,
    UnreadSource,
)
from view.model.node_facts import NodeFacts


def claiming(made: NodeFacts) -> NodeFacts:
    """The node as one whose agent gives cards by claims."""
    return replace(made, labels={"gpu-turnstile.io/mode": "dra"})


def slice_of(
    node: str = "n1", cards: Sequence[int] = (0, 1), blocks: int = 4, **changed: object
) -> NodeSlice:
    has = {f"GPU-{node}-{index}": Amounts(100, blocks) for index in cards}
    made = NodeSlice(node, 7, 1, has)
    return replace(made, **changed)  # type: ignore[arg-type]


CLAIMS = ManagedObject("Deployment", "gpu-turnstile-claims", "dra")
LABELLED = [claiming(node())]
CLAIMS_PODS = [pod("claims", "c1", "n9"), pod("claims", "c2", "n9")]
BY_CLAIMS: Changes = {
    "nodes": LABELLED,
    "programs": [*HEALTHY_PROGRAMS, *CLAIMS_PODS],
    "policies": BOUND | dict.fromkeys(dra.POLICIES, True),
    "dry_run": DryRun(stamped=True, claims="on"),
    "daemonsets": {
        **dict.fromkeys(BOTH, DaemonSet()),
        **{f"{each}-dra": counts for each, counts in BOTH.items()},
    },
    "slices": [slice_of()],
    "device_class": True,
    "templates": ["default"],
    "managed": [*OWNED, CLAIMS],
}
DENIED = "ValidatingAdmissionPolicy 'gpu-turnstile-claimed-pods' denied request: no claim"
FORGETS = (
    "GPU pods are refused or wait, until the kubelet has forgotten the device plugin, about five "
    "minutes after the plugin's end"
)
UNWRITTEN = (
    "the agent cannot write its cards' counts to the node, so GPU pods are refused or wait: the "
    "kubelet still knows the device plugin, or the API server refuses the change"
)


def test_a_healthy_cluster_with_claims_has_no_problems() -> None:
    assert problems(**BY_CLAIMS) == []
    found = {each.check: each.text for each in findings(**BY_CLAIMS)}
    assert found["dra"] == "resource.k8s.io/v1 is served, DeviceClass gpu.tencent.com exists"
    assert found["claims-replicas"] == "2 of 2 pods are ready"
    assert found["claims"] == "--claims on; 1 node with gpu-turnstile.io/mode=dra"
    assert found["resource-slices"] == "1 node: the same cards as in the inventory"
    assert found["policies"] == "all 14 exist and have a binding"


def test_with_claims_alone_no_extender_is_missing() -> None:
    """Its scheduler sees cards without one."""
    none = [*without("kube-scheduler"), *CLAIMS_PODS]
    changed = {**BY_CLAIMS, **NO_EXTENDER, "programs": none, "managed": [CLAIMS]}
    assert problems(**changed) == []
    mixed = changed | {"nodes": [*LABELLED, node("n2")]}
    assert any("no scheduler sees cards" in each for each in problems(**mixed))


NOTHING_OFFERED: Changes = {
    **with_agent(counts_problem=1),
    "nodes": [claiming(node(cores=0, blocks=0))],
}

PROBLEMS: dict[str, Changes] = {
    "dra error: v1.35.1: claims need Kubernetes 1.36 or newer": {"version": "v1.35.1"},
    "dra error: the API server does not serve resource.k8s.io/v1: no pod gets a card by a claim": {
        "slices": None,
        "device_class": False,
    },
    "dra error: DeviceClass gpu.tencent.com is missing: no claim is allocated": {
        "device_class": False
    },
    "dra unknown: deviceclasses is forbidden": {
        "device_class": UnreadSource("deviceclasses is forbidden")
    },
    "claims-replicas error: Deployment gpu-turnstile-claims has no pods, or is missing": {
        "programs": HEALTHY_PROGRAMS
    },
    "policies error: missing: gpu-turnstile-claimed-pods": {
        "policies": BOUND | dict.fromkeys({*dra.POLICIES} - {"gpu-turnstile-claimed-pods"}, True)
    },
    "claims error: GPU pods get a claim (--claims on), and no node has the label "
    "gpu-turnstile.io/mode=dra: they wait": {"nodes": [node()], "slices": []},
    "claims warning: GPU pods get a claim (--claims on): no new one comes to a node with a "
    "device plugin": {"nodes": [*LABELLED, node("n2")]},
    "claims warning: GPU pods get no claim (--claims away): no new one comes to a node that "
    "serves them": {"dry_run": DryRun(stamped=True, claims="away")},
    "claims error: GPU pods get no claim (--claims off): they start without a card on a node "
    "for them": {"dry_run": DryRun(stamped=True)},
    "claims warning: 2 pods pending with no claim, created before --claims was changed (a/b, a/c): "
    "delete them, so that they are created again with one": {
        "waiting": {"a/c": False, "a/b": False, "a/d": True}
    },
    "claims unknown: pending pods: pods is forbidden": {
        "waiting": UnreadSource("pods is forbidden")
    },
    "resource-slices unknown: resourceslices is forbidden": {
        "slices": UnreadSource("resourceslices is forbidden")
    },
    "resource-slices error: no ResourceSlice: kube-scheduler sees no card of it": {"slices": []},
    "resource-slices error: ResourceSlices differ from the inventory: without GPU-n1-1": {
        "slices": [slice_of(cards=[0])]
    },
    "resource-slices error: ResourceSlices differ from the inventory: with GPU-n1-2": {
        "slices": [slice_of(cards=[0, 1, 2])]
    },
    "resource-slices error: ResourceSlices differ from the inventory: with other amounts of "
    "GPU-n1-0, GPU-n1-1": {"slices": [slice_of(blocks=8)]},
    "resource-slices error: ResourceSlices of generations 6 and 7: old ones are left": {
        "slices": [slice_of(), slice_of(cards=[0], generation=6)]
    },
    ("resource-slices error: 1 of 2 ResourceSlices are there: kube-scheduler uses none of them"): {
        "slices": [slice_of(parts=2)]
    },
    "resource-slices warning: ResourceSlices of a node that does not exist": {
        "slices": [slice_of(), slice_of("deleted")]
    },
    f"allocatable error: {UNWRITTEN}": NOTHING_OFFERED,
}


@pytest.mark.parametrize(("expected", "changed"), PROBLEMS.items(), ids=range(len(PROBLEMS)))
def test_each_problem_is_the_only_finding_and_has_a_next_command(
    expected: str, changed: Changes
) -> None:
    assert problems(**BY_CLAIMS | changed) == [expected]
    (found,) = [each for each in findings(**BY_CLAIMS | changed) if each.level is not Level.OK]
    assert found.run or found.level is Level.UNKNOWN


def test_a_policy_that_denies_pods_without_a_claim_names_the_webhooks_setting() -> None:
    changed = {**BY_CLAIMS, "dry_run": DryRun(stamped=False, denied=DENIED)}
    webhook, found = [each for each in findings(**changed) if each.level is not Level.OK]
    text = "the dry run of a GPU pod was denied: see the check claims"
    assert (webhook.check, webhook.level, webhook.text) == ("webhook", Level.UNKNOWN, text)
    assert (found.check, found.level) == ("claims", Level.ERROR)
    assert found.text.startswith("a GPU pod gets no claim (--claims off), and a policy denies it: ")
    assert "deployment/gpu-turnstile-webhook" in found.run


def test_a_kubelet_that_still_knows_the_device_plugin_is_the_cause_of_its_refusals() -> None:
    pods = refused(without_plugin(2, UNHEALTHY), 3 * MINUTE)
    (found,) = findings("refusals", **BY_CLAIMS | {"refused": pods})
    assert found.text == (
        "2 pods failed within 4 s, last 3 min ago, because the kubelet still knows the device "
        f'plugin ("{UNHEALTHY}")'
    )
    assert found.run.endswith("# docs/operate.md#the-node-offers-nothing")


LEAVING = ", until the kubelet deletes them, 30 s after the agent for claims has left"


@pytest.mark.parametrize(
    ("seconds", "level", "until"), [(60, "error", ""), (59, "warning", LEAVING)]
)
def test_a_slice_that_stays_on_a_node_with_a_device_plugin_is_an_error(
    seconds: int, level: str, until: str
) -> None:
    """Both would give out the same cards."""
    agent_pod = pod("agent", "b", node="n2", since=NOW - timedelta(seconds=seconds))
    programs = [*HEALTHY_PROGRAMS, *CLAIMS_PODS, agent_pod]
    nodes, slices = [*LABELLED, node("n2")], [slice_of(), slice_of("n2")]
    found = problems(**BY_CLAIMS | {"nodes": nodes, "programs": programs, "slices": slices})
    text = f"it has ResourceSlices and not the label: pods with a claim are bound to it{until}"
    assert f"resource-slices {level}: {text}" in found


@pytest.mark.parametrize(("seconds", "level"), [(59, "unknown"), (60, "error")])
def test_missing_slices_are_unknown_while_the_agent_is_new(seconds: int, level: str) -> None:
    since = NOW - timedelta(seconds=seconds)
    programs = [*without("agent"), *CLAIMS_PODS, pod("agent", "a", since=since)]
    (found,) = problems(**BY_CLAIMS | {"slices": [], "programs": programs})
    assert found.startswith(f"resource-slices {level}: no ResourceSlice")


@pytest.mark.parametrize(
    ("minutes", "expected"), [(5, f"warning: {FORGETS}"), (6, f"error: {UNWRITTEN}")]
)
def test_a_kubelet_has_5_minutes_to_forget_the_device_plugin(minutes: int, expected: str) -> None:
    created = NOW - timedelta(minutes=minutes)
    programs = [*without("agent"), *CLAIMS_PODS, pod("agent", "a", created=created)]
    changed = BY_CLAIMS | NOTHING_OFFERED | {"programs": programs}
    assert problems(**changed) == [f"allocatable {expected}"]


def test_an_unused_api_of_claims_is_not_mentioned() -> None:
    assert problems(version="v1.30.0", slices=None) == []
    assert problems(version="v1.33.2", slices=None, device_class=False) == []
    unread = dict.fromkeys(("slices", "waiting"), UnreadSource("you may not"))
    assert problems(**unread) == []


GONE = "component dra has no Deployment gpu-turnstile-claims any more"
LEFT: dict[str, Changes] = {
    f"leftovers warning: {GONE}, which would sweep 4 ResourceClaimTemplates (namespaces a, b)": {
        "templates": ["b", "a", "a", "b"]
    },
    f"leftovers warning: {GONE}; left over: 1 object (DeviceClass)": {"device_class": True},
    "leftovers unknown: ResourceClaimTemplates: you may not": {
        "templates": UnreadSource("you may not")
    },
    "leftovers unknown: DeviceClass: you may not": {"device_class": UnreadSource("you may not")},
}


@pytest.mark.parametrize(("expected", "changed"), LEFT.items())
def test_what_claims_leave_when_their_component_is_deleted(expected: str, changed: Changes) -> None:
    """Nobody sweeps the templates in the namespaces of users any more."""
    assert problems(**changed) == [expected]
    (found,) = findings("leftovers", **changed)
    delete = "kubectl delete resourceclaimtemplates --all-namespaces --selector {}  # {}"
    page = "docs/upgrade.md#from-the-device-plugin-to-dra-and-back"
    assert (found.run == delete.format(SHAPE_LABEL, page)) == ("would sweep" in expected)
