"""The watches, against a simulated API server: lists in pages, events, 410, lists on demand."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from scheduler.cluster import SchedulerApi
from scheduler.following import Watches
from scheduler.state import State
from simulator.api.faults import Fault, Outage
from simulator.api.server import ApiServer, Settings, kubeconfig_for
from simulator.client import ApiClient
from tests.agent.fakes import eventually
from tests.placement.cluster.builders import NAMES, bare_node, hint, make_node, make_pod
from tests.scheduler.states import free_amounts
from tests.view.cluster.fake_api import FakeApi

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(Settings(bookmark_s=0.1)) as running:
        yield running


@pytest.fixture
def admin(server: ApiServer) -> Iterator[ApiClient]:
    with ApiClient(server.url) as client:
        yield client


@pytest.fixture
def cluster(server: ApiServer, tmp_path: Path) -> Iterator[SchedulerApi]:
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig_for(server.url))
    made = SchedulerApi(path)
    yield made
    made.close()


@pytest.fixture
def state() -> State:
    return State(NAMES)


@pytest.fixture
def watches(state: State, cluster: SchedulerApi) -> Iterator[Watches]:
    made = Watches(state, cluster, jitter=lambda: 0.0)
    made.start()
    yield made
    made.stop()


def test_nodes_and_pods_are_followed(
    server: ApiServer, admin: ApiClient, state: State, watches: Watches
) -> None:
    server.apply(make_node("n1", 2))
    eventually(lambda: watches.in_step, "everything is listed")
    eventually(lambda: free_amounts(state) == [(100, 32), (100, 32)], "the node is there")
    server.apply(make_pod("a", (30, 4), node="n1", annotations=hint("1"), uid=""))
    eventually(lambda: free_amounts(state) == [(100, 32), (70, 28)], "the pod counts")
    admin.patch(f"{PODS}/a/status", {"status": {"phase": "Failed"}})
    server.apply(make_pod("b", (40, 4), node="n1", annotations=hint("1"), uid=""))
    eventually(lambda: free_amounts(state) == [(100, 32), (60, 28)], "only another one counts")
    admin.delete(f"{PODS}/b", grace_period_seconds=0)
    eventually(lambda: free_amounts(state) == [(100, 32), (100, 32)], "it is deleted")
    server.set_outage(Outage.REFUSED)  # changes during an interrupted watch are listed
    server.set_outage(Outage.NONE)
    server.apply(make_pod("c", (50, 4), node="n1", annotations=hint("0"), uid=""))
    server.expire_history()
    server.drop_watches()
    eventually(lambda: free_amounts(state) == [(50, 28), (100, 32)], "it is listed again")
    admin.delete("/api/v1/nodes/n1")
    eventually(lambda: free_amounts(state) is None, "the node is deleted")


def test_a_requested_list_begins_after_its_request(
    server: ApiServer, state: State, watches: Watches
) -> None:
    eventually(lambda: watches.in_step, "everything is listed")
    server.apply(make_node("n1", 2))
    lists = _lists(server)
    number = watches.list_pods_again()
    server.apply(make_pod("a", (30, 4), node="n1", annotations=hint("1"), uid=""))
    eventually(lambda: watches.has_listed(number), "it has been listed again")
    assert _lists(server) > lists
    eventually(lambda: free_amounts(state) == [(100, 32), (70, 28)], "the pod counts")
    server.apply(make_pod("b", (30, 4), node="n1", annotations=hint("0"), uid=""))
    eventually(lambda: free_amounts(state) == [(70, 28), (70, 28)], "the watch goes on")


def _lists(server: ApiServer) -> int:
    return sum(each.verb == "list" and each.resource == "pods" for each in server.requests)


def test_lists_are_read_page_by_page_and_one_bad_object_harms_no_other(
    state: State, caplog: pytest.LogCaptureFixture
) -> None:
    bad = make_pod("bad", (30, 4), node="n1")
    bad["spec"]["containers"][0]["resources"] = {"limits": {NAMES.core: "30"}}
    bad["metadata"]["annotations"] = 7
    first, last = (
        make_pod(name, (30, 4), node="n1", annotations=hint(card))
        for name, card in (("a", "1"), ("b", "0"))
    )
    nodes = [make_node("n1", 2), bare_node("n2")]
    client = FakeApi({"/api/v1/pods": [first, bad, last], "/api/v1/nodes": nodes}, page=1)
    api = cast(SchedulerApi, SimpleNamespace(client=client, pod_client=client))
    watches = Watches(state, api, jitter=lambda: 0.0)
    watches.start()
    eventually(lambda: watches.in_step, "everything is listed")
    watches.stop()
    assert free_amounts(state) == [(70, 28), (70, 28)]
    assert state.allocations("n2") is not None
    assert [each.message for each in caplog.records if each.exc_info] == ["object passed over"]


def test_the_requests_to_the_api_server(
    server: ApiServer, cluster: SchedulerApi, state: State
) -> None:
    page = {"metadata": {"resourceVersion": "7", "continue": "x"}, "items": []}
    server.apply(make_node("n1", 2))
    server.fail(Fault(200, json.dumps(page).encode()), "list /api/v1/pods")
    watches = Watches(state, cluster, jitter=lambda: 0.0)
    watches.start()
    eventually(lambda: _lists(server) > 1, "the second page is requested")
    eventually(lambda: free_amounts(state) is not None, "nodes are listed beside that")
    server.restore()
    watches.stop()
    selected = "fieldSelector=status.phase!=Succeeded,status.phase!=Failed&limit=500"
    lists = [(each.path, each.query) for each in server.requests if each.verb == "list"]
    pods = [query for path, query in lists if path == "/api/v1/pods"]
    assert pods[:2] == [selected, f"continue=x&{selected}"]
    assert ("/api/v1/nodes", "limit=500") in lists


@pytest.mark.parametrize(
    ("policy", "enough"),
    [({"gang": {"minCount": 3}}, 3), ({"basic": {}}, 1), ({}, None), (None, None)],
)
def test_how_many_pods_of_a_group_are_enough_is_read(
    server: ApiServer, cluster: SchedulerApi, policy: dict[str, object] | None, enough: int | None
) -> None:
    if policy is not None:
        group = {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup"}
        metadata = {"name": "g", "namespace": "default"}
        server.apply({**group, "metadata": metadata, "spec": {"schedulingPolicy": policy}})
    assert cluster.read_enough("default/g") == enough
