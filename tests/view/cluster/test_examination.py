"""What the doctor reads of a cluster; what is forbidden or unreadable is unknown."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agent.allocator.slots import DeviceTable
from agent.dra.devices import devices_of, manifest, slices_of
from common.apiserver.errors import Rejected
from common.errors import Unavailable
from contract.inventory import Amounts, Card, Inventory
from contract.names import Names
from contract.other_systems import DriverDevices
from tests.placement.cluster.builders import BLOCK, make_pod
from tests.view import scenes
from tests.view.cluster.conftest import (
    ADMISSION,
    AGENT_METRICS,
    CLASS,
    DAEMONSETS,
    FAILED,
    KUEUE,
    NODE_PODS,
    OWN_LEASE,
    SYSTEM_PODS,
    pod,
    read,
    run,
)
from tests.view.cluster.fake_api import FakeApi
from view.cluster.examination import collect_facts
from view.model.doctor.checks import run_checks
from view.model.doctor.facts import (
    DryRun,
    Level,
    ManagedObject,
    NodeSlice,
    ReportedAllocation,
    UnreadSource,
    UnrecordedContainer,
)


def test_the_facts_of_a_cluster_give_the_doctors_findings(api: FakeApi) -> None:
    found = {each.check: each for each in run(api)}
    bad = [each.check for each in found.values() if each.level is not Level.OK]
    # All policies but one are missing in this cluster, and no scheduler sees cards.
    assert bad == ["policies", "scheduler-extender"]
    assert found["webhook"].text == "the API server calls it: a GPU pod would be stamped"
    assert found["webhook-configuration"].text == "1 webhook; failurePolicy of GPU pods is Fail"
    assert found["agents"].text == "ready on 1 of 1 selected nodes"
    assert found["enforcement"].text == "vcuda"
    assert found["allocations"].text == "compared 1 container: all match their annotation"
    assert "POST /api/v1/namespaces/team/pods?dryRun=All" in api.written


def test_one_node_alone_can_be_shown(api: FakeApi) -> None:
    facts = collect_facts(api, Names(), "team", "n2")
    assert (dict(facts.agents), dict(facts.proxies)) == ({}, {})


OF_PROGRAMS = ["webhook-replicas", "agents", "agents-rollout", "kubelet", "agent-requests"]
OF_PROGRAMS += ["scheduler-extender", "enforcement"]


@pytest.mark.parametrize(
    ("path", "checks"),
    [
        ("/version", ["kubernetes-version"]),
        ("/api/v1/nodes", ["other-plugins", "cards", "allocatable"]),
        ("/api/v1/pods", ["allocations", "refusals"]),
        ("/api/v1/namespaces/gpu-turnstile/pods", OF_PROGRAMS),
        (f"{ADMISSION}/mutatingwebhookconfigurations/gpu-turnstile", ["webhook-configuration"]),
        (f"{ADMISSION}/validatingadmissionpolicies", ["policies"]),
        (DAEMONSETS, ["agents", "agents-rollout", "enforcement"]),
        ("/apis/policy/v1/poddisruptionbudgets", ["leftovers"]),
        ("POST /api/v1/namespaces/team/pods", ["webhook"]),
    ],
)
def test_forbidden_facts_are_unknown_and_shown_with_the_servers_message(
    api: FakeApi, path: str, checks: list[str]
) -> None:
    words = 'is forbidden: User "u" cannot create resource'
    api.responses[path] = Rejected(403, words)
    found = [each for each in run(api) if each.text == words]
    assert [each.check for each in found] == checks
    assert {each.level for each in found} == {Level.UNKNOWN}


CALL = "500 failed calling webhook"
STAMPS = "Policy 'gpu-turnstile-stamps' denied request"


NO_STAMPS = "a GPU pod would get no stamps: the API server does not call the webhook"
DENIED = (
    "a GPU pod without stamps is denied: the API server does not call the webhook, or another "
    f"webhook removes the stamps: {STAMPS}"
)
UNREACHED = f"the API server cannot reach the webhook: {CALL}: refused"
UNTRUSTED = f"the API server does not trust the webhook's certificate: {CALL}: x509: expired"


@pytest.mark.parametrize(
    ("response", "level", "text"),
    [
        ({"metadata": {}}, "error", NO_STAMPS),
        (Rejected(403, "no quota"), "unknown", "the dry run of a GPU pod was denied: no quota"),
        (Rejected(422, STAMPS), "error", DENIED),
        (Unavailable(f"{CALL}: refused"), "error", UNREACHED),
        (Unavailable(f"{CALL}: x509: expired"), "error", UNTRUSTED),
        (Unavailable("503 no etcd"), "unknown", "503 no etcd"),
    ],
)
def test_a_dry_run_pod_is_created_and_its_result_reported(
    api: FakeApi, response: object, level: str, text: str
) -> None:
    api.responses["POST /api/v1/namespaces/team/pods"] = response
    (found,) = run(api, "webhook")
    assert (found.level, found.text) == (level, text)


def test_without_the_agents_daemonset_enforcement_is_unknown(api: FakeApi) -> None:
    api.responses[DAEMONSETS] = []
    why = "DaemonSet gpu-turnstile-agent, which sets it, is missing"
    assert read(api).enforcement == UnreadSource(why)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "vcuda"),
        (["--enforcement=hami-core"], "hami-core"),
        (["--inject", "cdi", "--enforcement", "none"], "none"),
    ],
)
def test_flags_of_the_daemonset_win_over_its_environment(
    api: FakeApi, words: list[str], expected: str
) -> None:
    (container,) = api.responses[DAEMONSETS][0]["spec"]["template"]["spec"]["containers"]
    container["args"] = words
    assert read(api).enforcement == expected


def test_allocations_are_read_of_every_pod_that_has_not_ended(api: FakeApi) -> None:
    """Sidecars too; what init containers leave is reusable."""
    side = scenes.running("side", (50, 2), "n1", 0)
    (main,) = side["spec"]["containers"]
    inits = [{**main, "name": "i"}, {**main, "name": "s", "restartPolicy": "Always"}]
    side["spec"]["initContainers"] = inits
    side["status"]["startTime"] = "2026-01-01T00:00:01Z"
    starts = scenes.running("starts", (50, 2), "n1", 0)
    starts["status"] = {"phase": "Pending"}
    ended = scenes.running("ended", (50, 2), "n1", 0)
    ended["status"] = {"phase": "Failed"}
    api.responses["/api/v1/pods"] = [side, starts, ended, scenes.plain("plain")]
    facts = read(api)
    cards = frozenset({"GPU-n1-0"})
    started = datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert facts.allocations == [
        UnrecordedContainer("default/side", "s", "n1", started),
        ReportedAllocation("default", "side", "c0", "n1", cards, 50),
        ReportedAllocation("default", "starts", "c0", "n1", cards, 50, running=False),
    ]


def test_an_allocation_that_contradicts_the_request_is_compared_too(api: FakeApi) -> None:
    """Somebody may have changed it: the agent reports what the kubelet has."""
    pod, key = scenes.running("forged", (50, 2), "n1", 0), Names().gpu_allocation
    forged = json.loads(pod["metadata"]["annotations"][key])
    forged["c0"]["cores"] += 1
    pod["metadata"]["annotations"][key] = json.dumps(forged)
    api.responses["/api/v1/pods"] = [pod]
    cards = frozenset({"GPU-n1-0"})
    assert read(api).allocations == [ReportedAllocation("default", "forged", "c0", "n1", cards, 51)]


def test_a_response_of_another_form_is_unknown(api: FakeApi) -> None:
    api.responses["/version"] = {"major": "1"}
    why = "unexpected response of the API server: KeyError('gitVersion')"
    assert read(api).version == UnreadSource(why)


def test_helm_releases_and_the_time_of_readiness_are_read(api: FakeApi) -> None:
    notes = {"meta.helm.sh/release-name": "gpus", "meta.helm.sh/release-namespace": "team"}
    labels = {"app.kubernetes.io/component": "view"}
    one = {"metadata": {"name": "a", "labels": labels, "annotations": notes}}
    api.responses["/apis/apps/v1/deployments"] = [
        one,
        {"metadata": {"name": "b"}, "spec": {"replicas": 0}},
    ]
    agent, _proxy = api.responses["/api/v1/namespaces/gpu-turnstile-node/pods"]
    (ready,) = agent["status"]["conditions"]
    ready["lastTransitionTime"] = "2026-01-01T00:00:01Z"
    facts = read(api)
    assert facts.managed == [
        ManagedObject("Deployment", "a", "view", ("gpus", "team")),
        ManagedObject("Deployment", "b", "", None, 0),
    ]
    assert not isinstance(facts.programs, UnreadSource)
    (since,) = (each.since for each in facts.programs if each.name == "agent-1")
    assert since == datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)


def test_refused_and_unreached_pods_and_the_start_of_a_proxy_are_read(api: FakeApi) -> None:
    lookup = 'Post "https://gpu-turnstile-scheduler.gpu-turnstile.svc/filter": dial tcp: lookup x'
    status = "failed filter with extender at URL https://10.1.1.1/filter, code 403"
    api.responses["/api/v1/pods"] = [
        *scenes.storm(3),
        scenes.waiting("unreached", (30, 4), message=lookup),
        scenes.waiting("failed", (30, 4), message=status),
        scenes.waiting("full", (30, 4), message="0/1 nodes are available"),
        scenes.plain("other"),
    ]
    _, proxy = api.responses["/api/v1/namespaces/gpu-turnstile-node/pods"]
    running = {"running": {"startedAt": "2025-11-22T08:59:58Z"}}
    proxy["status"]["containerStatuses"] = [{"name": "proxy", "state": running}]
    facts = read(api)
    assert not isinstance(facts.refused, UnreadSource)
    assert [each.at for each in facts.refused] == [
        scenes.NOW - timedelta(seconds=each) for each in (20, 10, 0)
    ]
    assert facts.unreached == [lookup, status]
    assert facts.proxy_starts == {"n1": scenes.NOW - timedelta(seconds=2)}


# --- Dynamic Resource Allocation ---------------------------------------------------------

SLICES, TEMPLATES = (
    f"/apis/resource.k8s.io/v1/{each}" for each in ("resourceslices", "resourceclaimtemplates")
)


def resource_slice() -> dict[str, Any]:
    """As the agent publishes it."""
    devices = devices_of(
        DeviceTable(Inventory((Card("GPU-n1-0", 0, "A100", 4 * BLOCK),)), BLOCK),
        domain="tencent.com",
        driver_version="",
        cordoned=frozenset(),
        unhealthy=lambda _uuid: "",
        pcie_root=lambda _bus: "",
    )
    ((name, spec),) = slices_of(devices, driver="gpu.tencent.com", node="n1").items()
    return manifest(name, spec, 3, "u-n1")


def test_slices_are_read_as_the_agent_publishes_them(api: FakeApi) -> None:
    api.responses |= {SLICES: [resource_slice()], CLASS: {"metadata": {"name": "gpu.tencent.com"}}}
    facts = read(api)
    cards = {"GPU-n1-0": Amounts(100, 4)}
    assert facts.slices == [NodeSlice("n1", 3, 1, cards)]
    assert facts.other_devices == {}
    assert facts.device_class is True
    api.responses["/api/v1/nodes"][0]["metadata"]["labels"] = {"gpu-turnstile.io/mode": "dra"}
    (found,) = run(api, "resource-slices")
    assert (found.level, found.text) == ("ok", "1 node: the same cards as in the inventory")


MISSING = Rejected(404, "the server could not find the requested resource")
DENIED_TO_U = Rejected(403, 'is forbidden: User "u" cannot list resource')


def served(*versions: str) -> dict[str, Any]:
    """An API group as discovery shows it to every user."""
    return {"versions": [{"version": each} for each in versions]}


@pytest.mark.parametrize(
    ("response", "group"),
    [(MISSING, served("v1")), (DENIED_TO_U, MISSING), (DENIED_TO_U, served("v1beta2", "v1beta1"))],
)
def test_a_cluster_without_dra_has_no_findings_about_it(
    api: FakeApi, response: Rejected, group: object
) -> None:
    """The API server responds 404 to every request of that group, or 403 to most users."""
    api.responses |= dict.fromkeys((SLICES, TEMPLATES, CLASS), response)
    api.responses["/apis/resource.k8s.io"] = group
    facts = read(api)
    assert (facts.slices, facts.device_class, facts.templates) == (None, False, [])
    older = response is DENIED_TO_U and group is not MISSING  # NVIDIA's driver may use those
    assert facts.other_devices == (UnreadSource(str(response)) if older else {})
    checks = {each.check: each.text for each in run(api)}
    assert checks.keys().isdisjoint({"dra", "claims", "claims-replicas", "resource-slices"})
    assert checks["leftovers"] == "none"


def test_templates_that_may_not_be_read_are_not_absent(api: FakeApi) -> None:
    api.responses[TEMPLATES] = DENIED_TO_U
    assert read(api).templates == UnreadSource(str(DENIED_TO_U))
    template = {"metadata": {"namespace": "team", "name": "gpu-turnstile-0"}}
    api.responses[TEMPLATES] = [template, template]
    (found,) = run(api, "leftovers")
    assert found.text.endswith("would sweep 2 ResourceClaimTemplates (namespaces team)")


OURS, LENT = ["tencent.com/vcuda-memory"], {"cohortName": "gpus"}


@pytest.mark.parametrize(
    ("resources", "spec", "found"),
    [
        (OURS, {}, ""),
        (["cpu", *OURS], {"preemption": {"withinClusterQueue": "Never"}} | LENT, ""),
        (OURS, {"preemption": {"reclaimWithinCohort": "Any"}}, ""),
        (
            OURS,
            {"preemption": {"withinClusterQueue": "LowerOrNewerEqualPriority"}},
            "withinClusterQueue: LowerOrNewerEqualPriority",
        ),
        (OURS, {"preemption": {"reclaimWithinCohort": "Any"}} | LENT, "reclaimWithinCohort: Any"),
        (
            OURS,
            {"preemption": {"borrowWithinCohort": {"policy": "LowerPriority"}}, "cohort": "gpus"},
            "borrowWithinCohort: LowerPriority",
        ),
        (["cpu", "nvidia.com/gpu"], {"preemption": {"withinClusterQueue": "LowerPriority"}}, None),
    ],
)
def test_queues_of_kueue_are_read_by_the_preferred_version(
    api: FakeApi, resources: list[str], spec: dict[str, Any], found: str | None
) -> None:
    """``v1beta1`` has ``cohort``, ``v1beta2`` ``cohortName``."""
    spec["resourceGroups"] = [{"coveredResources": ["memory"]}, {"coveredResources": resources}]
    queue = {"metadata": {"name": "q"}, "spec": spec}
    api.responses |= {
        KUEUE: served("v1beta2", "v1beta1"),
        f"{KUEUE}/v1beta2/clusterqueues": [queue],
        f"{KUEUE}/v1beta2/admissionchecks": [
            {"metadata": {"name": "cards"}, "spec": {"controllerName": "gpu-turnstile.io/cards"}},
            {"metadata": {"name": "other"}, "spec": {"controllerName": "example.com/other"}},
        ],
    }
    assert read(api).queues == ({} if found is None else {"q": found})
    assert read(api).card_checks == (["cards"], [] if found is None else ["q"])
    spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": "cards"}]}
    assert read(api).card_checks == (["cards"], [])


def test_queues_that_may_not_be_read_are_unknown_and_without_kueue_there_are_none(
    api: FakeApi,
) -> None:
    assert run(api, "kueue") == []
    api.responses |= {KUEUE: served("v1beta2"), f"{KUEUE}/v1beta2/clusterqueues": DENIED_TO_U}
    (found,) = run(api, "kueue")
    assert (found.level, found.text) == (Level.UNKNOWN, str(DENIED_TO_U))


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_the_devices_of_nvidias_driver_are_counted_by_node(api: FakeApi, version: str) -> None:
    slices = [of_nvidia("n1", "gpu", "mig"), of_nvidia("n1", "gpu"), of_nvidia("n2", "gpu")]
    if version != "v1":  # Kubernetes 1.32 and 1.33
        api.responses[SLICES] = Rejected(404, "the server could not find the requested resource")
        for each in slices:
            each["spec"]["devices"] = [{"basic": one} for one in each["spec"]["devices"]]
    api.responses[SLICES.replace("v1", version)] = slices
    assert read(api).other_devices == {"n1": DriverDevices(2, 1), "n2": DriverDevices(1)}
    (found,) = run(api, "other-plugins")
    assert (found.level, found.nodes) == ("error", ("n1",))


def of_nvidia(node: str, *kinds: str) -> dict[str, Any]:
    devices = [{"name": kind, "attributes": {"type": {"string": kind}}} for kind in kinds]
    return {"spec": {"driver": "gpu.nvidia.com", "nodeName": node, "devices": devices}}


def test_forbidden_slices_are_unknown_also_without_claims(api: FakeApi) -> None:
    words = 'resourceslices.resource.k8s.io is forbidden: User "u" cannot list resource'
    api.responses[SLICES] = Rejected(403, words)
    (found,) = (each for each in run(api) if words in each.text)
    assert (found.check, found.level) == ("other-plugins", "unknown")
    api.responses["/api/v1/nodes"][0]["metadata"]["labels"] = {"gpu-turnstile.io/mode": "dra"}
    (found,) = (each for each in run(api) if each.text == words)
    assert (found.check, found.level) == ("resource-slices", "unknown")


@pytest.mark.parametrize("claims", ["off", "away", "on"])
def test_a_dry_run_shows_what_the_webhook_does_about_claims(api: FakeApi, claims: str) -> None:
    made = make_pod("try", (1, 1), annotations={"tencent.com/predicate-time": "1"})
    if claims == "on":
        scenes.claimed(made)
    elif claims == "away":
        term = {"key": "gpu-turnstile.io/mode", "operator": "NotIn", "values": ["dra"]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        made["spec"]["affinity"] = {"nodeAffinity": required}
    api.responses["POST /api/v1/namespaces/team/pods"] = made
    assert read(api).dry_run == DryRun(stamped=True, claims=claims)


def test_pending_pods_are_read_with_their_claims(api: FakeApi) -> None:
    claimed, bare = (scenes.waiting(name, (50, 2)) for name in ("claimed", "bare"))
    api.responses["/api/v1/pods"] += [scenes.claimed(claimed), bare, scenes.plain("plain")]
    assert read(api).waiting == {"default/claimed": True, "default/bare": False}


# --- our programs' pods, their metrics, and why they are not ready ------------------------


def test_the_extender_in_the_pod_of_a_kube_scheduler_is_read(api: FakeApi) -> None:
    own = pod("gpu-turnstile", "k", "kube-scheduler", 10259)
    (container,) = own["spec"]["containers"]
    container |= {"image": "kube-scheduler:v1.36.1"}
    container["ports"][0]["name"] = "kube-scheduler"
    port = {"name": "http", "containerPort": 8444}
    own["spec"]["initContainers"] = [{"name": "scheduler", "image": "image:1", "ports": [port]}]
    api.responses[SYSTEM_PODS].append(own)
    api.responses[f"{SYSTEM_PODS}/k%3A8444/proxy/metrics"] = (
        'gpu_turnstile_scheduler_request_duration_seconds_count{verb="filter"} 3\n'
    )
    renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "k_0", "leaseDurationSeconds": 15, "renewTime": renewed}
    api.responses[OWN_LEASE] = {"spec": spec}
    found = {each.check: each.text for each in run(api)}
    assert found["scheduler-own"] == "1 of 1 pods are ready"
    assert found["extender-lease"].startswith("k_0 is the leader, last renewal ")
    assert found["extender-asked"] == "schedulers called it 3 times"
    assert not {"scheduler-extender", "extender-certificate"} & found.keys()


def test_a_pod_without_an_address_gets_no_request(api: FakeApi) -> None:
    """The API server would respond ``address not allowed``, as if a firewall were the cause."""
    webhook = pod("gpu-turnstile", "w", "webhook", 8443)
    webhook["status"] = {"phase": "Pending"}
    api.responses[SYSTEM_PODS] = [webhook]
    (found,) = run(api, "webhook-certificate")
    assert (found.level, found.text) == ("unknown", "w: it has no IP address yet")


PROGRAMS = ["agent", "proxy", "webhook", "kube-scheduler", "scheduler", "claims"]


@pytest.mark.parametrize("component", PROGRAMS)
@pytest.mark.parametrize("how", ["ready", "not ready", "evicted"])
def test_an_ending_pod_of_ours_changes_no_finding(api: FakeApi, component: str, how: str) -> None:
    """A rollout is over when its last old pod begins to end, which takes up to 30 seconds."""
    accepts = 'gpu_turnstile_webhook_accepts{system="hami"} 1\n'
    (webhook,) = [path for path in api.responses if "https%3Aw%3A8443" in path]
    api.responses[webhook] += accepts
    hook = {"name": "dialects.gpu-turnstile.io", "clientConfig": {"caBundle": "QQ=="}}
    api.responses[f"{ADMISSION}/mutatingwebhookconfigurations/gpu-turnstile"]["webhooks"] += [hook]
    before = run(api)
    namespace = "gpu-turnstile-node" if component in ("agent", "proxy") else "gpu-turnstile"
    old = pod(namespace, "old", component, 8443)
    if how == "evicted":
        old["status"] |= {"phase": "Failed", "reason": "Evicted"}
    else:
        old["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    old["spec"]["containers"][0]["image"] = "image:0"
    old["status"]["conditions"][0]["status"] = str(how == "ready")
    api.responses[SYSTEM_PODS if namespace == "gpu-turnstile" else NODE_PODS].insert(0, old)
    path = f"/api/v1/namespaces/{namespace}/pods/https%3Aold%3A8443/proxy/metrics"
    api.responses[path] = "gpu_turnstile_agent_registered 0\n"
    assert run(api) == before
    assert not any("no --accept" in each.text for each in before)


def test_an_agent_that_does_not_respond_is_unknown_on_its_node_alone(api: FakeApi) -> None:
    api.responses[AGENT_METRICS] = Unavailable("API server: no route")
    facts = read(api)
    assert facts.agents == {"n1": UnreadSource("GET :9440/metrics: no route")}
    assert not isinstance(facts.proxies["n1"], UnreadSource)


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (Unavailable("API server: 503 not registered"), "GET :9440/readyz: 503 not registered"),
        ("ok", "containers with unready status: [agent]"),  # the kubelet has not asked again yet
        (Rejected(403, "no pods/proxy"), "containers with unready status: [agent]"),
    ],
)
def test_a_running_pod_that_is_not_ready_is_asked_why(
    api: FakeApi, response: object, why: str
) -> None:
    agent = api.responses[NODE_PODS][0]
    unready = {
        "type": "Ready",
        "status": "False",
        "message": "containers with unready status: [agent]",
    }
    agent["status"]["conditions"] = [unready]
    api.responses[AGENT_METRICS.replace("metrics", "readyz")] = response
    (found,) = run(api, "agents")
    assert (found.level, found.text) == ("error", f"not ready: {why}")


RUNS_SINCE = {"running": {"startedAt": "2025-12-31T23:59:30Z"}}
BACKS_OFF = {"waiting": {"reason": "CrashLoopBackOff"}}


@pytest.mark.parametrize(
    ("times", "restarts", "state", "level"),
    [
        (("23:59:01", "23:59:01"), 0, {"waiting": {"reason": "ContainerCreating"}}, "unknown"),
        (("23:59:00", "23:59:00"), 0, {"waiting": {"reason": "ContainerCreating"}}, "error"),
        (("23:50:00", "23:50:00"), 0, RUNS_SINCE, "unknown"),  # its image was pulled for long
        (("20:00:00", "23:59:29"), 1, RUNS_SINCE, "unknown"),
        (("20:00:00", "23:59:00"), 2, RUNS_SINCE, "error"),  # not ready before this restart either
        (("23:59:30", "23:59:30"), 2, BACKS_OFF, "error"),
        (("23:59:30", "23:59:30"), 0, {"waiting": {"reason": "ErrImagePull"}}, "error"),
    ],
)
def test_a_program_that_has_just_started_is_not_ready_yet(
    api: FakeApi, times: tuple[str, str], restarts: int, state: Any, level: str
) -> None:
    created, lost = times
    agent = api.responses[NODE_PODS][0]
    agent["metadata"]["creationTimestamp"] = f"2025-12-31T{created}Z"
    unready = {"type": "Ready", "status": "False", "lastTransitionTime": f"2025-12-31T{lost}Z"}
    status = {"name": "agent", "restartCount": restarts, "state": state}
    agent["status"] |= {"conditions": [unready], "containerStatuses": [status]}
    facts = replace(read(api), now=datetime(2026, 1, 1, tzinfo=UTC))
    (found,) = (each for each in run_checks(facts) if each.check == "agents")
    assert found.level == level
    assert found.text.endswith("; it has just started") is (level == "unknown")


def test_of_two_agents_on_a_node_the_one_that_responds_counts(api: FakeApi) -> None:
    api.responses[NODE_PODS] += [pod("gpu-turnstile-node", "agent-2-ending", "agent", 9440)]
    api.responses[AGENT_METRICS.replace("agent-1", "agent-2-ending")] = Unavailable("it is ending")
    assert not isinstance(read(api).agents["n1"], UnreadSource)


def test_an_agent_that_is_not_ready_does_not_count_for_its_node(api: FakeApi) -> None:
    """It would claim to enforce what the agent that serves does not."""
    pods = api.responses[NODE_PODS]
    new = pod("gpu-turnstile-node", "agent-0", "agent", 9440)
    new["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    new["metadata"]["creationTimestamp"] = "2026-01-01T00:00:01Z"
    pods.insert(0, new)
    api.responses[AGENT_METRICS.replace("agent-1", "agent-0")] = api.responses[AGENT_METRICS]
    api.responses[AGENT_METRICS] = api.responses[AGENT_METRICS].replace("vcuda", "none")
    found = [each for each in run(api) if each.level is Level.ERROR and each.nodes]
    assert [(each.check, each.nodes) for each in found] == [
        ("agents-rollout", ("n1",)),
        ("enforcement", ("n1",)),
    ]
    assert found[1].text == "the agent's enforcement is none, its DaemonSet sets vcuda"


def test_an_agent_that_is_not_created_has_the_reason_of_its_newest_warning(api: FakeApi) -> None:
    new = pod("gpu-turnstile-node", "agent-2", "agent", 9440)
    new["metadata"] |= {"uid": "u2", "creationTimestamp": "2026-01-01T00:00:01Z"}
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    new["status"] = {"containerStatuses": [{"name": "agent", "state": waiting}]}
    api.responses[NODE_PODS].append(new)

    def text() -> str:
        (found,) = run(api, "agents-rollout")
        assert (found.level, found.nodes) == ("error", ("n1",))
        return found.text.partition("still runs: ")[2]

    events = "/api/v1/namespaces/gpu-turnstile-node/events"
    api.responses[events] = Rejected(403, "events is forbidden")
    assert text() == "agent: ContainerCreating"
    api.responses[events] = []
    for uid, message, at in (
        ("u2", "hostPath type check failed: /x", "00:02:00"),
        ("u2", "an older one", "00:01:00"),
        ("u3", "of another pod", "00:03:00"),
    ):
        about = {"kind": "Pod", "metadata": {"name": "agent-2", "uid": uid}}
        found = scenes.event(about, "Failed", message, "kubelet", at=at)
        found["metadata"]["uid"] = at
        api.responses[events].append(found)
    assert text() == "agent: ContainerCreating: hostPath type check failed: /x"


def test_a_pod_is_reported_as_waiting_for_its_node(api: FakeApi) -> None:
    """A DaemonSet's pod names its node by an affinity, until the scheduler has bound it."""
    agent = pod("gpu-turnstile-node", "agent-1", "agent", 9440)
    del agent["spec"]["nodeName"]
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    required = {"nodeSelectorTerms": [{"matchFields": fields}]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    agent["spec"]["affinity"] = {"nodeAffinity": affinity}
    why = "0/1 nodes are available: 1 Insufficient memory."
    agent["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": why}]}
    api.responses[NODE_PODS][0] = agent
    (found,) = run(api, "agents")
    assert (found.level, found.nodes, found.text) == ("error", ("n1",), f"not ready: {why}")
    assert found.run.endswith("get events --field-selector reason=FailedScheduling")


def waits(reason: str, message: str = "", before: object = None) -> dict[str, Any]:
    """The status of a container that waits, and how it ended before."""
    state = {"state": {"waiting": {"reason": reason, "message": message}}}
    return state | ({"lastState": {"terminated": before}} if before else {})


BACK_OFF = "CrashLoopBackOff"
ENDED = {"state": {"terminated": FAILED}}
ENDED_TWICE = {**ENDED, "lastState": {"terminated": FAILED}, "restartCount": 1}


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (waits(BACK_OFF, "back-off", {"exitCode": 2}), f"{BACK_OFF}, last exit code 2"),
        (
            waits(BACK_OFF, "back-off", {"exitCode": 128, "message": "no such device"}),
            f"{BACK_OFF}, last exit code 128: no such device",
        ),
        (waits("CreateContainerError", "not shared"), "CreateContainerError: not shared"),
        (waits("RunContainerError", f"of {'7e' * 32}"), "RunContainerError: of ..."),
        (waits("ContainerCreating"), "ContainerCreating"),
        (ENDED, "Error: no port"),
        (ENDED_TWICE, "Error, last exit code 1: no port"),
    ],
)
def test_the_reason_of_an_unready_pod_is_that_of_its_status(
    api: FakeApi, status: dict[str, Any], reason: str
) -> None:
    webhook = pod("gpu-turnstile", "w", "webhook", 8443)
    webhook["status"] = {
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [{"name": "webhook", **status}],
    }
    api.responses[SYSTEM_PODS] = [webhook]
    (found,) = run(api, "webhook-replicas")
    assert found.text == f"0 of 1 pods are ready: webhook: {reason}"
