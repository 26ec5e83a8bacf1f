"""What fact K25 says, and what else a real scheduler does with extenders, over TLS."""

import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
import trustme

from simulator.api.server import ApiServer
from simulator.client import ApiClient, Json
from simulator.scheduler.cache import NodeInfo
from simulator.scheduler.configuration import SchedulerSettings
from simulator.scheduler.cycle import Cycle, Unschedulable
from simulator.scheduler.endpoint import ExtenderError
from simulator.scheduler.events import EXTENDER
from simulator.scheduler.extended import ExtendedScheduler
from simulator.scheduler.extender import Extender, in_order
from tests.simulator.api_helpers import CORE, PODS, eventually, node, pod
from tests.simulator.extender_helpers import FakeExtender, pass_all, running_extender, settings

GPU = {CORE: "30"}
Start = Callable[..., ExtendedScheduler]
MakeCycle = Callable[..., Cycle]


@pytest.fixture(name="fake")
def _fake(authority: trustme.CA) -> Iterator[FakeExtender]:
    with running_extender(authority, filter=pass_all) as running:
        yield running


@pytest.fixture(name="start")
def _start(client: ApiClient) -> Iterator[Start]:
    running: list[ExtendedScheduler] = []

    def start_one(told: SchedulerSettings) -> ExtendedScheduler:
        # A second of waiting is a twentieth: who waits is to be seen, not how long.
        scheduler = ExtendedScheduler(
            client, told, max_delay=0.0, clock=lambda: time.monotonic() * 20
        )
        scheduler.start()
        running.append(scheduler)
        return scheduler

    yield start_one
    for scheduler in running:
        scheduler.stop()


@pytest.fixture(name="cycle")
def _cycle() -> Iterator[MakeCycle]:
    made: dict[SchedulerSettings, list[Extender]] = {}

    def make(told: SchedulerSettings, seed: int = 0) -> Cycle:
        if told not in made:
            made[told] = in_order(told.extenders)
        return Cycle(told, made[told], Random(seed))

    yield make
    for extenders in made.values():
        for extender in extenders:
            extender.close()


def asking(name: str = "p", **limits: str) -> Json:
    made = pod(name, limits=limits or GPU)
    made["metadata"] |= {"namespace": "default", "uid": f"uid-{name}"}
    return made


def infos(*nodes: Json, busy: str = "") -> list[NodeInfo]:
    taken = [asking("other", cpu="3", memory="1Gi")]
    return [NodeInfo(each, taken if each["metadata"]["name"] == busy else ()) for each in nodes]


def machine(name: str) -> Json:
    return node(name, core="100", cpu="4", memory="8Gi")


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


@pytest.mark.parametrize(("capable", "chosen"), [(True, {"idle"}), (False, {"busy", "idle"})])
def test_k25_a_node_that_an_extender_gives_back_whole_scores_as_idle(
    cycle: MakeCycle, fake: FakeExtender, capable: bool, chosen: set[str]
) -> None:
    told = settings(fake.entry(nodeCacheCapable=capable))
    nodes = infos(machine("busy"), machine("idle"), busy="busy")
    assert {cycle(told, seed).choose(asking(), nodes).node for seed in range(12)} == chosen


@pytest.mark.parametrize(("left", "asked"), [(["n1"], 0), (["n1", "n2"], 1)])
def test_k25_prioritize_is_skipped_when_one_node_is_left(
    cycle: MakeCycle, fake: FakeExtender, left: list[str], asked: int
) -> None:
    fake.answers |= {"filter": lambda _: {"NodeNames": left}, "prioritize": lambda _: []}
    told = settings(fake.entry(prioritizeVerb="prioritize", weight=1))
    assert cycle(told).choose(asking(), infos(machine("n1"), machine("n2"))).node in left
    assert len(fake.asked("prioritize")) == asked


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"annotations": {"tencent.com/gpu-cards": "less"}}},
        {"metadata": {"labels": {"some": "label"}}},
        {"spec": {"taints": [{"key": "some", "effect": "NoSchedule"}]}},
        {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
        {"status": {"allocatable": {CORE: "99"}}},
    ],
    ids=["annotation", "label", "taint", "condition", "allocatable"],
)
def test_k25_a_pod_that_an_extender_rejected_is_tried_again_when_a_node_changes(
    server: ApiServer, client: ApiClient, start: Start, fake: FakeExtender, change: Json
) -> None:
    server.apply(machine("n1"))
    fake.answers["filter"] = lambda _: {"NodeNames": [], "FailedNodes": {"n1": "full"}}
    start(settings(fake.entry()))
    client.create(PODS, asking())
    eventually(lambda: condition(client).get("reason") == "Unschedulable", "rejected")
    before = len(fake.asked("filter"))
    fake.answers["filter"] = pass_all
    subresource = "/status" if "status" in change else ""
    client.patch(f"/api/v1/nodes/n1{subresource}", change)
    eventually(lambda: bound(client) == {"p": "n1"}, "bound")
    assert len(fake.asked("filter")) > before


@pytest.mark.parametrize("what", ["ends", "is written to", "comes"])
def test_k25_a_pod_that_an_extender_rejected_is_tried_again_when_another_pod_changes(
    server: ApiServer, client: ApiClient, start: Start, fake: FakeExtender, what: str
) -> None:
    server.apply(machine("n1"))
    client.create(PODS, pod("other", nodeName="n1"))
    fake.answers["filter"] = lambda _: {"NodeNames": [], "FailedNodes": {"n1": "full"}}
    start(settings(fake.entry()))
    client.create(PODS, asking())
    eventually(lambda: condition(client).get("reason") == "Unschedulable", "rejected")
    fake.answers["filter"] = pass_all
    if what == "ends":
        client.patch(f"{PODS}/other/status", {"status": {"phase": "Succeeded"}})
    elif what == "is written to":
        client.patch(f"{PODS}/other", {"metadata": {"annotations": {"some": "record"}}})
    else:
        client.create(PODS, pod("third", nodeName="elsewhere"))
    eventually(lambda: bound(client).get("p") == "n1", "bound")


def test_k25_a_heartbeat_is_no_event(
    server: ApiServer, client: ApiClient, start: Start, fake: FakeExtender
) -> None:
    server.apply(machine("n1"))
    fake.answers["filter"] = lambda _: {"NodeNames": [], "FailedNodes": {"n1": "full"}}
    start(settings(fake.entry()))
    client.create(PODS, asking())
    # The condition that the scheduler writes is itself a change of the pod: one more try.
    eventually(lambda: len(fake.asked("filter")) == 2, "rejected twice")
    before = 2
    ready = {"type": "Ready", "status": "True"}
    client.patch("/api/v1/nodes/n1/status", {"status": {"conditions": [ready]}})
    eventually(lambda: len(fake.asked("filter")) == before + 1, "tried again")
    beat = ready | {"lastHeartbeatTime": "2026-01-01T00:00:00Z"}
    client.patch("/api/v1/nodes/n1/status", {"status": {"conditions": [beat]}})
    # What comes after it was seen after it.
    client.create(PODS, pod("plain"))
    eventually(lambda: "plain" in bound(client), "the plain pod is bound")
    eventually(lambda: len(fake.asked("filter")) > before + 1, "its binding is an event")
    assert len(fake.asked("filter")) == before + 2


@pytest.mark.parametrize(
    ("nodes", "percentage", "asked"),
    [(99, 0, 99), (120, 0, 100), (400, 0, 188), (400, 30, 120), (7000, 0, 350)],
)
def test_k25_filter_is_asked_about_no_more_nodes_than_are_to_be_found(
    cycle: MakeCycle, fake: FakeExtender, nodes: int, percentage: int, asked: int
) -> None:
    told = settings(fake.entry(), percentageOfNodesToScore=percentage)
    cluster = infos(*(node(f"n{number:04}", core="100") for number in range(nodes)))
    chooses = cycle(told)
    for _ in range(2):
        chooses.choose(asking(), cluster)
    first, second = (args["NodeNames"] for args in fake.asked("filter"))
    assert len(first) == len(second) == asked
    # The second search begins where the first ended.
    assert second[0] == f"n{asked % nodes:04}"


def test_k25_an_extender_binds_the_pods_that_ask_for_its_resource_and_no_others(
    server: ApiServer, client: ApiClient, start: Start, fake: FakeExtender
) -> None:
    server.apply(machine("n1"))

    def bind(args: Json) -> Json:
        target = {"apiVersion": "v1", "kind": "Node", "name": args["Node"]}
        annotations = {"tencent.com/predicate-gpu-idx-0": "0"}
        binding = {"metadata": {"annotations": annotations}, "target": target}
        client.create(f"{PODS}/{args['PodName']}/binding", binding)
        return {"Error": ""}

    fake.answers["bind"] = bind
    start(settings(fake.entry(bindVerb="bind")))
    created = client.create(PODS, pod("p", limits=GPU))
    client.create(PODS, pod("plain"))
    eventually(lambda: bound(client) == {"p": "n1", "plain": "n1"}, "both bound")
    uid = created["metadata"]["uid"]
    assert fake.calls[-1] == (
        "bind",
        {"PodName": "p", "PodNamespace": "default", "PodUID": uid, "Node": "n1"},
    )
    assert {args["Pod"]["metadata"]["name"] for args in fake.asked("filter")} == {"p"}
    by = [(each.verb, each.name) for each in server.requests if each.resource == "pods/binding"]
    assert sorted(by) == [("create", "p"), ("create", "plain")]
    notes = client.get(f"{PODS}/p")["metadata"]["annotations"]
    assert notes == {"tencent.com/predicate-gpu-idx-0": "0"}


@pytest.mark.parametrize("capable", [True, False])
def test_what_is_sent_is_spelled_as_go_spells_it(
    cycle: MakeCycle, fake: FakeExtender, capable: bool
) -> None:
    told = settings(fake.entry(nodeCacheCapable=capable))
    seen = {**asking(), "metadata": {**asking()["metadata"], "managedFields": [{}]}}
    cycle(told).choose(seen, infos(machine("n1")))
    (args,) = fake.asked("filter")
    assert list(args) == ["Pod", "Nodes", "NodeNames"]
    # A cached object has no kind, and its managed fields are dropped.
    assert args["Pod"] == {"metadata": asking()["metadata"], "spec": asking()["spec"]}
    assert args["NodeNames"] == (["n1"] if capable else None)
    listed = {key: value for key, value in machine("n1").items() if key in ("metadata", "status")}
    assert args["Nodes"] == (None if capable else {"metadata": {}, "items": [listed]})


def test_reasons_are_counted_and_what_cannot_be_helped_prevails(
    cycle: MakeCycle, fake: FakeExtender
) -> None:
    fake.answers["filter"] = lambda _: {
        "NodeNames": [],
        "FailedNodes": {"n1": "no card has room", "n2": "no card has room", "n3": "no room"},
        "FailedAndUnresolvableNodes": {"n3": "no card of that type"},
    }
    small = node("n4", core="10")
    nodes = infos(*(machine(f"n{number}") for number in (1, 2, 3)), small)
    with pytest.raises(Unschedulable) as raised:
        cycle(settings(fake.entry())).choose(asking(), nodes)
    assert str(raised.value) == (
        "0/4 nodes are available: 1 Insufficient tencent.com/vcuda-core, "
        "1 no card of that type, 2 no card has room."
    )
    assert raised.value.plugins == {EXTENDER, "NodeResourcesFit"}
    resolvable = {name: each.resolvable for name, each in raised.value.rejections.items()}
    assert resolvable == {"n1": True, "n2": True, "n3": False, "n4": False}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"status": 500}, "failed filter with extender at URL https://{}/filter, code 500"),
        ({"answers": {}}, "failed filter with extender at URL https://{}/filter, code 404"),
        ({"answers": {"filter": lambda _: {"Error": "not ready"}}}, "not ready"),
        (
            {"answers": {"filter": lambda _: {"NodeNames": ["other"]}}},
            (
                'extender "https://{}/" claims a filtered node "other" '
                "which is not found in the input node list"
            ),
        ),
        ({"answers": {"filter": lambda _: []}}, "not an object: []"),
        ({"raw": b"<html>"}, "https://{}/filter: not JSON: Expecting value: line 1 column 1"),
    ],
)
def test_a_failing_extender_stops_a_pod_unless_it_may_be_ignored(
    cycle: MakeCycle, fake: FakeExtender, change: dict[str, Any], error: str
) -> None:
    for name, value in change.items():
        setattr(fake, name, value)
    with pytest.raises(ExtenderError) as raised:
        cycle(settings(fake.entry())).choose(asking(), infos(machine("n1")))
    assert str(raised.value).startswith(error.format(f"localhost:{fake.port}/scheduler"))
    may = settings(fake.entry(ignorable=True))
    assert cycle(may).choose(asking(), infos(machine("n1"))).node == "n1"


def test_extenders_are_asked_one_after_the_other_those_that_may_be_ignored_last(
    cycle: MakeCycle, authority: trustme.CA, fake: FakeExtender
) -> None:
    fake.answers["filter"] = lambda args: {"NodeNames": args["NodeNames"][1:]}
    other = {"name": "example.com/other"}
    with running_extender(authority, filter=pass_all) as second:
        told = settings(
            second.entry(ignorable=True, managedResources=[]), fake.entry(ignorable=False)
        )
        nodes = infos(machine("n1"), machine("n2"))
        assert cycle(told).choose(asking(), nodes).node == "n2"
        assert [args["NodeNames"] for args in second.asked("filter")] == [["n2"]]
        uninterested = settings(fake.entry(managedResources=[other]))
        assert cycle(uninterested).choose(asking(), nodes).node in ("n1", "n2")
        assert len(fake.calls) == 1


@pytest.mark.parametrize(
    ("weight", "scores", "chosen"),
    [
        # The idle node scores 97, the busy one 47: the difference is 50.
        (1, {"busy": 5, "idle": 0}, {"busy", "idle"}),
        (1, {"busy": 4, "idle": 0}, {"idle"}),
        (2, {"busy": 3, "idle": 0}, {"busy"}),
        (1, {"busy": 10, "unheard of": 10}, {"busy"}),
    ],
)
def test_scores_of_an_extender_are_scaled_and_weighed(
    cycle: MakeCycle, fake: FakeExtender, weight: int, scores: dict[str, int], chosen: set[str]
) -> None:
    fake.answers["prioritize"] = lambda _: [
        {"Host": host, "Score": score} for host, score in scores.items()
    ]
    told = settings(
        fake.entry(prioritizeVerb="prioritize", weight=weight),
        profiles=[
            {
                "pluginConfig": [
                    {
                        "name": "NodeResourcesFit",
                        "args": {"scoringStrategy": {"resources": [{"name": "example.com/slot"}]}},
                    }
                ]
            }
        ],
    )
    taken = asking("other", **{"example.com/slot": "50"})
    machines = [node(name, core="100", **{"example.com/slot": "100"}) for name in ("busy", "idle")]
    nodes = [NodeInfo(machines[0], [taken]), NodeInfo(machines[1])]
    wants = asking(**{CORE: "30", "example.com/slot": "3"})
    assert {cycle(told, seed).choose(wants, nodes).node for seed in range(12)} == chosen


@pytest.mark.parametrize("ignored", [False, True])
def test_a_resource_may_be_left_to_its_extender(
    cycle: MakeCycle, fake: FakeExtender, ignored: bool
) -> None:
    managed = [{"name": CORE, "ignoredByScheduler": ignored}]
    chooses = cycle(settings(fake.entry(managedResources=managed)))
    nodes = infos(node("n1", core="10"))
    if ignored:
        assert chooses.choose(asking(), nodes).node == "n1"
    else:
        with pytest.raises(Unschedulable, match="1 Insufficient"):
            chooses.choose(asking(), nodes)
        assert fake.calls == []


def test_a_refused_binding_frees_the_room_and_is_tried_again(
    server: ApiServer, client: ApiClient, start: Start, fake: FakeExtender
) -> None:
    server.apply(node("n1", core="30"))

    def bind(args: Json) -> Json:
        if len(fake.asked("bind")) < 3:
            return {"Error": "no card has 30 cores free"}
        binding = {"metadata": {}, "target": {"name": args["Node"]}}
        client.create(f"{PODS}/{args['PodName']}/binding", binding)
        return {}

    fake.answers["bind"] = bind
    start(settings(fake.entry(bindVerb="bind")))
    client.create(PODS, pod("p", limits=GPU))
    eventually(lambda: condition(client).get("reason") == "SchedulerError", "refused")
    assert condition(client)["message"] == "no card has 30 cores free"
    eventually(lambda: bound(client) == {"p": "n1"}, "bound at last")
    assert len(fake.asked("bind")) == 3


def test_no_room_is_given_twice_while_bindings_are_under_way(
    server: ApiServer, client: ApiClient, start: Start, fake: FakeExtender
) -> None:
    server.apply(node("n1", core="100"), node("n2", core="100"))
    for number in range(9):
        client.create(PODS, pod(f"p{number}", limits=GPU))
    start(settings(fake.entry()))
    eventually(lambda: len(bound(client)) == 6, "what fits is bound")
    waiting = next(f"p{number}" for number in range(9) if f"p{number}" not in bound(client))
    eventually(lambda: condition(client, waiting).get("reason") == "Unschedulable", "told")
    assert condition(client, waiting)["message"] == (
        "0/2 nodes are available: 2 Insufficient tencent.com/vcuda-core."
    )
    client.delete(f"{PODS}/{min(bound(client))}", grace_period_seconds=0)
    eventually(lambda: len(bound(client)) == 6, "and its room is taken again")
