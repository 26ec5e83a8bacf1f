"""The verbs and routes: kube-scheduler gets a response with the reason, never status 500."""

import asyncio
import functools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.claims import CLAIM
from scheduler import app as module
from scheduler.app import create_app
from scheduler.binding import Binder
from scheduler.decisions import Decisions
from scheduler.handler import ExtenderHandler
from scheduler.metrics import Metrics
from scheduler.state import State
from tests.agent.builders import patient, raising
from tests.agent.fakes import FakeClock
from tests.common.serving.through import call, client_of, scope_of
from tests.examples import any_json
from tests.placement.cluster.builders import NAMES, Json, hint, make_node, make_pod
from tests.scheduler.eviction_world import Replica, full_node
from tests.scheduler.test_binding import FakeApi, Held


class Stage:
    def __init__(self, *, patience: float = 0.0) -> None:
        self.state = State(NAMES)
        for name in ("n1", "n2"):
            self.state.put_node(make_node(name, 1))
        self.api = FakeApi()
        self.in_step = True
        self.not_binding = ""
        self.clock = FakeClock()
        self.metrics = Metrics()
        self.handler = ExtenderHandler(
            decisions=Decisions(self.state),
            binder=Binder(self.state, self.api, on_result=self.metrics.bound),
            names=NAMES,
            metrics=self.metrics,
            in_step=lambda: self.in_step,
            not_binding=lambda: self.not_binding,
            patience=patience,
            clock=self.clock,
            wait=self.wait,
        )
        self.app = create_app(self.handler, is_ready=lambda: "")
        self.client = client_of(self.app)

    async def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    def post(self, verb: str, document: Any) -> Any:
        response = self.client.post(f"/{verb}", json=document)
        assert response.status_code == 200, response.text
        return response.json

    def count(self, line: str) -> float:
        name = f"gpu_turnstile_scheduler_{line} "
        lines = self.metrics.render().decode().splitlines()
        (found,) = (each for each in lines if each.startswith(name))
        return float(found.removeprefix(name))


@pytest.fixture
def stage() -> Stage:
    return Stage()


POD = make_pod("a", (60, 4))
ARGS: Json = {"Pod": POD, "Nodes": None, "NodeNames": ["n1", "n2", "n3"]}
BINDING = {"PodName": "a", "PodNamespace": "default", "PodUID": "u-a", "Node": "n2"}


def test_a_pod_is_filtered_prioritized_and_bound(stage: Stage) -> None:
    stage.state.put_pod(make_pod("b", (50, 4), node="n1", annotations=hint("0")))
    stage.api.pods["a"] = make_pod("a", (60, 4))
    assert stage.post("filter", ARGS) == {
        "Nodes": None,
        "NodeNames": ["n2"],
        "FailedNodes": {
            "n1": "gpu-turnstile: no card has 60 cores and 4 blocks free",
            "n3": "gpu-turnstile: the node is not known yet",
        },
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }
    assert stage.post("prioritize", {**ARGS, "NodeNames": ["n2"]}) == [{"Host": "n2", "Score": 3}]
    assert stage.post("bind", BINDING) == {"Error": ""}
    assert stage.api.pods["a"]["spec"]["nodeName"] == "n2"
    assert stage.count('bindings_total{result="bound"}') == 1
    assert stage.count('nodes_total{decision="fits"}') == 1
    assert stage.count('nodes_total{decision="full"}') == 2
    assert stage.count('request_duration_seconds_count{verb="filter"}') == 1


def test_a_pod_with_a_claim_is_left_to_kube_scheduler(stage: Stage) -> None:
    """Its cards are those of its claim, not those that the extender would choose."""
    pod = make_pod("a", (60, 4))
    template = f"gpu-turnstile-{'0' * 16}"
    pod["spec"]["resourceClaims"] = [{"name": CLAIM, "resourceClaimTemplateName": template}]
    stage.state.put_pod(make_pod("b", (50, 4), node="n2", annotations=hint("0")))
    stage.state.put_pod(pod)
    stage.api.pods["a"] = pod
    args = {**ARGS, "Pod": pod}
    found = stage.post("filter", args)
    assert found["NodeNames"] == args["NodeNames"]
    assert (found["FailedNodes"], found["FailedAndUnresolvableNodes"]) == ({}, {})
    assert {each["Score"] for each in stage.post("prioritize", args)} == {0}
    assert stage.post("bind", BINDING) == {"Error": ""}
    assert stage.api.pods["a"]["spec"]["nodeName"] == "n2"
    assert not [each for each in pod["metadata"]["annotations"] if "predicate-gpu-idx" in each]
    assert stage.state.assumed == 0


def test_victims_of_kube_scheduler_stay_as_they_are_without_preemption(stage: Stage) -> None:
    nodes = {"n1": {"Pods": [{"UID": "u-1"}], "NumPDBViolations": 0}}
    args = {"Pod": POD, "NodeNameToVictims": None, "NodeNameToMetaVictims": nodes}
    assert stage.post("preempt", args) == {"NodeNameToMetaVictims": nodes}
    assert stage.client.post("/preempt", json={"Pod": 7}).status_code == 400


def test_a_replica_that_does_not_lead_sends_pods_that_may_preempt_to_the_leader() -> None:
    world = full_node()
    stage, replica = Stage(), Replica(world)
    stage.handler.decisions = replica.decisions
    stage.handler.preemptors = replica.preemption.preemptors
    stage.not_binding = "not the leader: another holds the lease"
    args = {"Pod": world.pods["prod"], "NodeNames": ["n1"]}
    assert stage.post("filter", args)["Error"] == f"gpu-turnstile: {stage.not_binding}"
    stage.not_binding = ""
    assert stage.post("filter", args)["Error"] == ""


def test_requests_that_are_not_handled_are_reported(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "gpu-turnstile: Pod: Invalid value: null: must be a pod"
    assert stage.post("filter", {})["Error"] == text
    assert stage.post("bind", {})["Error"].startswith("gpu-turnstile: PodName: Invalid value")
    assert stage.post("bind", BINDING)["Error"] == "gpu-turnstile: the pod with UID u-a is gone"
    assert stage.count('errors_total{verb="bind"}') == 2
    plain = stage.client.post("/filter", data=b"{}", headers={"Content-Type": "text/plain"})
    assert json.loads(plain.text)["Error"].startswith("gpu-turnstile: Content-Type: Invalid value")
    stage.in_step = False
    text = "gpu-turnstile: not ready yet: nodes and pods are being listed"
    assert stage.post("filter", ARGS)["Error"] == text
    response = stage.client.post("/prioritize", json={})
    text = "Pod: Invalid value: null: must be a pod\n"
    assert (response.status_code, response.text) == (400, text)
    monkeypatch.setattr(module, "LARGEST_NODES", 10)
    response = Stage().client.post("/filter", json=ARGS)
    assert json.loads(response.text)["Error"] == "gpu-turnstile: body: must be at most 10 bytes"


def test_an_internal_error_is_logged_and_not_shown(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    boom = raising(ZeroDivisionError("secret"))
    for kind, name in ((Decisions, "filter"), (Decisions, "scores"), (Binder, "bind")):
        monkeypatch.setattr(kind, name, boom)
    text = "gpu-turnstile: internal error, see the log of the scheduler extender"
    assert stage.post("filter", ARGS)["Error"] == text
    assert stage.post("bind", BINDING) == {"Error": text}
    assert stage.post("prioritize", ARGS) == []
    assert caplog.text.count("ZeroDivisionError: secret") == 3


def test_a_binding_waits_for_its_leader_where_no_other_replica_can_be_reached() -> None:
    stage = Stage(patience=60.0)
    stage.api.pods["a"] = make_pod("a", (60, 4))
    states = iter(["not the leader: pod-1 holds the lease", "pods are being listed"])
    stage.handler.not_binding = lambda: next(states, "")
    assert stage.post("bind", BINDING) == {"Error": ""}
    assert stage.count('bindings_total{result="bound"}') == 1


@pytest.mark.parametrize("terms", [["", "pod-0_a", ""], ["pod-0_a", "pod-0_b"]])
def test_a_binding_of_an_earlier_term_is_not_made(terms: list[str]) -> None:
    """Its kube-scheduler has ended, and the next one may have given the node's CPUs to others."""
    stage = Stage(patience=60.0)
    left = list(terms)

    def not_binding() -> str:
        if len(left) > 1:
            left.pop(0)
            return "not the leader"
        return ""

    stage.handler.not_binding = not_binding
    stage.handler.term = lambda: left[0]
    assert stage.post("bind", BINDING) == {
        "Error": "gpu-turnstile: the kube-scheduler that sent the request leads no more"
    }
    assert stage.api.pods == {}


@pytest.mark.parametrize("patience", [0.0, 9.0])
def test_a_replica_that_does_not_lead_filters_and_binds_nothing(patience: float) -> None:
    """It waits no longer than kube-scheduler does."""
    stage = Stage(patience=patience)
    begun, stage.not_binding = stage.clock.now, "not the leader: pod-1 holds the lease"
    assert stage.post("filter", ARGS)["NodeNames"] == ["n1", "n2"]
    assert stage.post("bind", BINDING) == {"Error": f"gpu-turnstile: {stage.not_binding}"}
    assert stage.clock.now - begun == pytest.approx(patience, abs=0.2)
    assert stage.count('bindings_total{result="not-leader"}') == 1


@pytest.mark.parametrize("size", [0, 2**20])
def test_filter_waits_while_as_many_bindings_as_possible_are_in_progress(size: int) -> None:
    """Otherwise kube-scheduler sends Bindings faster than the API server can create them."""
    stage = Stage()
    stage.handler.binder.most = 1
    stage.api.pods["a"] = make_pod("a", (60, 4))
    args = {**ARGS, "Pod": make_pod("b", (60, 4), annotations={"large": "x" * size})}

    async def send(verb: str, document: Json) -> Json:
        body = json.dumps(document).encode()
        environ = {"PATH_INFO": f"/{verb}", "REQUEST_METHOD": "POST"}
        scope = scope_of({**environ, "CONTENT_TYPE": "application/json"})
        sent = await call(stage.app, scope, [body])
        found: Json = json.loads(sent[1]["body"])
        return found

    async def burst() -> Json:
        held = Held()
        stage.api.before = [held]
        bind = asyncio.create_task(send("bind", BINDING))
        await held.begun.wait()
        filtered = asyncio.create_task(send("filter", args))
        assert await send("prioritize", args)
        assert not filtered.done()
        held.freed.set()
        assert await bind == {"Error": ""}
        return await filtered

    assert asyncio.run(burst())["NodeNames"] == ["n1"]


_annotations = NAMES.gpu_allocation, NAMES.use_gpu_type, NAMES.gpu_node_policy, NAMES.bind_order
_paths = st.sampled_from(
    [
        *(("Pod",), ("NodeNames",), ("Nodes",)),
        *(("Pod", each) for each in ("metadata", "spec", "status")),
        *(("Pod", "metadata", each) for each in ("annotations", "uid")),
        *(("Pod", "spec", each) for each in ("containers", "initContainers", "nodeName")),
        *(("Pod", "metadata", "annotations", each) for each in _annotations),
    ]
)
STAGE = functools.cache(Stage)


@patient
@given(st.lists(st.tuples(_paths, any_json() | st.sampled_from(["a", "30"])), max_size=3))
def test_every_pod_gets_a_response(changes: list[tuple[tuple[str, ...], Any]]) -> None:
    stage = STAGE()
    document = json.loads(json.dumps(ARGS))
    for path, value in changes:
        target: Any = document
        for key in path[:-1]:
            target = target.get(key) if isinstance(target, dict) else None
        if isinstance(target, dict):
            target[path[-1]] = value
    for verb in ("filter", "prioritize"):
        response = stage.client.post(f"/{verb}", json=document)
        assert response.status_code in (200, 400)
        assert "internal error" not in response.text
        if verb == "prioritize" and response.status_code == 200:
            assert isinstance(response.json, list)
