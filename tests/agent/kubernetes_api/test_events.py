"""What is told of pods: one event a thing, counted, bounded, and never waited for."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.errors import Unavailable
from agent.kubernetes_api import events as module
from agent.kubernetes_api import write_queue
from agent.kubernetes_api.client import Api, Gone, Json, Rejected
from agent.kubernetes_api.events import EventQueue
from common.apiserver.events import EventSubject, Notice, describe
from simulator.client import ApiClient
from tests.agent.builders import patient
from tests.agent.fakes import DEADLINE_S, FakeClock, eventually
from tests.agent.threads import running
from tests.examples import share

EVENTS = "/api/v1/namespaces/default/events"
POD = EventSubject("Pod", "default", "a", "uid-a")
REFUSED = Notice(POD, "GPURefused", "container main: no card fits")
LEFT_OUT = Notice(EventSubject("Node", "", "n1", "n1"), "GPULeftOut", "card 3 is not served")


def notice(number: int = 0) -> Notice:
    return Notice(POD, "GPURefused", f"number {number}")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BACKOFF_SECONDS", (0.02, 30.0))


class FakeEventApi(Api):
    """An API server that keeps events; it first raises the given errors."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.stored: dict[str, Json] = {}
        self.counts: Counter[str] = Counter()
        """How often each thing was told, by what was written of it."""
        self.calls: list[tuple[str, str]] = []
        self.at: list[float] = []
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def _enter(self, call: str, what: str) -> None:
        self.calls.append((call, what))
        self.at.append(time.monotonic())
        self.entered.set()
        assert self.go_on.wait(DEADLINE_S)
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error

    def call(self, method: str, path: str, body: Json | None = None, **more: Any) -> Json:
        event = body or {}
        self._enter("create", event["message"])
        name = f"{path.split('/')[4]}/{event['metadata']['name']}"
        if name in self.stored:
            raise Rejected(409, f'events "{name}" already exists')
        self.stored[name] = event
        self.counts[event["message"]] += event["count"]
        return event

    def patch_event(self, namespace: str, name: str, patch: Json) -> None:
        self._enter("patch", name)
        before = self.stored.get(f"{namespace}/{name}")
        if before is None:
            raise Rejected(404, f'events "{name}" not found')
        after = self.stored[f"{namespace}/{name}"] = before | patch
        self.counts[after["message"]] += after["count"] - before["count"]


class QueueScene:
    """A queue to a fake API, and the results that it reported."""

    def __init__(self, *errors: Exception | None) -> None:
        self.api, self.clock = FakeEventApi(*errors), FakeClock()
        self.results: list[str] = []
        self.queue = EventQueue(
            api=self.api, node="n1", clock=self.clock, on_result=self.results.append
        )

    def put(self, *notices: Notice) -> None:
        for each in notices:
            self.queue.put(each)

    def running(self) -> AbstractContextManager[None]:
        return running(self.queue.run, self.queue.stop)

    def wait(self, *results: str) -> None:
        eventually(lambda: self.results == list(results), f"{results}, not {self.results}")


# --- what an event says ---------------------------------------------------------------


def test_an_event_has_its_object_message_and_count() -> None:
    event = describe(REFUSED, node="n1", count=3, at=1_767_225_600.9)
    name = event["metadata"].pop("name")
    now = "2026-01-01T00:00:00Z"
    pod = {"kind": "Pod", "namespace": "default", "name": "a", "uid": "uid-a"}
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {},
        "involvedObject": {"apiVersion": "v1", **pod},
        "reason": "GPURefused",
        "message": "container main: no card fits",
        "type": "Warning",
        "source": {"component": "gpu-turnstile", "host": "n1"},
        "reportingComponent": "gpu-turnstile",
        "reportingInstance": "n1",
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 3,
    }
    assert name.startswith("a.")
    well = describe(replace(REFUSED, warning=False), node="n1", count=1, at=0)
    assert well["type"] == "Normal"


def test_an_event_has_the_same_name_when_repeated_and_no_other_has() -> None:
    def name(sent: Notice, node: str = "n1", count: int = 1) -> str:
        return str(describe(sent, node=node, count=count, at=count)["metadata"]["name"])

    others = [
        Notice(POD, "GPUStartVetoed", REFUSED.message),
        Notice(POD, REFUSED.reason, "another"),
        Notice(EventSubject("Pod", "default", "a", "uid-b"), REFUSED.reason, REFUSED.message),
        Notice(EventSubject("Node", "default", "a", "uid-a"), REFUSED.reason, REFUSED.message),
    ]
    assert name(REFUSED, count=7) == name(REFUSED)
    assert len({name(REFUSED), name(REFUSED, "n2"), *map(name, others)}) == 6


@pytest.mark.parametrize("last", ["a", "-", "."])
def test_what_is_too_long_is_cut_to_what_the_api_takes(last: str) -> None:
    name = "a" * 199 + last + "b" * 53
    long = Notice(EventSubject("Pod", "default", name, "uid"), "GPURefused", "x" * 3000)
    event = describe(long, node="n1", count=1, at=0)
    assert len(event["message"]) == 1024
    label, _, _ = event["metadata"]["name"].rpartition(".")
    assert len(label) <= 200
    assert label[-1].isalnum()


def test_a_new_agent_goes_on_with_the_event_of_the_one_before(api: Api, admin: ApiClient) -> None:
    """And an event of a node, which is in no namespace, is in the default one."""

    def put(at: float) -> None:
        results: list[str] = []
        queue = EventQueue(api=api, node="n1", clock=lambda: at, on_result=results.append)
        with running(queue.run, queue.stop):
            queue.put(LEFT_OUT)
            eventually(lambda: results == ["written"], "it is told")

    put(60)
    put(120)
    (event,) = admin.get(EVENTS)["items"]
    assert "namespace" not in event["involvedObject"]
    assert datetime.fromisoformat(event["firstTimestamp"]).timestamp() == 60
    assert datetime.fromisoformat(event["lastTimestamp"]).timestamp() == 120


# --- with scripts ---------------------------------------------------------------------


def test_during_an_outage_the_oldest_are_dropped_and_the_newest_kept() -> None:
    scene = QueueScene(Unavailable("away"))
    scene.api.go_on.clear()
    with scene.running():
        scene.put(notice(0))
        assert scene.api.entered.wait(DEADLINE_S)
        scene.put(*map(notice, range(1, 1001)))
        assert scene.results == ["dropped"] * 744
        scene.api.go_on.set()
        eventually(lambda: scene.results.count("written") >= 256, "all are written")
    newest = {f"number {number}" for number in range(745, 1001)}
    assert newest <= set(scene.api.counts)
    assert len(scene.api.stored) <= 257


BOTH = {"number 1": 1, "number 2": 1}


@pytest.mark.parametrize(
    ("errors", "results", "counts"),
    [
        ([Rejected(422, "invalid")], ["dropped", "written"], {"number 2": 1}),
        ([Gone("expired")], ["dropped", "written"], {"number 2": 1}),
        # A defect of ours costs one try, not the thread.
        ([KeyError("unforeseen")], ["retried", *["written"] * 2], BOTH),
        # It goes while it is found to exist: it is created anew.
        ([Rejected(409, ""), Rejected(404, "")], ["retried", *["written"] * 2], BOTH),
        # A permission may come after the agent.
        ([Rejected(401, "no")], ["retried", *["written"] * 2], BOTH),
        # A namespace that is being deleted is given up, and holds no other up.
        (
            [Rejected(403, "no"), None, *[Rejected(403, "no")] * 3],
            ["retried", "written", "retried", "retried", "dropped"],
            {"number 2": 1},
        ),
    ],
)
def test_what_the_api_refuses_is_tried_again_if_it_may_pass_and_holds_no_other_up(
    errors: list[Exception | None],
    results: list[str],
    counts: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_REFUSALS", 4)
    scene = QueueScene(*errors)
    scene.put(notice(1), notice(2))
    with scene.running():
        scene.wait(*results)
    assert scene.api.counts == counts


def test_what_may_be_created_but_not_patched_is_not_created_anew() -> None:
    """Only an event that is gone has expired."""
    scene = QueueScene(None, Rejected(422, "a policy refuses patches"))
    with scene.running():
        scene.put(REFUSED)
        scene.wait("written")
        scene.put(REFUSED)
        scene.wait("written", "dropped")
    assert [call for call, _ in scene.api.calls] == ["create", "patch"]


def test_a_conflict_while_an_event_is_counted_up_loses_no_count() -> None:
    scene = QueueScene(None, Rejected(409, "the object has been modified"))
    with scene.running():
        scene.put(REFUSED)
        scene.wait("written")
        scene.put(REFUSED, REFUSED)
        scene.wait("written", "retried", "written")
    assert scene.api.counts == {REFUSED.message: 3}


def test_an_event_of_the_node_is_not_dropped_for_events_of_pods() -> None:
    scene = QueueScene()
    scene.put(LEFT_OUT, *map(notice, range(1000)))
    with scene.running():
        eventually(lambda: LEFT_OUT.message in scene.api.counts, "it is written")


def test_each_failure_doubles_the_wait_until_it_works() -> None:
    scene = QueueScene(Unavailable("1"), Unavailable("2"), Unavailable("3"))
    scene.put(REFUSED)
    with scene.running():
        scene.wait(*["retried"] * 3, "written")
    gaps = [later - sooner for sooner, later in zip(scene.api.at, scene.api.at[1:], strict=False)]
    assert [gap >= least for gap, least in zip(gaps, [0.02, 0.04, 0.08], strict=True)] == [True] * 3


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forgotten is found by its name: it is one event all the same."""
    monkeypatch.setattr(write_queue, "MOST_REMEMBERED", 2)
    scene = QueueScene()
    with scene.running():
        for count, number in enumerate([1, 2, 3, 1], start=1):
            scene.put(notice(number))
            scene.wait(*["written"] * count)
    assert [call for call, _ in scene.api.calls] == ["create"] * 4 + ["patch"]
    assert len(scene.api.stored) == 3


# --- any history ----------------------------------------------------------------------

_numbers = st.integers(0, 2)
_steps = st.lists(
    st.tuples(st.just("put"), _numbers)
    | st.tuples(st.just("fail"), _numbers)
    | st.tuples(st.just("expire"), st.just(0)),
    max_size=15,
)


@settings(
    patient, max_examples=share(40), suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # the patch is the same for all
@given(steps=_steps)
def test_every_event_is_counted_as_often_as_it_was_reported(
    steps: Sequence[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BACKOFF_SECONDS", (0.001, 0.002))
    scene, wanted = QueueScene(), Counter[str]()
    with scene.running():
        for what, number in steps:
            if what == "put":
                scene.put(notice(number))
                wanted[notice(number).message] += 1
            elif what == "fail":
                scene.api.errors += [Unavailable("away")] * number
            else:
                eventually(lambda: scene.api.counts == wanted, "all is written before it expires")
                scene.api.stored.clear()
        eventually(lambda: scene.api.counts == wanted, f"{scene.api.counts} and {wanted}")
    assert "dropped" not in scene.results
