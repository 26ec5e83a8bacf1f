"""The scheduler: which pods fit, that no capacity is bound twice, and K25 about extenders."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from simulator.api.server import ApiServer
from simulator.client import ApiClient, Json
from simulator.kubelet.pods import Pod, parse_pod
from simulator.scheduler.configuration import API_VERSION, SchedulerSettings, parse_configuration
from simulator.scheduler.fit import reasons_against
from simulator.scheduler.scheduler import Scheduler
from tests.agent.fakes import eventually
from tests.scripted import answering
from tests.simulator.api_helpers import CORE, PODS, node, pod

GPU = {CORE: "30"}
NODES = "/api/v1/nodes"


def parsed(made: Json) -> Pod:
    made["metadata"] |= {"uid": made["metadata"]["name"], "namespace": "default"}
    return parse_pod(made)


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, []),
        ({"status": {"allocatable": {CORE: "39"}}}, [f"Insufficient {CORE}"]),
        ({"status": {}}, [f"Insufficient {CORE}"]),
        ({"spec": {"unschedulable": True}}, ["node(s) were unschedulable"]),
        (
            {"metadata": {"name": "n1", "labels": {"zone": "b"}}},
            ["node(s) didn't match Pod's node affinity/selector"],
        ),
    ],
)
def test_a_node_needs_free_resources(changes: Json, reasons: list[str]) -> None:
    candidate = node(core="45") | {"metadata": {"name": "n1", "labels": {"zone": "a"}}} | changes
    wants = parsed(pod(limits={CORE: "40"}, nodeSelector={"zone": "a"}))
    assert list(reasons_against(candidate, wants, {CORE: 5})) == reasons


Start = Callable[[SchedulerSettings], None]


@pytest.fixture
def start(server: ApiServer) -> Iterator[Start]:
    with ApiClient(server.url) as own, ExitStack() as running:

        def start_one(settings: SchedulerSettings) -> None:
            scheduler = Scheduler(own, settings, max_delay=0.01)
            scheduler.start()
            running.callback(scheduler.stop)

        yield start_one


def bound(client: ApiClient) -> dict[str, str]:
    pods = client.list("/api/v1/pods")["items"]
    return {
        each["metadata"]["name"]: each["spec"]["nodeName"]
        for each in pods
        if each["spec"].get("nodeName")
    }


def condition(client: ApiClient, name: str = "p") -> Json:
    found = client.get(f"{PODS}/{name}")["status"].get("conditions") or []
    return next((each for each in found if each["type"] == "PodScheduled"), {})


@dataclass
class FakeExtender:
    """An extender with a response for each verb, and the requests that it got."""

    port: int = 0
    responses: dict[str, Callable[[Json], object]] = field(default_factory=dict)
    calls: list[tuple[str, Json]] = field(default_factory=list)

    def requests(self, verb: str) -> list[Json]:
        return [arguments for each, arguments in self.calls if each == verb]

    def settings(self, **changes: Any) -> SchedulerSettings:
        entry = {
            "urlPrefix": f"http://127.0.0.1:{self.port}/scheduler/",
            "filterVerb": "filter",
            "nodeCacheCapable": True,
            "managedResources": [{"name": CORE}],
        }
        return parse_configuration(configuration(entry | changes))


def configuration(*extenders: Json, **changes: Any) -> Json:
    kind = {"apiVersion": API_VERSION, "kind": "KubeSchedulerConfiguration"}
    return {**kind, "extenders": list(extenders), **changes}


@pytest.fixture
def fake() -> Iterator[FakeExtender]:
    made = FakeExtender(responses={"filter": lambda sent: {"NodeNames": sent["NodeNames"]}})

    def respond(path: str, body: bytes) -> tuple[int, bytes]:
        verb, arguments = path.removeprefix("/scheduler/"), json.loads(body)
        made.calls.append((verb, arguments))
        if verb not in made.responses:
            return 404, b""
        return 200, json.dumps(made.responses[verb](arguments)).encode()

    with answering(respond) as made.port:
        yield made


@pytest.mark.parametrize(("left", "calls"), [(["n1"], 0), (["n1", "n2"], 1)])
def test_k25_prioritize_is_skipped_when_one_node_is_left(
    client: ApiClient, start: Start, fake: FakeExtender, left: list[str], calls: int
) -> None:
    client.create(NODES, node("n1", core="100"))
    client.create(NODES, node("n2", core="100"))
    fake.responses |= {
        "filter": lambda _: {"NodeNames": left, "FailedNodes": {}},
        "prioritize": lambda _: [{"Host": "n1", "Score": 1}, {"Host": "n2", "Score": 0}],
    }
    start(fake.settings(prioritizeVerb="prioritize", weight=1))
    client.create(PODS, pod(limits=GPU))
    eventually(lambda: bound(client) == {"p": "n1"}, "bound to the better one")
    assert len(fake.requests("prioritize")) == calls
    (arguments,) = fake.requests("filter")
    assert arguments["Nodes"] is None
    assert arguments["NodeNames"] == ["n1", "n2"]
    assert "kind" not in arguments["Pod"], "a pod in a scheduler's cache has none"


NODE, OTHER = f"{NODES}/n1", f"{PODS}/other"


@pytest.mark.parametrize(
    ("path", "change"),
    [
        (NODE, {"metadata": {"annotations": {"tencent.com/gpu-cards": "less"}}}),
        (f"{NODE}/status", {"status": {"allocatable": {CORE: "99"}}}),
        (OTHER, {"metadata": {"annotations": {"some": "record"}}}),
        (f"{OTHER}/status", {"status": {"phase": "Succeeded"}}),
    ],
)
def test_k25_a_pod_that_an_extender_rejected_is_tried_again_on_any_event(
    client: ApiClient, start: Start, fake: FakeExtender, path: str, change: Json
) -> None:
    client.create(NODES, node("n1", core="100"))
    client.create(PODS, pod("other", nodeName="n1"))
    fake.responses["filter"] = lambda _: {
        "NodeNames": [],
        "FailedNodes": {"n1": "full"},
        "FailedAndUnresolvableNodes": {"n1": "no card of that type"},
    }
    start(fake.settings())
    client.create(PODS, pod(limits=GPU))
    eventually(lambda: condition(client).get("reason") == "Unschedulable", "rejected")
    assert condition(client)["message"] == "0/1 nodes are available: 1 no card of that type."
    eventually(lambda: len(fake.requests("filter")) == 2, "its own condition was an event, too")
    fake.responses["filter"] = lambda sent: {"NodeNames": sent["NodeNames"]}
    client.patch(path, change)
    eventually(lambda: bound(client).get("p") == "n1", "bound")


def test_k25_an_extender_binds_only_pods_that_request_its_resource(
    client: ApiClient, start: Start, fake: FakeExtender
) -> None:
    client.create(NODES, node("n1", core="30"))
    reported: list[Json] = []

    def bind(sent: Json) -> Json:
        if len(fake.requests("bind")) == 1:
            return {"Error": "no card has 30 cores free"}
        reported.append(condition(client))
        target = {"apiVersion": "v1", "kind": "Node", "name": sent["Node"]}
        client.create(f"{PODS}/{sent['PodName']}/binding", {"metadata": {}, "target": target})
        return {"Error": ""}

    fake.responses["bind"] = bind
    start(fake.settings(bindVerb="bind"))
    uid = client.create(PODS, pod(limits=GPU))["metadata"]["uid"]
    client.create(PODS, pod("plain"))
    eventually(lambda: bound(client) == {"p": "n1", "plain": "n1"}, "both bound")
    (first,) = reported
    assert (first["reason"], first["message"]) == ("SchedulerError", "no card has 30 cores free")
    target = {"PodName": "p", "PodNamespace": "default", "PodUID": uid, "Node": "n1"}
    assert fake.requests("bind") == [target, target]
    assert {each["Pod"]["metadata"]["name"] for each in fake.requests("filter")} == {"p"}


def test_a_misspelt_field_of_the_configuration_is_refused() -> None:
    whole = {"urlPrefix": "http://127.0.0.1:1", "nodeCacheCapable": True}
    with pytest.raises(ValueError, match=r'unknown field "extenders\[0\].tlsConfig.ca"'):
        parse_configuration(configuration(whole | {"tlsConfig": {"ca": ""}}))
