"""Facts of healthy clusters for the doctor, of which each test changes some."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.placement.cluster.builders import NAMES, Json, make_node
from tests.view import scenes
from view.model.doctor import control_plane
from view.model.doctor.checks import run_checks
from view.model.doctor.facts import (
    DaemonSet,
    DryRun,
    Facts,
    Finding,
    Lease,
    Level,
    ManagedObject,
    ProgramPod,
    RefusedPod,
    ReportedAllocation,
    UnreadSource,
    WebhookEntry,
)
from view.model.node_facts import NodeFacts, read_node
from view.model.pod_facts import read_pod_facts
from view.model.usage import MetricSample

Changes = dict[str, object]
"""Fields of :class:`view.model.doctor.facts.Facts`."""

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AGENT, PROXY = "gpu_turnstile_agent_", "gpu_turnstile_proxy_"
BOTH = dict.fromkeys(("gpu-turnstile-agent", "gpu-turnstile-proxy"), DaemonSet(1, 1, updated=1))
MINUTE = timedelta(minutes=1)
UNHEALTHY = "no healthy devices present"


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
    runtime = {"containerRuntimeVersion": "containerd://2.3.4"}
    made["status"] = {"allocatable": {**offered, "cpu": "3900m"}, "nodeInfo": runtime}
    return read_node(made, NAMES)


def sample(name: str, value: float = 1.0, **labels: str) -> MetricSample:
    return MetricSample(AGENT + name, labels, value)


def failing(**reasons: str) -> list[MetricSample]:
    """Whether requests fail: by verb and resource, such as ``list_pods``, the reason."""
    kinds = dict.fromkeys(("list_pods", "patch_pods", "get_nodes", "create_events"), "") | reasons
    found = []
    for kind, reason in kinds.items():
        verb, resource = kind.split("_")
        labels = {"verb": verb, "resource": resource, "reason": reason}
        found.append(sample("requests_failing", float(bool(reason)), **labels))
    return found


def agent(enforcement: str = "hami-core", **changed: float) -> list[MetricSample]:
    values = {"registered": 1.0, "list_readable": 1.0, "checkpoint_readable": 1.0, **changed}
    held = {"namespace": "default", "pod": "share", "container": "main", "card": "GPU-n1-0"}
    return [
        *(sample(name, each) for name, each in values.items()),
        *failing(),
        sample("cards", 2, state="served"),
        sample("info", version="0.3.0", enforcement=enforcement),
        sample("folder_writable", folder="plugin-dir"),
        sample("container_cores_held", 50, **held),
    ]


def with_agent(*more: MetricSample, enforcement: str = "hami-core", **changed: float) -> Changes:
    return {"agents": {"n1": [*agent(enforcement, **changed), *more]}}


def server(
    program: str,
    ends: timedelta = timedelta(days=60),
    requests: float = 7,
    *,
    preempts: bool = False,
) -> list[MetricSample]:
    """The metrics of a server whose certificate ends in some time."""
    prefix = f"gpu_turnstile_{program}_"
    return [
        MetricSample(f"{prefix}certificate_expiry_timestamp_seconds", {}, (NOW + ends).timestamp()),
        MetricSample(f"{prefix}request_duration_seconds_count", {"verb": "filter"}, requests),
        MetricSample(f"{prefix}preempts", {}, float(preempts)),
    ]


OWNED = [
    ManagedObject(kind, name, component)
    for component, (workload, name) in control_plane.WORKLOADS.items()
    for kind in (workload, "ServiceAccount")
    if component not in ("dra", "scheduler-extender")
]

BOUND = dict.fromkeys(control_plane.POLICIES, True)


def owned_without(component: str) -> list[ManagedObject]:
    kind, name = control_plane.WORKLOADS[component]
    owned = {*OWNED, ManagedObject("ServiceAccount", name, component)}
    return [each for each in owned if each != ManagedObject(kind, name, component)]


HEALTHY_PROGRAMS = [pod("agent", "a"), pod("proxy", "p"), pod("kube-scheduler", "k")]
HEALTHY_PROGRAMS += [pod("webhook", "w1"), pod("webhook", "w2")]


HEALTHY = Facts(
    now=NOW,
    domain="tencent.com",
    version="v1.36.2",
    nodes=[node()],
    programs=HEALTHY_PROGRAMS,
    ending=[],
    mutating=[WebhookEntry("pods.gpu-turnstile.io", "Fail", has_ca_bundle=True)],
    policies=BOUND,
    dry_run=DryRun(stamped=True),
    leases={"gpu-turnstile-kube-scheduler": Lease("k_0a1b", NOW - timedelta(seconds=2), 15)},
    daemonsets=BOTH,
    enforcement="hami-core",
    allocations=[ReportedAllocation("default", "share", "main", "n1", frozenset({"GPU-n1-0"}), 50)],
    bound={"default/share": "n1"},
    refused=[],
    unreached=[],
    waiting={},
    slices=[],
    other_devices={},
    device_class=False,
    templates=[],
    queues=None,
    card_checks=None,
    managed=OWNED,
    proxy_starts={"n1": NOW - timedelta(days=1)},
    agents={"n1": agent()},
    proxies={"n1": [MetricSample(f"{PROXY}given_up", {"resource": "tencent.com/vcuda-core"}, 0)]},
    webhooks={"w1": server("webhook"), "w2": server("webhook")},
    extenders={"k": server("scheduler")},
)


def findings(check: str = "", on: str | None = None, /, **changed: object) -> list[Finding]:
    """Return the findings of a check, or of all, in a healthy cluster with some changes."""
    found = run_checks(replace(HEALTHY, **changed), on)  # type: ignore[arg-type]
    return [each for each in found if check in ("", each.check)]


def problems(**changed: object) -> list[str]:
    """Return the findings that are not OK, as text."""
    return [
        f"{each.check} {each.level.value}: {each.text}"
        for each in findings(**changed)
        if each.level is not Level.OK
    ]


def without(*components: str) -> list[ProgramPod]:
    assert not isinstance(HEALTHY.programs, UnreadSource)
    left_out = {f"gpu-turnstile-{each}" for each in components}
    return [each for each in HEALTHY.programs if each.component not in left_out]


NO_EXTENDER: Changes = {
    "programs": without("kube-scheduler"),
    "managed": [each for each in OWNED if each.component != "scheduler-own"],
    "leases": {},
    "extenders": {},
}


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
    """Pods that a kubelet refused because it knew no device plugin."""
    pods = scenes.storm(count, seconds=4)
    for each in pods:
        each["status"]["message"] = f"Allocate failed due to {words} x, which is unexpected"
    return pods
