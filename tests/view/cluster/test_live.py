"""Reads and follows a cluster with all permissions and with few; reads agents' metrics."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import trustme

from common.apiserver import access
from common.apiserver.client import SILENT_SECONDS, Json
from common.apiserver.errors import CredentialsError, Rejected
from common.errors import Unavailable
from simulator.api.server import kubeconfig_for
from tests.agent.fakes import eventually
from tests.placement.cluster.builders import NAMES, make_node, make_pod
from tests.view import scenes
from tests.view.cluster.fake_api import FakeApi
from tests.view.conftest import ManualTime
from tests.view.kueue import (
    INACTIVE,
    LOCAL_QUEUE,
    NO_QUOTA,
    RESERVED,
    cluster_queue,
    condition,
    gated,
    workload,
)
from tests.view.scenes import SHAPE, claimed
from view.cluster.agents import read_usages
from view.cluster.collections import Progress
from view.cluster.connection import connect
from view.cluster.live import STALE_SECONDS, LiveCluster
from view.cluster.timing import REAL_TIME
from view.model.reports import Freshness, Stage
from view.model.state import ClusterState

PODS = "/api/v1/pods"
EMPTY: dict[str, object] = {"/api/v1/nodes": [], PODS: [], "/api/v1/events": []}


def cluster(
    api: FakeApi, progress: Progress = lambda *_: None, time: ManualTime | None = None
) -> LiveCluster:
    state = ClusterState(NAMES, now=lambda: scenes.NOW)
    timing = (time or ManualTime()).timing()
    return LiveCluster(api, state, namespace="default", progress=progress, timing=timing)


def test_lists_are_read_by_pages_and_again_if_they_expire() -> None:
    nodes = [make_node(f"n{number}", 1) for number in range(5)]
    api = FakeApi({**EMPTY, "/api/v1/nodes": nodes}, page=2)
    api.expiring = True
    reported: list[tuple[str, int]] = []
    live = cluster(api, lambda *each: reported.append(each))
    live.load()
    assert len(live.report().nodes) == 5
    assert [count for what, count in reported if what == "nodes"] == [2, 2, 4, 5]
    assert live.report().gaps == ()


@pytest.mark.parametrize("error", [Rejected(400, "no"), Unavailable("no response")])
def test_a_failure_other_than_missing_permission_is_an_error(error: Exception) -> None:
    live = cluster(FakeApi({**EMPTY, "/api/v1/nodes": error}))
    with pytest.raises(type(error)):
        live.load()
    with pytest.raises(type(error)):
        cluster(FakeApi({"/api/v1/namespaces/x/events": error})).load_events_of("x", "a")


def test_a_watch_without_bookmarks_ends_before_the_timeout_for_silent_watches() -> None:
    api, stop = FakeApi(EMPTY), threading.Event()
    threads = cluster(api).follow(stop)
    eventually(lambda: set(EMPTY) == set(api.watched), "watches of all collections")
    stop.set()
    assert int(api.watched["/api/v1/events"]["timeoutSeconds"]) < SILENT_SECONDS
    assert "timeoutSeconds" not in api.watched[PODS]  # bookmarks come
    for thread in threads:
        thread.join()


def test_a_permission_for_all_namespaces_is_used_once_it_is_granted() -> None:
    """Until then the watch on the one namespace goes on, whose end is no error."""
    one = make_pod("a", (30, 4))
    api = FakeApi({**EMPTY, "/api/v1/namespaces/default/pods": [one]})
    granted = api.responses.pop(PODS)
    live, stop = cluster(api), threading.Event()
    threads = live.follow(stop)

    def missing() -> list[str]:
        return [f"{gap.verb} {gap.what}" for gap in live.report().gaps]

    eventually(lambda: missing() == ["list pods"], "the missing permission")
    watched = "/api/v1/namespaces/default/pods"
    eventually(lambda: watched in api.watched, "the watch on one namespace")
    assert int(api.watched[watched]["timeoutSeconds"]) <= 60
    api.responses[PODS] = granted
    eventually(lambda: missing() == [], "it is missing no more")
    stop.set()
    for thread in threads:
        thread.join()


def test_objects_missing_in_a_new_list_are_dropped() -> None:
    api = FakeApi({"/api/v1/nodes": [make_node("n1", 1)], PODS: [make_pod("a", (30, 4))]})
    api.responses["/api/v1/events"] = [scenes.denied()]
    live = cluster(api)
    live.load()
    assert len(live.report().denied) == 1
    api.responses = dict(EMPTY)
    live.load()
    report = live.report()
    assert (report.nodes, report.pods, report.denied) == ((), (), ())


# --- age of the data --------------------------------------------------------------------


def test_data_is_stale_after_10_seconds_without_a_response() -> None:
    """A browser hears of it before it stops trusting the server of the page (15 s)."""
    assert STALE_SECONDS + REAL_TIME.heartbeat < 15
    time = ManualTime(1000.0)
    live = cluster(FakeApi(EMPTY), time=time)
    assert live.freshness == Freshness(0)
    live.load()
    time.now += STALE_SECONDS
    assert live.freshness == Freshness(1000.0)
    time.now += 0.1
    why = "the API server is unreachable (no response in time)"
    assert live.freshness == Freshness(1000.0, why)


@pytest.mark.parametrize(
    ("path", "error", "why"),
    [
        ("/version", "no response from h:6443 in time", "no response in time"),
        ("/version", "connection refused by h:6443", "connection refused"),
        (PODS, "503 no etcd", "503 no etcd"),
    ],
)
def test_stale_data_has_the_reason_of_the_failed_request_until_one_succeeds(
    path: str, error: str, why: str
) -> None:
    time, stop = ManualTime(1000.0), threading.Event()
    api = FakeApi({**EMPTY, "/version": "v1"})
    live = cluster(api, time=time)
    live.load()
    before, api.responses[path] = api.responses[path], Unavailable(f"API server: {error}")
    threads = live.follow(stop)

    def is_stale() -> bool:
        time.now += STALE_SECONDS + 1  # also after the request has failed
        return live.freshness.stale == f"the API server is unreachable ({why})"

    eventually(is_stale, "the data is stale")
    api.responses[path] = before
    eventually(lambda: not live.freshness.stale, "the data is current")
    assert live.freshness.at == time.now
    stop.set()
    for thread in threads:
        thread.join()


# --- templates of claims -----------------------------------------------------------------

_TEMPLATE = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates/{SHAPE}"


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ({"metadata": {"name": SHAPE}}, f"its claim is not made yet, although template {SHAPE}"),
        (Rejected(404, "not found"), f"it waits for a claim: template {SHAPE} is not made yet."),
        (Rejected(403, "you may not"), f"whether template {SHAPE} exists is unknown (you may not"),
        (Unavailable("no response"), f"whether template {SHAPE} exists is unknown (no response"),
    ],
)
def test_the_template_of_a_pod_that_waits_for_its_claim_is_read(
    response: object, text: str
) -> None:
    api = FakeApi({**EMPTY, PODS: [claimed(scenes.waiting("a", (30, 4)))], _TEMPLATE: response})
    live = cluster(api)
    live.load()
    live.load_template_of("default", "a")
    found = live.explain("default", "a")
    assert found is not None
    assert text in found.summary
    # Of the list of all pods no template is read, and pods of one owner stay one group.
    (pod,) = live.report().pods
    assert pod.why == f"it waits for a claim (template {SHAPE})"


def test_no_template_is_read_for_a_pod_that_waits_for_none() -> None:
    made, plain = (scenes.waiting(name, (30, 4)) for name in ("made", "plain"))
    live = cluster(FakeApi({**EMPTY, PODS: [claimed(made, "made-gpus"), plain]}))
    live.load()
    for name in ("made", "plain", "unknown"):
        live.load_template_of("default", name)  # all else is forbidden
        found = live.explain("default", name)
        assert "template" not in (found.summary if found else "")


# --- queues of Kueue ----------------------------------------------------------------------

_GROUP = "/apis/kueue.x-k8s.io"
_WORKLOADS = f"{_GROUP}/v1beta2/namespaces/default/workloads"
_LOCAL = f"{_GROUP}/v1beta2/namespaces/default/localqueues/team-a"
_GPUS = f"{_GROUP}/v1beta2/clusterqueues/gpus"
_QUEUES = {_LOCAL: LOCAL_QUEUE, _GPUS: cluster_queue(condition("Active", "True", "ok"))}
_SERVED = {_GROUP: {"versions": [{"version": "v1beta1"}, {"version": "v1beta2"}]}}
_OLD = {_GROUP: {"versions": [{"version": "v1beta1"}]}, _WORKLOADS: Rejected(404, "not found")}
_WAITS = {_WORKLOADS: [workload(NO_QUOTA)]}


@pytest.mark.parametrize(
    ("responses", "text"),
    [
        (_WAITS | _QUEUES, "it waits in queue team-a (ClusterQueue gpus) for quota: "),
        (_WAITS, "it waits in queue team-a for quota: "),
        (_WAITS | {_LOCAL: LOCAL_QUEUE}, "it waits in queue team-a (ClusterQueue gpus) for quota"),
        (_WAITS | {_LOCAL: Rejected(404, "no")}, "it waits in queue team-a for quota: "),
        (
            _WAITS | _QUEUES | {_GPUS: cluster_queue(condition("Active", "False", INACTIVE))},
            f'it waits in queue team-a (ClusterQueue gpus): "{INACTIVE}" (its controller does not ',
        ),
        ({_WORKLOADS: [workload(RESERVED)]}, "it has quota in queue team-a (ClusterQueue gpus); "),
        ({_WORKLOADS: []}, "Kueue has not made a Workload for it yet; once admitted, it "),
        (_SERVED, f"Kueue has decided about it is unknown ({_WORKLOADS} is forbidden)"),
        ({}, f"Kueue has decided about it is unknown ({_WORKLOADS} is forbidden)"),
        ({_WORKLOADS: Unavailable("no response")}, "about it is unknown (no response); it waits"),
        (_OLD, "about it is unknown (kueue.x-k8s.io/v1beta2 is needed, v1beta1 is served); it "),
        ({_GROUP: Rejected(404, "not found")}, "is pending: SchedulingGated: "),
    ],
)
def test_what_kueue_has_decided_about_a_pod_in_a_queue_is_read(
    responses: Mapping[str, object], text: str
) -> None:
    live = cluster(FakeApi({**EMPTY, PODS: [gated(scenes.waiting("a", (30, 4)))], **responses}))
    live.load()
    live.load_queue_of("default", "a")
    found = live.explain("default", "a")
    assert found is not None
    assert text in found.summary
    # Of the list of all pods nothing of Kueue is read.
    assert live.report().pods[0].why.startswith("SchedulingGated: ")


def test_nothing_of_kueue_is_read_for_a_pod_in_no_queue() -> None:
    live = cluster(FakeApi({**EMPTY, PODS: [scenes.waiting("a", (30, 4))]}))
    live.load()
    for name in ("a", "unknown"):
        live.load_queue_of("default", name)  # all else is forbidden
        found = live.explain("default", name)
        assert found is None or found.queue is None


# --- credentials ------------------------------------------------------------------------


IN_POD = {"HOME": "/nowhere", "KUBERNETES_SERVICE_HOST": "fd00::1"}
NO_CONFIG = "neither --kubeconfig nor .KUBECONFIG is set, and /nowhere/.kube"


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"HOME": "/nowhere"}, NO_CONFIG),
        ({"KUBECONFIG": "/no/a:/no/b"}, "KUBECONFIG names /no/a:/no/b: no such file"),
        (IN_POD, "service account"),
    ],
)
def test_unusable_credentials_are_named(environment: Mapping[str, str], text: str) -> None:
    with pytest.raises(CredentialsError, match=text):
        connect(None, None, environment)


def test_the_kubeconfig_at_home_is_used_with_its_namespace(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    document = json.loads(kubeconfig_for("http://127.0.0.1:1"))
    document["contexts"][0]["context"]["namespace"] = "team"
    (tmp_path / ".kube" / "config").write_text(json.dumps(document))
    assert connect(None, None, {"HOME": str(tmp_path)}).namespace == "team"


def test_in_a_pod_its_service_account_is_used_and_a_group_needs_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("t")
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.crt")
    monkeypatch.setattr(access, "SERVICE_ACCOUNT", tmp_path)
    pod = {**IN_POD, "KUBERNETES_SERVICE_PORT": "443"}
    client = connect(None, None, pod, user="alice", groups=["g"]).client
    assert client.rest.host == "https://[fd00::1]:443"
    with pytest.raises(CredentialsError, match="--as is missing"):
        connect(None, None, pod, groups=["g"])


# --- agents -----------------------------------------------------------------------------

AGENTS = "/api/v1/namespaces/gpu-turnstile-node/pods"
OF_A = 'namespace="d",pod="a",container="c",card='
MEASURED = f"""\
gpu_turnstile_agent_container_cores_held{{{OF_A}"GPU-1"}} 30
gpu_turnstile_agent_container_cores_held{{{OF_A}"GPU-2"}} 30
gpu_turnstile_agent_container_cores_used{{{OF_A}"GPU-1"}} 12.5
gpu_turnstile_agent_card_cores_free{{card="GPU-1"}} 70
# TYPE python_info gauge
python_info{{version="3"}} 1
"""
WAITING = "gpu_turnstile_agent_registered 0\n"
HELD = 'gpu_turnstile_agent_card_cores_held{card="GPU-9"} 100\n'


def agent(name: str, node: str, *, port: int | None = None, phase: str = "Running") -> Json:
    ports = [] if port is None else [{"name": "other"}, {"name": "http", "containerPort": port}]
    command = ["python", "-m", "agent.supervisor"]
    spec = {"nodeName": node, "containers": [{"name": "a", "command": command, "ports": ports}]}
    return {"metadata": {"name": name}, "spec": spec, "status": {"phase": phase}}


def test_agents_are_read_through_the_api_server_and_the_serving_one_counts() -> None:
    of_n2 = {"a2-waiting": WAITING, "a2": HELD, "a2-ending": Unavailable("it is ending")}
    agents = [agent("a1", "n1", port=9500), *(agent(name, "n2") for name in of_n2)]
    agents += [agent("a3", "n3"), agent("a4", "n4", phase="Pending"), agent("a5", "n5")]
    api = FakeApi({AGENTS: agents, f"{AGENTS}/a1%3A9500/proxy/metrics": MEASURED}, page=4)
    for name, response in (of_n2 | {"a3": Unavailable("no route"), "a5": "<html>"}).items():
        api.responses[f"{AGENTS}/{name}%3A9440/proxy/metrics"] = response
    one, two, three, five = read_usages(api)
    assert one.measured
    (use,) = one.containers
    assert (use.cores_held, use.cores_used, use.memory_used) == (60, 12.5, None)
    assert use.cards == ("GPU-1", "GPU-2")
    assert one.cards[0].cores_free == 70
    assert (two.measured, two.cards[0].cores_held) == (False, 100)
    assert three.problem == "the metrics of its agent cannot be read: GET :9440/metrics: no route"
    assert five.problem.startswith("the metrics of its agent cannot be read")
    assert [each.node for each in read_usages(api, nodes=["n2"])] == ["n2"]
    assert read_usages(api, nodes=["n9"]) == ()


# --- workloads whose pods are denied ----------------------------------------------------

WEB, SETS, DAEMONS = (
    f"/apis/apps/v1/namespaces/default/{each}/web-5d"
    for each in ("replicasets", "statefulsets", "daemonsets")
)
JOBS = "/apis/batch/v1/namespaces/default/jobs/web-5d"
NOT_FOUND = Rejected(404, "not found")


def _workload(wanted: int | None, *, has: int = 0, uid: str = "u-web", **metadata: str) -> Json:
    spec = {} if wanted is None else {"replicas": wanted}
    return {"metadata": {"uid": uid, **metadata}, "spec": spec, "status": {"replicas": has}}


def _job(*, suspend: bool = False, ended: str = "") -> Json:
    conditions = [{"type": ended, "status": "True"}] if ended else []
    return _workload(None) | {"spec": {"suspend": suspend}, "status": {"conditions": conditions}}


_PARTS = {
    "spec": {"parallelism": 4, "completions": 5},
    "status": {"succeeded": 3, "active": 1},
}


@pytest.mark.parametrize(
    ("kind", "path", "found", "lacks"),
    [
        ("ReplicaSet", WEB, _workload(3, has=2), "1 of 3 pods"),
        ("ReplicaSet", WEB, _workload(3), "3 of 3 pods"),
        ("ReplicaSet", WEB, Rejected(403, "no"), "pods"),
        ("Job", JOBS, _workload(None) | _PARTS, "1 of 2 pods"),
    ],
)
def test_a_denial_says_how_many_pods_are_missing(
    kind: str, path: str, found: object, lacks: str
) -> None:
    event = scenes.denied()
    event["involvedObject"]["kind"] = kind
    quota = 'pods "web-5d-x" is forbidden: exceeded quota: gpus, requested: requests.tencent.com/'
    event["message"] = f"{quota}vcuda-core=50, used: ..., limited: ..."
    live = cluster(FakeApi({**EMPTY, "/api/v1/events": [event], path: found}))
    live.load()
    assert [each.lacks for each in live.report().denied] == [lacks]


@pytest.mark.parametrize(
    ("kind", "path", "found", "listed"),
    [
        ("ReplicaSet", WEB, _workload(3), True),
        ("ReplicaSet", WEB, _workload(None), True),
        ("ReplicaSet", WEB, NOT_FOUND, False),
        ("ReplicaSet", WEB, Rejected(403, "no"), True),  # unknown is not deleted
        ("ReplicaSet", WEB, _workload(0), False),  # of an older revision
        ("ReplicaSet", WEB, _workload(3, has=3), False),  # scaled down to what runs
        ("ReplicaSet", WEB, _workload(3, uid="u-remade"), False),
        ("ReplicaSet", WEB, _workload(3, deletionTimestamp="2025-11-22T08:59:00Z"), False),
        ("StatefulSet", SETS, _workload(0), False),
        ("Job", JOBS, _job(), True),
        ("Job", JOBS, _job(suspend=True), False),
        ("Job", JOBS, _job(ended="Failed"), False),
        ("DaemonSet", DAEMONS, _workload(None) | {"status": {"desiredNumberScheduled": 2}}, True),
        ("DaemonSet", DAEMONS, _workload(None), False),
        ("RayCluster", "/none", NOT_FOUND, True),  # a kind that we do not know
    ],
)
def test_a_workload_that_wants_no_more_pods_is_not_reported_as_denied(
    kind: str, path: str, found: object, listed: bool
) -> None:
    event = scenes.denied()
    event["involvedObject"]["kind"] = kind
    event["metadata"]["uid"] = "u-event"
    api = FakeApi({**EMPTY, "/api/v1/events": [event], path: found})
    live = cluster(api)
    live.load()
    assert bool(live.report().denied) is listed
    live.load()  # the Event is still there
    assert bool(live.report().denied) is listed
    if not listed:  # it tries again, for example because it was scaled up
        event["lastTimestamp"] = "2025-11-22T08:59:30Z"
        api.responses[path] = Rejected(403, "no")
        live.load()
        assert live.report().denied


@pytest.mark.parametrize(
    ("kind", "path", "found", "left"),
    [
        ("ReplicaSet", WEB, _workload(0), False),
        ("ReplicaSet", WEB, _workload(1), False),  # it runs, and is older
        ("ReplicaSet", WEB, _workload(2), True),
        ("ReplicaSet", WEB, NOT_FOUND, True),
        ("ReplicaSet", WEB, Rejected(403, "no"), True),
        ("StatefulSet", SETS, _workload(0), False),
        ("Job", JOBS, _job(ended="Failed"), True),  # refused, it is why the Job has failed
    ],
)
def test_dead_pods_are_left_out_once_their_workload_has_all_it_wants(
    kind: str, path: str, found: object, left: bool
) -> None:
    revision = "5d" if kind == "ReplicaSet" else ""
    pods = [scenes.running("web-5d-old", (30, 4), "n1", 0), scenes.storm(2)[1]]
    evicted = make_pod("web-5d-evicted", (30, 4), node="n1", phase="Failed")
    for number, pod in enumerate([*pods, evicted]):
        at = f"2025-11-22T08:5{number}:00Z"
        scenes.owned(pod, kind, "web-5d", at, revision)
    api = FakeApi({**EMPTY, "/api/v1/nodes": [make_node("n1", 1)], PODS: pods, path: found})
    live = cluster(api)
    live.load()
    (dead,) = (each for each in live.report().pods if each.stage is Stage.REFUSED)
    assert dead.replaced is not left
    api.responses[PODS] = [*pods, evicted]  # a later one is not left over before it is asked again
    api.responses[path] = Rejected(403, "no")
    live.load()
    late = next(each for each in live.report().pods if each.name == evicted["metadata"]["name"])
    assert not late.replaced
