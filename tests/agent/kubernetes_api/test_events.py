"""Events of pods and nodes: one for each notice, counted, bounded, and never waited for."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import Unavailable
from agent.kubernetes_api import events as module
from agent.kubernetes_api import write_queue
from agent.kubernetes_api.client import Api, Gone, Json, Rejected
from agent.kubernetes_api.events import EventQueue
from common.apiserver.events import EventSubject, Notice, describe
from simulator.client import ApiClient
from tests.agent.builders import patient
from tests.agent.fakes import FakeClock, eventually
from tests.agent.threads import running
from tests.examples import share

EVENTS = "/api/v1/namespaces/default/events"
POD = EventSubject("Pod", "default", "a", "uid-a")
REFUSED = Notice(POD, "GPURefused", "container main: no card fits")
LEFT_OUT = Notice(EventSubject("Node", "", "n1", "n1"), "GPULeftOut", "card 3 is not served")


def notice(number: int = 0) -> Notice:
    return Notice(POD, "GPURefused", f"number {number}")


class FakeEventApi(Api):
    """An API server that keeps events; it first raises the given errors."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.stored: dict[str, Json] = {}
        self.counts: Counter[str] = Counter()
        """How often each notice was put, by the counts that were written."""
        self.calls: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def _enter(self, call: str) -> None:
        self.calls.append(call)
        self.meanwhile()
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error

    def call(self, method: str, path: str, body: Json | None = None, **more: Any) -> Json:
        event = body or {}
        self._enter("create")
        name = f"{path.split('/')[4]}/{event['metadata']['name']}"
        if name in self.stored:
            raise Rejected(409, f'events "{name}" already exists')
        self.stored[name] = event
        self.counts[event["message"]] += event["count"]
        return event

    def patch_event(self, namespace: str, name: str, patch: Json) -> None:
        self._enter("patch")
        before = self.stored.get(f"{namespace}/{name}")
        if before is None:
            raise Rejected(404, f'events "{name}" not found')
        after = self.stored[f"{namespace}/{name}"] = before | patch
        self.counts[after["message"]] += after["count"] - before["count"]


class QueueScene:
    def __init__(self, *errors: Exception | None) -> None:
        self.api, self.clock = FakeEventApi(*errors), FakeClock()
        self.results: list[str] = []
        self.queue = EventQueue(
            api=self.api, node="n1", clock=self.clock, on_result=self.results.append
        )

    def put(self, *notices: Notice) -> None:
        for each in notices:
            self.queue.put(each)

    def write(self, *notices: Notice) -> list[str]:
        """Put notices, write until nothing waits, and return all results so far."""
        self.put(*notices)
        while self.queue.pending():
            self.queue.write_next()
        return self.results


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
def test_long_names_and_messages_are_cut_to_the_limits_of_the_api(last: str) -> None:
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
            eventually(lambda: results == ["written"], "it is written")

    put(60)
    put(120)
    (event,) = admin.get(EVENTS)["items"]
    assert "namespace" not in event["involvedObject"]
    assert datetime.fromisoformat(event["firstTimestamp"]).timestamp() == 60
    assert datetime.fromisoformat(event["lastTimestamp"]).timestamp() == 120


def test_a_running_queue_writes_each_new_notice() -> None:
    scene = QueueScene()
    with running(scene.queue.run, scene.queue.stop):
        for number in (1, 2, 3):
            scene.put(notice(number))
            eventually(lambda: not scene.queue.pending(), "it is written")
    assert scene.results == ["written"] * 3


def test_during_an_outage_the_oldest_are_dropped_and_the_newest_kept() -> None:
    scene = QueueScene(Unavailable("no response"))

    def put_more() -> None:
        scene.api.meanwhile = lambda: None
        scene.put(*map(notice, range(1, 1001)))
        assert scene.results == ["dropped"] * 744

    scene.api.meanwhile = put_more
    assert scene.write(notice(0)).count("written") >= 256
    newest = {f"number {number}" for number in range(745, 1001)}
    assert newest <= set(scene.api.counts)
    assert len(scene.api.stored) <= 257


BOTH = {"number 1": 1, "number 2": 1}


@pytest.mark.parametrize(
    ("errors", "results", "counts"),
    [
        ([Rejected(422, "invalid")], ["dropped", "written"], {"number 2": 1}),
        ([Gone("expired")], ["dropped", "written"], {"number 2": 1}),
        # A defect costs one try, not the thread.
        ([KeyError("unforeseen")], ["retried", *["written"] * 2], BOTH),
        # It is deleted after it was found to exist: it is created again.
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
def test_a_refused_write_is_tried_again_if_it_may_pass_and_delays_no_other(
    errors: list[Exception | None],
    results: list[str],
    counts: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_REFUSALS", 4)
    scene = QueueScene(*errors)
    assert scene.write(notice(1), notice(2)) == results
    assert scene.api.counts == counts


@pytest.mark.parametrize(
    ("error", "results", "count"),
    [
        (Rejected(422, "a policy refuses patches"), ["written", "dropped"], 1),
        (Rejected(409, "the object has been modified"), ["written", "retried", "written"], 3),
    ],
)
def test_an_event_that_cannot_be_patched_is_not_created_again_and_loses_no_count(
    error: Exception, results: list[str], count: int
) -> None:
    scene = QueueScene(None, error)
    scene.write(REFUSED)
    assert scene.write(REFUSED, REFUSED) == results
    assert scene.api.counts == {REFUSED.message: count}
    assert "create" not in scene.api.calls[1:]


def test_an_event_of_the_node_is_not_dropped_for_events_of_pods() -> None:
    scene = QueueScene()
    scene.write(LEFT_OUT, *map(notice, range(1000)))
    assert LEFT_OUT.message in scene.api.counts


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is forgotten is found by its name: it is one Event all the same."""
    monkeypatch.setattr(write_queue, "MOST_REMEMBERED", 2)
    scene = QueueScene()
    for number in (1, 2, 3, 1):
        scene.write(notice(number))
    assert scene.api.calls == ["create"] * 4 + ["patch"]
    assert len(scene.api.stored) == 3


_numbers = st.integers(0, 2)
_steps = st.lists(
    st.tuples(st.just("put"), _numbers)
    | st.tuples(st.just("fail"), _numbers)
    | st.tuples(st.sampled_from(["write", "expire"]), st.just(0)),
    max_size=20,
)


@settings(patient, max_examples=share(40))
@given(steps=_steps)
def test_every_event_is_counted_as_often_as_it_was_reported(
    steps: Sequence[tuple[str, int]],
) -> None:
    scene, wanted = QueueScene(), Counter[str]()
    for step, number in steps:
        if step == "put":
            scene.put(notice(number))
            wanted[notice(number).message] += 1
        elif step == "fail":
            scene.api.errors += [Unavailable("no response")] * number
        elif step == "write" and scene.queue.pending():
            scene.queue.write_next()
        elif step == "expire":
            scene.write()
            assert scene.api.counts == wanted
            scene.api.stored.clear()
    assert "dropped" not in scene.write()
    assert scene.api.counts == wanted
