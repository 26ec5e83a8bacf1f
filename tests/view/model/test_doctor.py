"""Each thing that the doctor names is found in otherwise healthy facts, and in those alone."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import ANY

import pytest
import yaml

from contract.inventory import Amounts
from tests.deploy.kustomize import build_components
from tests.placement.cluster.builders import NAMES, Json, make_node
from tests.view import scenes
from view.model.doctor import control_plane, dra
from view.model.doctor.checks import run_checks
from view.model.doctor.facts import (
    DaemonSet,
    DryRun,
    Facts,
    Finding,
    Lease,
    Level,
    ManagedObject,
    NodeSlice,
    ProgramPod,
    RefusedPod,
    ReportedAllocation,
    UnreadSource,
    UnrecordedContainer,
    WebhookEntry,
)
from view.model.node_facts import NodeFacts, read_node
from view.model.pod_facts import read_pod_facts
from view.model.usage import MetricSample
from view.terminal.doctor import exit_code

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEPLOY = Path(__file__).parents[3] / "deploy"
AGENT, PROXY = "gpu_turnstile_agent_", "gpu_turnstile_proxy_"
BOTH = dict.fromkeys(("gpu-turnstile-agent", "gpu-turnstile-proxy"), DaemonSet(1, 1, updated=1))


def pod(component: str, name: str, node: str = "n1", **changed: object) -> ProgramPod:
    return replace(
        ProgramPod(f"gpu-turnstile-{component}", name, node, "image:1", ready=True),
        **changed,  # type: ignore[arg-type]
    )


def node(
    name: str = "n1",
    cores: int = 200,
    blocks: int = 8,
    *,
    inventory: object = "",
    unhealthy: Sequence[int] = (),
    nvidia: int = 0,
    mig: bool = False,
    cordoned: str = "",
) -> NodeFacts:
    """A node of two cards with four blocks each, and what its status offers of them."""
    made = make_node(name, 2, blocks=4, unhealthy=unhealthy)
    annotations = made["metadata"]["annotations"]
    if inventory is None:
        annotations.clear()
    elif inventory:
        annotations[NAMES.gpu_cards] = inventory
    annotations[NAMES.gpu_cordoned] = cordoned
    offered = {NAMES.core: str(cores), NAMES.memory: str(blocks), "nvidia.com/gpu": str(nvidia)}
    if mig:  # NVIDIA's plugin serves this MIG instance as well
        cards = annotations[NAMES.gpu_cards]
        annotations[NAMES.gpu_cards] = cards.replace(f"GPU-{name}-1", f"MIG-{name}-1")
        offered["nvidia.com/mig-1g.5gb"] = "2"
    made["status"] = {"allocatable": {**offered, "cpu": "3900m"}}
    return read_node(made, NAMES)


def failing(**reasons: str) -> list[MetricSample]:
    """Whether requests fail: by verb and resource, such as ``list_pods``, the reason."""
    kinds = dict.fromkeys(("list_pods", "patch_pods", "get_nodes", "create_events"), "") | reasons
    labels = {
        kind: dict(zip(("verb", "resource"), kind.split("_"), strict=True)) | {"reason": reason}
        for kind, reason in kinds.items()
    }
    name = AGENT + "requests_failing"
    return [MetricSample(name, each, float(bool(each["reason"]))) for each in labels.values()]


def agent(enforcement: str = "hami-core", **changed: float) -> list[MetricSample]:
    values = {"registered": 1.0, "list_readable": 1.0, "checkpoint_readable": 1.0, **changed}
    held = {"namespace": "default", "pod": "share", "container": "main", "card": "GPU-n1-0"}
    return [
        *(MetricSample(AGENT + name, {}, each) for name, each in values.items()),
        MetricSample(AGENT + "cards", {"state": "served"}, 2.0),
        *failing(),
        MetricSample(AGENT + "info", {"version": "0.3.0", "enforcement": enforcement}, 1.0),
        MetricSample(AGENT + "folder_writable", {"folder": "plugin-dir"}, 1.0),
        MetricSample(AGENT + "container_cores_held", held, 50.0),
    ]


def server(
    program: str, ends: timedelta = timedelta(days=60), asked: float = 7
) -> list[MetricSample]:
    prefix = f"gpu_turnstile_{program}_"
    return [
        MetricSample(f"{prefix}certificate_expiry_timestamp_seconds", {}, (NOW + ends).timestamp()),
        MetricSample(f"{prefix}request_duration_seconds_count", {"verb": "filter"}, asked),
    ]


OWNED = [
    ManagedObject(kind, name, component)
    for component, (workload, name) in control_plane.WORKLOADS.items()
    for kind in (workload, "ServiceAccount")
    if component not in ("dra", "scheduler-extender")
]

BOUND = dict.fromkeys(control_plane.POLICIES, True)


def owned_without(component: str) -> list[ManagedObject]:
    """All, and the rest of a component, but not what it runs."""
    kind, name = control_plane.WORKLOADS[component]
    owned = {*OWNED, ManagedObject("ServiceAccount", name, component)}
    gone = (component, kind, name)
    return [each for each in owned if (each.component, each.kind, each.name) != gone]


HEALTHY_PROGRAMS = [
    pod("agent", "a"),
    pod("proxy", "p"),
    pod("webhook", "w1"),
    pod("webhook", "w2"),
    pod("kube-scheduler", "k"),
]


def next_agent(age: timedelta) -> ProgramPod:
    """The agent of an update, beside the old one, on a node without HAMi-core."""
    why = "agent: ContainerCreating: hostPath type check failed: /usr/local/vgpu is not a directory"
    return pod("agent", "next", ready=False, why=why, created=NOW - age)


HEALTHY = Facts(
    now=NOW,
    domain="tencent.com",
    version="v1.36.2",
    nodes=[node()],
    programs=HEALTHY_PROGRAMS,
    mutating=[WebhookEntry("pods.gpu-turnstile.io", "Fail", has_ca_bundle=True)],
    policies=BOUND,
    dry_run=DryRun(stamped=True),
    leases={"gpu-turnstile-kube-scheduler": Lease("k_0a1b", NOW - timedelta(seconds=2), 15)},
    daemonsets=BOTH,
    enforcement="hami-core",
    allocations=[ReportedAllocation("default", "share", "main", "n1", frozenset({"GPU-n1-0"}), 50)],
    refused=[],
    unreached=[],
    waiting={},
    slices=[],
    device_class=False,
    managed=OWNED,
    proxy_starts={"n1": NOW - timedelta(days=1)},
    agents={"n1": agent()},
    proxies={"n1": [MetricSample(f"{PROXY}given_up", {"resource": "tencent.com/vcuda-core"}, 0)]},
    webhooks={"w1": server("webhook"), "w2": server("webhook")},
    extenders={"k": server("scheduler")},
)


def findings(**changed: object) -> list[Finding]:
    return run_checks(replace(HEALTHY, **changed))  # type: ignore[arg-type]


def wrong(**changed: object) -> list[str]:
    return [
        f"{each.check} {each.level.value}: {each.text}"
        for each in findings(**changed)
        if each.level is not Level.OK
    ]


def test_nothing_is_wrong_with_a_healthy_cluster() -> None:
    assert wrong() == []
    assert {each.check for each in findings()} == {
        *("kubernetes-version", "webhook", "webhook-configuration", "webhook-replicas"),
        *("webhook-certificate", "policies", "agents", "proxies", "kubelet", "other-plugins"),
        *("agent-requests", "agents-rollout"),
        *("cards", "allocatable", "scheduler-own", "extender-lease"),
        *("extender-asked", "enforcement", "allocations", "leftovers"),
        *("refusals", "agent-disks"),
    }


def without(*components: str) -> list[ProgramPod]:
    assert not isinstance(HEALTHY.programs, UnreadSource)
    gone = {f"gpu-turnstile-{each}" for each in components}
    return [each for each in HEALTHY.programs if each.component not in gone]


WITH_EXTENDER: dict[str, object] = {
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


def test_nothing_is_wrong_where_the_clusters_own_scheduler_calls_the_extender() -> None:
    assert wrong(**WITH_EXTENDER) == []
    found = {each.check for each in findings(**WITH_EXTENDER)}
    assert {"scheduler-extender", "extender-certificate"} <= found
    assert "scheduler-own" not in found


def of_version(version: str) -> list[ProgramPod]:
    image = f"registry.example:5000/kube-scheduler:{version}"
    return [*without("kube-scheduler"), pod("kube-scheduler", "k", image=image)]


@pytest.mark.parametrize("version", ["v1.36.9", "v1.36.2", "v1.35.0-rc.1", "mine"])
def test_a_second_kube_scheduler_may_be_one_version_behind(version: str) -> None:
    assert wrong(programs=of_version(version)) == []


ACCEPTS = [
    MetricSample("gpu_turnstile_webhook_accepts", {"system": each}, 1) for each in ("hami", "kai")
]

TROUBLES: dict[str, dict[str, object]] = {
    "kubernetes-version error: v1.29.4: gpu-turnstile needs Kubernetes 1.30 or newer": {
        "version": "v1.29.4"
    },
    "kubernetes-version unknown: cannot read the version 'latest'": {"version": "latest"},
    "webhook-configuration error: MutatingWebhookConfiguration gpu-turnstile is missing": {
        "mutating": None
    },
    "webhook-configuration error: webhook pods.gpu-turnstile.io is missing": {"mutating": []},
    (
        "webhook-configuration error: pods.gpu-turnstile.io has failurePolicy Ignore: GPU pods "
        "may be created without stamps"
    ): {"mutating": [WebhookEntry("pods.gpu-turnstile.io", "Ignore", has_ca_bundle=True)]},
    "webhook-configuration error: without a caBundle: pods.gpu-turnstile.io": {
        "mutating": [WebhookEntry("pods.gpu-turnstile.io", "Fail", has_ca_bundle=False)]
    },
    (
        "webhook-configuration error: dialects.gpu-turnstile.io sends pods of other systems, and "
        "w1 has no --accept"
    ): {
        "mutating": [
            WebhookEntry(f"{name}.gpu-turnstile.io", "Fail", has_ca_bundle=True)
            for name in ("pods", "dialects")
        ],
        "webhooks": {"w1": server("webhook"), "w2": [*server("webhook"), *ACCEPTS]},
    },
    (
        "webhook-configuration error: w2 has --accept hami,kai, and dialects.gpu-turnstile.io is "
        "missing: not all such pods are translated"
    ): {"webhooks": {"w1": server("webhook"), "w2": [*server("webhook"), *ACCEPTS]}},
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
    "agents error: DaemonSet gpu-turnstile-agent is missing": {
        "daemonsets": {"gpu-turnstile-proxy": DaemonSet(1, 1)}
    },
    "agents warning: its pod is on a node that does not exist": {
        "programs": [*without("none"), pod("agent", "b", "gone", ready=False)]
    },
    "agents error: no pod on 2 nodes that the DaemonSet selects": {
        "daemonsets": {**BOTH, "gpu-turnstile-agent": DaemonSet(3, 1, updated=1)}
    },
    "proxies error: not ready: ErrImagePull": {
        "programs": [*without("proxy"), pod("proxy", "p", ready=False, why="ErrImagePull")]
    },
    "proxies warning: pods on 1 node that the DaemonSet does not select": {
        "daemonsets": {**BOTH, "gpu-turnstile-proxy": DaemonSet(1, 1, misplaced=1)}
    },
    "kubelet error: the agent is not registered with the kubelet": {
        "agents": {"n1": agent(registered=0)}
    },
    "kubelet warning: PodResources List cannot be read: containers are identified by order": {
        "agents": {"n1": agent(list_readable=0)}
    },
    "kubelet warning: the kubelet's checkpoint cannot be read: containers start unverified": {
        "agents": {"n1": agent(checkpoint_readable=0)}
    },
    (
        "kubelet error: its proxy reports all devices as unhealthy to the kubelet: no "
        "agent is running"
    ): {"proxies": {"n1": [MetricSample(f"{PROXY}given_up", {}, 1)]}},
    "agent-disks error: --state-dir is full, read-only or missing: new GPU pods may be refused": {
        "agents": {
            "n1": [*agent(), MetricSample(f"{AGENT}folder_writable", {"folder": "state-dir"}, 0)]
        }
    },
    "kubelet unknown: its proxy: 503": {"proxies": {"n1": UnreadSource("503")}},
    "agent-requests error: the agent has no permission to list pods, get nodes": {
        "agents": {"n1": [*agent(), *failing(list_pods="forbidden", get_nodes="forbidden")]}
    },
    "agent-requests error: a policy or webhook denies that the agent may patch pods": {
        "agents": {"n1": [*agent(), *failing(patch_pods="denied")]}
    },
    "agent-requests error: the API server does not accept the agent's token: it cannot list pods": {
        "agents": {"n1": [*agent(), *failing(list_pods="unauthorized")]}
    },
    "agent-requests error: the agent does not reach the API server": {
        "agents": {"n1": [*agent(), *failing(list_pods="unreachable", get_nodes="unreachable")]}
    },
    "agent-requests unknown: its agent is of a version that does not report this": {
        "agents": {"n1": [each for each in agent() if "requests" not in each.name]}
    },
    (
        "other-plugins error: nvidia.com/gpu is offered too: one card may be allocated to two pods "
        "that do not share it"
    ): {"nodes": [node(nvidia=2)]},
    (
        "other-plugins error: nvidia.com/mig-1g.5gb is offered too: one card may be allocated to "
        "two pods that do not share it"
    ): {"nodes": [node(mig=True)]},
    "cards warning: a card is in MIG mode and is not offered": {
        "agents": {"n1": [*agent(), MetricSample(f"{AGENT}cards", {"state": "mig"}, 1)]}
    },
    "cards warning: a card was added later; it is offered after a restart of the agent": {
        "agents": {"n1": [*agent(), MetricSample(f"{AGENT}cards", {"state": "late"}, 1)]}
    },
    "cards error: the cards cannot be read: no driver, or NVML does not respond": {
        "agents": {"n1": agent(cards_problem=1)}
    },
    "cards warning: the edited cards file cannot be used, the one before applies": {
        "agents": {"n1": agent(cards_file_problem=1)}
    },
    "allocatable error: the agent has not written its inventory of cards": {
        "nodes": [node(inventory=None)]
    },
    "cards error: gpu-cards: not JSON: Expecting value: line 1 column 1 (char 0)": {
        "nodes": [node(inventory="no")]
    },
    (
        "allocatable error: tencent.com/vcuda-core: the node's status offers 100, its cards "
        "have 200"
    ): {"nodes": [node(cores=100)]},
    ("enforcement warning: HAMi-core is older than 2026-02-03: programs start 52 seconds late"): {
        "agents": {"n1": agent(hami_core_outdated=1)}
    },
    "extender-lease error: k is the leader, last renewal 60 seconds ago": {
        "leases": {"gpu-turnstile-kube-scheduler": Lease("k", NOW - timedelta(seconds=60), 15)}
    },
    "extender-lease error: it has no leader: it binds no pods": {
        "leases": {"gpu-turnstile-scheduler": Lease("of an earlier installation", NOW, 10)}
    },
    (
        "extender-asked warning: no scheduler has called it since it started: no GPU pod was "
        "created since, or each names another scheduler"
    ): {"extenders": {"k": server("scheduler", asked=0)}},
    (
        "extender-asked warning: no scheduler has called it since it started: GPU pods are "
        "scheduled by counts per node"
    ): WITH_EXTENDER | {"extenders": {"s": server("scheduler", asked=0)}},
    "extender-certificate error: the certificate of s expired 2 days ago": WITH_EXTENDER
    | {"extenders": {"s": server("scheduler", timedelta(days=-2))}},
    (
        "scheduler-extender warning: installed beside scheduler-own, which has an extender: no "
        "scheduler calls this one"
    ): {"programs": [*HEALTHY_PROGRAMS, pod("scheduler", "s")]},
    "scheduler-own error: kube-scheduler v1.37.0 is newer than the API server, v1.36.2": {
        "programs": of_version("v1.37.0")
    },
    (
        "scheduler-own warning: kube-scheduler v1.34.9 is two or more versions older than the API "
        "server, v1.36.2"
    ): {"programs": of_version("v1.34.9")},
    "enforcement warning: off: shares are not enforced": {
        "enforcement": "none",
        "agents": {"n1": agent("none")},
    },
    "enforcement error: the agent's enforcement is none, its DaemonSet sets hami-core": {
        "agents": {"n1": agent("none")}
    },
    "enforcement unknown: its agent is of a version that does not report this": {
        "agents": {"n1": [each for each in agent() if each.name != AGENT + "info"]}
    },
    (
        "agents-rollout error: the next agent is not ready, the one before still runs: agent: "
        "ContainerCreating: hostPath type check failed: /usr/local/vgpu is not a directory"
    ): {"programs": [*HEALTHY_PROGRAMS, next_agent(timedelta(minutes=2))]},
    (
        "agents-rollout unknown: the next agent is not ready, the one before still runs: agent: "
        "ContainerCreating: hostPath type check failed: /usr/local/vgpu is not a directory"
    ): {"programs": [*HEALTHY_PROGRAMS, next_agent(timedelta(seconds=119))]},
    ("agents-rollout warning: the update of the agents is not complete: new on 1 of 2 nodes"): {
        "daemonsets": {**BOTH, "gpu-turnstile-agent": DaemonSet(2, 2, updated=1)},
        "programs": [*HEALTHY_PROGRAMS, pod("agent", "b", "n2")],
        "nodes": [node(), node("n2")],
    },
    "allocations warning: allocations are not written to the pods yet": {
        "agents": {"n1": agent(patches_pending=2)}
    },
    (
        "allocations warning: pod default/share: container main holds a missing card "
        "(GPU-9) and cannot compute on it: delete the pod"
    ): {
        "allocations": [
            ReportedAllocation("default", "share", "main", "n1", frozenset({"GPU-9"}), 50)
        ]
    },
    "allocations error: running without a recorded card: default/dark/main": {
        "allocations": [
            UnrecordedContainer("default/dark", "main", "n1", NOW - timedelta(minutes=1)),
            UnrecordedContainer("default/new", "main", "n1", NOW - timedelta(seconds=59)),
        ]
    },
    (
        "allocations warning: pod default/late: container main holds missing cards "
        "(GPU-8, GPU-9) and cannot compute on it: delete the pod"
    ): {
        "allocations": [
            ReportedAllocation(
                *("default", "late", "main", "n1"),
                frozenset({"GPU-8", "GPU-9", "GPU-n1-0"}),
                300,
                running=False,
            )
        ]
    },
    (
        "allocations error: pod default/share: container main holds other devices in the kubelet "
        "than in its annotation gpu-allocation"
    ): {
        "allocations": [
            ReportedAllocation("default", "share", "main", "n1", frozenset({"GPU-n1-1"}), 50)
        ]
    },
    (
        "leftovers warning: component view has no Deployment gpu-turnstile-view any more; "
        "left over: 1 object (ServiceAccount)"
    ): {"managed": owned_without("view")},
    (
        "leftovers warning: from a version before 0.3.0, without component labels: CronJob "
        "gpu-turnstile-certs"
    ): {"managed": [*OWNED, ManagedObject("CronJob", "gpu-turnstile-certs", "")]},
    "cards warning: card 1: Xid 79": {"nodes": [node("n1", 100, 4, unhealthy=[1])]},  # places too
}


@pytest.mark.parametrize(("expected", "changed"), TROUBLES.items())
def test_each_problem_is_the_only_finding(expected: str, changed: dict[str, object]) -> None:
    assert wrong(**changed) == [expected]


def test_a_page_to_read_comes_with_a_command_where_there_is_one() -> None:
    pages = {
        each.run
        for changed in TROUBLES.values()
        for each in findings(**changed)
        if each.run.startswith("docs/")
    }
    assert pages == {
        "docs/install.md#2-choose-scheduler-device-injection-and-enforcement",
        "docs/install.md#a-second-kube-scheduler",
        "docs/install.md#pods-of-other-systems",
        "docs/install.md#what-you-need",
        "docs/options.md#what-hami-core-needs-on-a-node",
        "docs/upgrade.md#from-020",
    }


@pytest.mark.parametrize(
    "component", ["certs", "dra", "scheduler-extender", "scheduler-own", "view"]
)
def test_leftovers_are_deleted_by_labels_that_are_only_ours(component: str) -> None:
    """Others have a component ``webhook`` too: cert-manager's Deployment has this very label."""
    left = owned_without(component)
    (found,) = [each for each in findings(managed=left) if each.check == "leftovers"]
    ours = f"app.kubernetes.io/part-of=gpu-turnstile,app.kubernetes.io/component={component}"
    page = (DEPLOY / "README.md").read_text(encoding="utf-8").replace("\\\n    ", "")
    assert found.run.split() == ["kubectl", "delete", "--all-namespaces", "--selector", ours, ANY]
    kinds, _, more = found.run.partition(",deviceclasses")
    assert kinds.replace(f"component={component}", "component=COMPONENT") in page
    assert (found.run != kinds, more) == (component == "dra", "")


def test_what_components_run_is_what_is_installed() -> None:
    built = [
        *build_components("scheduler-extender", "view", "dra"),
        *build_components("scheduler-own"),
    ]
    label = "app.kubernetes.io/component"
    runs = {
        (each["metadata"]["labels"][label], each["kind"], each["metadata"]["name"])
        for each in built
        if each["kind"] in ("DaemonSet", "Deployment")
    }
    listed = {(each, kind, name) for each, (kind, name) in control_plane.WORKLOADS.items()}
    besides = {
        ("scheduler-extender", "Deployment", "gpu-turnstile-scheduler-certs"),
        ("dra", "DaemonSet", "gpu-turnstile-agent-dra"),
        ("dra", "DaemonSet", "gpu-turnstile-proxy-dra"),
    }
    assert runs - besides == listed


def test_what_every_installation_has_is_applied_again_and_not_deleted() -> None:
    left = findings(managed=owned_without("webhook"))
    (found,) = [each for each in left if each.check == "leftovers"]
    assert found.run == "kubectl apply -k YOUR-KUSTOMIZATION"


def test_what_helm_installed_is_put_back_by_helm() -> None:
    owned = [replace(each, release=("gpus", "team")) for each in OWNED]
    owned[0] = replace(owned[0], release=("a-try", "elsewhere"))  # first by the alphabet
    helm = "helm upgrade gpus YOUR-CHART --namespace team --reuse-values"
    left = [each for each in owned if (each.component, each.kind) != ("webhook", "Deployment")]
    explanation_of = [
        findings(managed=owned, mutating=None),
        findings(managed=owned, policies={}),
        findings(managed=owned, daemonsets={}),
        findings(managed=left),
    ]
    wrong = [[each for each in found if each.level is not Level.OK] for found in explanation_of]
    assert [{each.run for each in found} for found in wrong] == [{helm}] * len(explanation_of)


def test_a_missing_agent_and_all_is_well_are_not_reported_together() -> None:
    found = findings(daemonsets=BOTH | {"gpu-turnstile-agent": DaemonSet(3, 1, updated=1)})
    assert [each.level for each in found if each.check == "agents"] == [Level.ERROR]


def test_where_no_node_is_chosen_agents_are_missed_once() -> None:
    text = "no node has a label that the DaemonSet selects"
    none = dict.fromkeys(BOTH, DaemonSet())
    assert wrong(daemonsets=none, programs=without("agent", "proxy")) == [
        f"agents error: {text}",
        f"proxies error: {text}",
    ]


def test_agents_that_were_not_found_are_not_reported_as_registered() -> None:
    found = wrong(agents={}, proxies={})
    assert "kubelet unknown: the metrics of no agent were read" in found


@pytest.mark.parametrize("agents", [{}, {"n1": UnreadSource("you may not")}])
def test_facts_that_were_not_compared_are_not_reported_as_equal(
    agents: dict[str, UnreadSource],
) -> None:
    (found,) = [each for each in findings(agents=agents) if each.check == "allocations"]
    assert (found.level, found.nodes) == (Level.UNKNOWN, ("n1",))
    assert found.text == "its agent's metrics cannot be read: allocations were not compared"


@pytest.mark.parametrize(
    ("levels", "code"),
    [
        ({"webhook": Level.OK, "agents": Level.UNKNOWN}, 0),
        ({"webhook": Level.WARNING, "agents": Level.OK}, 0),
        ({"webhook": Level.ERROR, "agents": Level.UNKNOWN}, 1),
        ({"webhook": Level.UNKNOWN, "agents": Level.UNKNOWN}, 3),
    ],
)
def test_a_user_who_may_read_only_the_version_is_shown_that(
    levels: dict[str, Level], code: int
) -> None:
    """Every user may read the version: it says nothing of an installation."""
    found = [Finding(check, level, "") for check, level in levels.items()]
    assert exit_code([Finding("kubernetes-version", Level.OK, ""), *found]) == code


@pytest.mark.parametrize(("age", "level"), [(59, "unknown"), (60, "error")])
@pytest.mark.parametrize("replaced", ["agent", "proxy"])
def test_a_status_is_not_called_wrong_while_agent_or_proxy_are_new(
    replaced: str, age: int, level: str
) -> None:
    ages = {"agent": 3600, "proxy": 3600, replaced: age}
    programs = [
        *without("agent", "proxy"),
        *(pod(name, name, since=NOW - timedelta(seconds=each)) for name, each in ages.items()),
    ]
    text = "tencent.com/vcuda-core: the node's status offers 100, its cards have 200"
    if level == "unknown":
        text += "; agent or proxy have just started, the kubelet may not have updated it yet"
    assert wrong(nodes=[node(cores=100)], programs=programs) == [f"allocatable {level}: {text}"]


def test_what_an_agent_enforces_is_unknown_while_it_does_not_respond() -> None:
    agents = {"n1": agent(), "n2": UnreadSource("no route")}
    found = [each for each in findings(agents=agents) if each.check == "enforcement"]
    assert [(each.level, each.nodes) for each in found] == [(Level.UNKNOWN, ("n2",))]


def test_a_cordoned_card_is_no_problem_for_the_doctor() -> None:
    nodes = [node("n1", 100, 4, cordoned="GPU-n1-1")]
    assert wrong(nodes=nodes) == []
    (text,) = [each.text for each in findings(nodes=nodes) if each.check == "cards"]
    assert text == "2 cards, all healthy; 1 cordoned"


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        # By the alphabet 0.9.0 comes last; 0.10.0 is what the cluster runs.
        (
            ["a:0.10.0", "a:0.10.0", "a:0.9.0"],
            {("n2",): "runs a:0.9.0; others run a:0.10.0"},
        ),
        (
            ["a:2", "a:1", "a:2", "a:1"],
            {("n0", "n1", "n2", "n3"): "different images: a:1 (2 nodes); a:2 (2 nodes)"},
        ),
        (["a:1", "a:1"], {}),
    ],
)
def test_the_image_that_most_run_is_the_common_one(
    images: list[str], expected: dict[tuple[str, ...], str]
) -> None:
    nodes = [node(f"n{at}") for at in range(len(images))]
    agents = [pod("agent", f"a{at}", f"n{at}", image=each) for at, each in enumerate(images)]
    proxies = [pod("proxy", f"p{at}", f"n{at}") for at in range(len(images))]
    programs = [*without("agent", "proxy"), *agents, *proxies]
    found = [each for each in findings(nodes=nodes, programs=programs) if each.check == "agents"]
    explanation_of = {each.nodes: each.text for each in found if each.level is Level.WARNING}
    assert explanation_of == expected


def test_nodes_with_the_same_trouble_are_one_finding() -> None:
    names = ("n3", "n1", "n2")
    nodes = [node(name, inventory=None) for name in names]
    programs = [pod("agent", f"a-{name}", name) for name in names]
    (found,) = [
        each for each in findings(nodes=nodes, programs=programs) if each.check == "allocatable"
    ]
    assert found.nodes == ("n1", "n2", "n3")
    assert "spec.nodeName=n1" in found.run


def test_for_one_node_only_its_own_and_cluster_findings_are_shown() -> None:
    nodes = [node("n1"), node("n2", inventory=None)]
    programs = [*without("none"), pod("agent", "a2", "n2"), pod("proxy", "p2", "n2")]
    facts = replace(HEALTHY, nodes=nodes, programs=programs)
    assert [each.level for each in run_checks(facts, "n2") if each.check == "allocatable"] == [
        "error"
    ]
    assert [each for each in run_checks(facts, "n1") if each.check == "allocatable"] == []


NO_EXTENDER: dict[str, object] = {
    "programs": without("kube-scheduler"),
    "managed": [each for each in OWNED if each.component != "scheduler-own"],
    "leases": {},
    "extenders": {},
}


def test_without_an_extender_it_is_a_warning_that_no_scheduler_sees_cards() -> None:
    """It may be on purpose, so it is no error: with whole cards, or one size of shares."""
    assert wrong(**NO_EXTENDER) == [
        (
            "scheduler-extender warning: not installed: no scheduler sees cards, so a pod can be "
            "sent to a node where no card has room, and fails there; harmless if all pods request "
            "whole cards, or shares of one size that divides a card"
        )
    ]
    assert exit_code(findings(**NO_EXTENDER)) == 0


@pytest.mark.parametrize(
    ("release", "run"),
    [
        (
            None,
            (
                "kubectl apply -k YOUR-KUSTOMIZATION  # with the component scheduler-own: "
                "docs/install.md#a-scheduler-that-sees-cards"
            ),
        ),
        (
            ("gpus", "infra"),
            ("helm upgrade gpus YOUR-CHART --namespace infra --reuse-values --set scheduling=own"),
        ),
    ],
)
def test_the_next_command_brings_a_scheduler_that_sees_cards(
    release: tuple[str, str] | None, run: str
) -> None:
    managed = [ManagedObject("Deployment", "gpu-turnstile-webhook", "webhook", release)]
    found = findings(**NO_EXTENDER | {"managed": managed})
    assert [each.run for each in found if each.check == "scheduler-extender"] == [run]


LOOKUP = 'Post "http://127.0.0.1:8444/filter": dial tcp 127.0.0.1:8444: connect: connection refused'


@pytest.mark.parametrize("besides", [{}, {"extenders": {"k": server("scheduler", asked=0)}}])
def test_a_scheduler_that_cannot_reach_the_extender_is_an_error_in_its_own_words(
    besides: dict[str, object],
) -> None:
    assert wrong(unreached=[LOOKUP, LOOKUP], **besides) == [
        f"extender-asked error: a scheduler's requests to it fail (2 pods pending): {LOOKUP}"
    ]


def test_a_scheduler_that_calls_an_uninstalled_extender_is_an_error() -> None:
    found = wrong(unreached=[LOOKUP], **NO_EXTENDER)
    assert found[1:] == [
        f"extender-asked error: a scheduler's requests to it fail (1 pod pending): {LOOKUP}"
    ]


# --- refused pods -----------------------------------------------------------------------


def refused(pods: Sequence[Json], ago: timedelta = timedelta(0)) -> list[RefusedPod]:
    """Refused pods, as if the last one had been refused some time ago."""
    found = []
    for each in pods:
        facts = read_pod_facts(each, NAMES)
        assert facts is not None
        at = datetime.fromisoformat(each["status"]["startTime"])
        found.append(RefusedPod(facts.report, NOW - (scenes.NOW - at) - ago))
    return found


def without_plugin(count: int, words: str) -> list[Json]:
    pods = scenes.storm(count, seconds=4)
    for each in pods:
        each["status"]["message"] = f"Allocate failed due to {words} x, which is unexpected"
    return pods


MINUTE = timedelta(minutes=1)
UNHEALTHY = "no healthy devices present"
CLOSING = "client connection is closing"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"refused": refused(scenes.storm(), 3 * MINUTE)},
            [
                (
                    "Deployment default/web: refused 137 times in 20 s, last 3 min ago: "
                    "default-scheduler does not see cards"
                )
            ],
        ),
        ({"refused": refused(scenes.storm(), 61 * MINUTE)}, []),
        ({"refused": refused(scenes.storm(1 + 1, seconds=0))}, []),  # two at once, not again
        (
            {
                "refused": refused(without_plugin(16, UNHEALTHY), 3 * MINUTE),
                "proxy_starts": {"n1": NOW - 3 * MINUTE + timedelta(seconds=2)},
            },
            [
                (
                    "16 pods failed within 4 s, last 3 min ago, because the kubelet knew no agent "
                    f'("{UNHEALTHY}"): its proxy ended, the next one started at 23:57:02 UTC'
                )
            ],
        ),
        (  # no other proxy since
            {"refused": refused(without_plugin(2, CLOSING))},
            [
                (
                    "2 pods failed within 4 s, last 0 s ago, because the kubelet knew no agent "
                    f'("{CLOSING}")'
                )
            ],
        ),
    ],
)
def test_refused_pods_are_counted_and_their_cause_is_named(
    changed: dict[str, object], expected: list[str]
) -> None:
    assert wrong(**changed) == [f"refusals warning: {each}" for each in expected]


def test_another_reason_than_cards_is_quoted() -> None:
    storm = scenes.storm(3)
    for each in storm:
        each["status"]["message"] = "rpc error: code = X desc = gpu-turnstile: state-dir: full"
    (found,) = [each for each in findings(refused=refused(storm)) if each.check == "refusals"]
    assert found.text.endswith(
        "refused 3 times in 20 s, last 0 s ago: gpu-turnstile: state-dir: full"
    )
    assert (found.run, found.nodes) == ("kubectl gpu explain -n default web-5d-2", ("n1",))


def test_an_extender_without_pods_is_not_reported_as_not_installed() -> None:
    """Its Deployment is there, with no replicas: GPU pods get no node."""
    found = wrong(programs=without("kube-scheduler"), leases={}, extenders={})
    assert found == [
        "scheduler-own error: Deployment gpu-turnstile-kube-scheduler has no pods, or is missing",
        "extender-lease error: it has no leader: it binds no pods",
        "extender-asked unknown: the metrics of no replica were read",
    ]


def test_the_policies_are_those_that_are_installed() -> None:
    installed = {
        each["metadata"]["name"]
        for path in (DEPLOY / "base/policies").glob("*.yaml")
        for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        if each["kind"] == "ValidatingAdmissionPolicy"
    }
    assert set(control_plane.POLICIES) == installed


# --- Dynamic Resource Allocation ----------------------------------------------------------


def claiming(made: NodeFacts) -> NodeFacts:
    """The node as one whose agent gives cards by claims."""
    return replace(made, labels={"gpu-turnstile.io/mode": "dra"})


def slice_of(
    node: str = "n1", cards: Sequence[int] = (0, 1), blocks: int = 4, **changed: object
) -> NodeSlice:
    has = {f"GPU-{node}-{index}": Amounts(100, blocks) for index in cards}
    made = NodeSlice(node, 7, 1, has)
    return replace(made, **changed)  # type: ignore[arg-type]


LABELLED = [claiming(node())]
CLAIMS_PODS = [pod("claims", "c1", "n9"), pod("claims", "c2", "n9")]
BY_CLAIMS: dict[str, object] = {
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


def test_nothing_is_wrong_with_a_healthy_cluster_of_claims() -> None:
    assert wrong(**BY_CLAIMS) == []
    found = {each.check: each.text for each in findings(**BY_CLAIMS)}
    assert found["dra"] == "resource.k8s.io/v1 is served, DeviceClass gpu.tencent.com exists"
    assert found["claims-replicas"] == "2 of 2 pods are ready"
    assert found["claims"] == "--claims on; 1 node with gpu-turnstile.io/mode=dra"
    assert found["resource-slices"] == "1 node: the same cards as in the inventory"
    assert found["policies"] == "all 13 exist and have a binding"
    assert found["agents"] == "ready on 1 of 1 selected nodes"


def test_without_an_extender_nothing_is_missed_where_all_cards_are_given_by_claims() -> None:
    """Its scheduler sees cards without one."""
    none = [*without("kube-scheduler"), *CLAIMS_PODS]
    changed = {**BY_CLAIMS, **NO_EXTENDER, "programs": none}
    assert wrong(**changed) == []
    mixed = changed | {"nodes": [*LABELLED, node("n2")]}
    assert any("no scheduler sees cards" in each for each in wrong(**mixed))


CLAIM_TROUBLES: dict[str, dict[str, object]] = {
    "dra error: v1.35.1: claims need Kubernetes 1.36 or newer": {"version": "v1.35.1"},
    (
        "dra error: the API server does not serve resource.k8s.io/v1: no pod gets a card by a claim"
    ): {"slices": None, "device_class": False},
    "dra error: DeviceClass gpu.tencent.com is missing: no claim is allocated": {
        "device_class": False
    },
    "dra unknown: deviceclasses is forbidden": {
        "device_class": UnreadSource("deviceclasses is forbidden")
    },
    "claims-replicas error: Deployment gpu-turnstile-claims has no pods, or is missing": {
        "programs": HEALTHY_PROGRAMS
    },
    "claims-replicas error: 0 of 1 pods are ready: ErrImagePull": {
        "programs": [
            *HEALTHY_PROGRAMS,
            pod("claims", "c1", "n9", ready=False, why="ErrImagePull"),
        ]
    },
    "policies error: missing: gpu-turnstile-claimed-pods": {
        "policies": BOUND
        | {each: True for each in dra.POLICIES if each != "gpu-turnstile-claimed-pods"}
    },
    (
        "claims error: GPU pods get a claim (--claims on), and no node has the label "
        "gpu-turnstile.io/mode=dra: they wait"
    ): {"nodes": [node()], "slices": []},
    (
        "claims warning: GPU pods get a claim (--claims on): no new one comes to a node with a "
        "device plugin"
    ): {"nodes": [*LABELLED, node("n2")]},
    (
        "claims warning: GPU pods get no claim (--claims away): no new one comes to a node that "
        "serves them"
    ): {"dry_run": DryRun(stamped=True, claims="away")},
    (
        "claims error: GPU pods get no claim (--claims off): they start without a card on a node "
        "for them"
    ): {"dry_run": DryRun(stamped=True)},
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
    (
        "resource-slices error: ResourceSlices differ from the inventory: with other amounts of "
        "GPU-n1-0, GPU-n1-1"
    ): {"slices": [slice_of(blocks=8)]},
    "resource-slices error: ResourceSlices of generations 6 and 7: old ones are left": {
        "slices": [slice_of(), slice_of(cards=[0], generation=6)]
    },
    ("resource-slices error: 1 of 2 ResourceSlices are there: kube-scheduler uses none of them"): {
        "slices": [slice_of(parts=2)]
    },
    "resource-slices warning: ResourceSlices of a node that does not exist": {
        "slices": [slice_of(), slice_of("gone")]
    },
    f"allocatable error: {UNWRITTEN}": {
        "agents": {"n1": agent(counts_problem=1)},
        "nodes": [claiming(node(cores=0, blocks=0))],
    },
}


@pytest.mark.parametrize(("expected", "changed"), CLAIM_TROUBLES.items())
def test_each_problem_of_claims_is_the_only_finding_and_names_what_to_do(
    expected: str, changed: dict[str, object]
) -> None:
    assert wrong(**{**BY_CLAIMS, **changed}) == [expected]
    (found,) = [each for each in findings(**{**BY_CLAIMS, **changed}) if each.level is not Level.OK]
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
    (found,) = [
        each for each in findings(**{**BY_CLAIMS, "refused": pods}) if each.check == "refusals"
    ]
    assert found.text == (
        "2 pods failed within 4 s, last 3 min ago, because the kubelet still knows the device "
        f'plugin ("{UNHEALTHY}")'
    )
    assert found.run.endswith("# docs/operate.md#the-node-offers-nothing")


@pytest.mark.parametrize(
    ("seconds", "level", "until"),
    [
        (60, "error", ""),
        (
            59,
            "warning",
            ", until the kubelet deletes them, 30 s after the agent for claims has left",
        ),
    ],
)
def test_a_slice_that_stays_on_a_node_with_a_device_plugin_is_an_error(
    seconds: int, level: str, until: str
) -> None:
    """Both would give out the same cards."""
    agent_pod = pod("agent", "b", node="n2", since=NOW - timedelta(seconds=seconds))
    changed = {**BY_CLAIMS, "nodes": [*LABELLED, node("n2")]}
    programs = [*HEALTHY_PROGRAMS, *CLAIMS_PODS, agent_pod]
    found = wrong(**{**changed, "programs": programs, "slices": [slice_of(), slice_of("n2")]})
    text = f"it has ResourceSlices and not the label: pods with a claim are bound to it{until}"
    assert f"resource-slices {level}: {text}" in found


@pytest.mark.parametrize(("seconds", "level"), [(59, "unknown"), (60, "error")])
def test_slices_are_not_called_wrong_while_the_agent_is_new(seconds: int, level: str) -> None:
    since = NOW - timedelta(seconds=seconds)
    programs = [*without("agent"), *CLAIMS_PODS, pod("agent", "a", since=since)]
    (found,) = wrong(**{**BY_CLAIMS, "slices": [], "programs": programs})
    assert found.startswith(f"resource-slices {level}: no ResourceSlice")


@pytest.mark.parametrize(
    ("minutes", "expected"), [(5, f"warning: {FORGETS}"), (6, f"error: {UNWRITTEN}")]
)
def test_a_kubelet_gets_its_time_to_forget_the_device_plugin(minutes: int, expected: str) -> None:
    created = NOW - timedelta(minutes=minutes)
    found = wrong(
        **{
            **BY_CLAIMS,
            "programs": [*without("agent"), *CLAIMS_PODS, pod("agent", "a", created=created)],
            "agents": {"n1": agent(counts_problem=1)},
            "nodes": [claiming(node(cores=0, blocks=0))],
        }
    )
    assert found == [f"allocatable {expected}"]


@pytest.mark.parametrize(
    "changed",
    [
        {"version": "v1.30.0", "slices": None},
        {"version": "v1.33.2", "slices": None, "device_class": False},
        {"slices": UnreadSource("you may not"), "device_class": UnreadSource("you may not")},
        {"waiting": UnreadSource("you may not")},
    ],
)
def test_where_nobody_uses_claims_they_are_not_mentioned(changed: dict[str, object]) -> None:
    assert wrong(**changed) == []


def test_the_policies_of_claims_are_those_that_are_installed() -> None:
    installed = {
        each["metadata"]["name"]
        for path in (DEPLOY / "components/dra").glob("*policies.yaml")
        for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        if each["kind"] == "ValidatingAdmissionPolicy"
    }
    assert set(dra.POLICIES) == installed
