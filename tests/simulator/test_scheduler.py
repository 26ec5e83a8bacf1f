"""The scheduler: which pods fit, that no capacity is bound twice, and K25 about extenders."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.api.server import ApiServer
from simulator.client import ApiClient, Json
from simulator.kubelet.pods import Pod, parse_pod, requests_of
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


def requesting(name: str, count: int, *, sidecar: bool = False) -> Json:
    container: Json = {"name": name, "resources": {"limits": {CORE: str(count)}}}
    return container | ({"restartPolicy": "Always"} if sidecar else {})


@given(
    init=st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=5),
    main=st.lists(st.integers(0, 9), max_size=4),
)
def test_the_needed_amount_is_the_peak_of_a_simulated_run(
    init: list[tuple[int, bool]], main: list[int]
) -> None:
    running, peak = 0, 0
    for count, sidecar in init:
        peak = max(peak, running + count)
        running += count if sidecar else 0
    peak = max(peak, running + sum(main))
    made = pod()
    made["spec"] = {
        "initContainers": [requesting(f"i{n}", c, sidecar=s) for n, (c, s) in enumerate(init)],
        "containers": [requesting(f"c{n}", c) for n, c in enumerate(main)],
    }
    assert requests_of(parsed(made)).get(CORE, 0) == peak


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


Start = Callable[..., Scheduler]


@pytest.fixture
def start(server: ApiServer) -> Iterator[Start]:
    running: list[Scheduler] = []
    with ApiClient(server.url) as own:

        def start_one(settings: SchedulerSettings | None = None, **options: Any) -> Scheduler:
            scheduler = Scheduler(own, settings, **{"max_delay": 0.01, **options})
            scheduler.start()
            running.append(scheduler)
            return scheduler

        yield start_one
        for scheduler in running:
            scheduler.stop()


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


def test_no_capacity_is_bound_twice(server: ApiServer, client: ApiClient, start: Start) -> None:
    server.apply(node(core=100))
    start(workers=8, max_delay=0.05)
    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(lambda i: client.create(PODS, pod(f"p{i}", limits=GPU)), range(10)):
            pass
    eventually(lambda: len(bound(client)) == 3, "what fits is bound")
    waiting = next(f"p{number}" for number in range(10) if f"p{number}" not in bound(client))
    eventually(lambda: condition(client, waiting).get("reason") == "Unschedulable", "reported")
    assert condition(client, waiting)["message"] == (
        f"0/1 nodes are available: 1 Insufficient {CORE}."
    )
    # one more only when one has ended
    first = min(bound(client))
    client.patch(f"{PODS}/{first}/status", {"status": {"phase": "Succeeded"}})
    eventually(lambda: len(bound(client)) == 4, "capacity is bound again")
    client.delete(f"{PODS}/{max(bound(client))}", grace_period_seconds=0)
    eventually(lambda: len(bound(client)) == 4, "and again")


# --- with an extender -----------------------------------------------------------------


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
    client: ApiClient,
    start: Start,
    fake: FakeExtender,
    left: list[str],
    calls: int,
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
    client: ApiClient,
    start: Start,
    fake: FakeExtender,
    path: str,
    change: Json,
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


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (None, "failed filter with extender at URL http://{}/filter, code 404"),
        ({"Error": "not ready"}, "not ready"),
    ],
)
def test_an_extender_that_fails_stops_a_pod(
    client: ApiClient,
    start: Start,
    fake: FakeExtender,
    response: object,
    error: str,
) -> None:
    client.create(NODES, node("n1", core="100"))
    fake.responses = {} if response is None else {"filter": lambda _: response}
    start(fake.settings())
    client.create(PODS, pod(limits=GPU))
    eventually(lambda: condition(client).get("reason") == "SchedulerError", "reported")
    assert condition(client)["message"] == error.format(f"127.0.0.1:{fake.port}/scheduler")
    assert bound(client) == {}


def test_a_misspelt_field_of_the_configuration_is_refused() -> None:
    whole = {"urlPrefix": "http://127.0.0.1:1", "nodeCacheCapable": True}
    with pytest.raises(ValueError, match=r'unknown field "extenders\[0\].tlsConfig.ca"'):
        parse_configuration(configuration(whole | {"tlsConfig": {"ca": ""}}))
