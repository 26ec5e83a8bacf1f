"""When a pod is tried again: kube-scheduler's three queues, with a clock of the test's own."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from simulator.client import Json
from simulator.scheduler.events import (
    EXTENDER,
    NODE_ADD,
    NODE_DELETE,
    POD_ADD,
    POD_DELETE,
    Event,
    interests,
    node_events,
    pod_events,
)
from simulator.scheduler.queue import LONGEST_STAY_S, SchedulingQueue
from tests.simulator.api_helpers import CORE, node, pod

BY_EXTENDER = frozenset({EXTENDER})
BY_FIT = frozenset({"NodeResourcesFit"})
ERROR: frozenset[str] = frozenset()


@dataclass
class Waiting:
    """A queue and its clock."""

    now: float = 1000.5
    queue: SchedulingQueue = field(init=False)

    def __post_init__(self) -> None:
        self.queue = SchedulingQueue(lambda: self.now)

    def popped(self) -> str | None:
        queued = self.queue.pop()
        return queued.pod["metadata"]["name"] if queued else None

    def fail(self, rejected_by: frozenset[str]) -> None:
        queued = self.queue.pop()
        assert queued is not None
        self.queue.put_back(queued, rejected_by)


def named(name: str, **spec: Any) -> Json:
    made = pod(name, **spec)
    made["metadata"]["uid"] = name
    return made


def test_the_more_important_pod_is_tried_first_then_the_older_one() -> None:
    waiting = Waiting()
    for name, priority in (("old", 0), ("urgent", 10)):
        waiting.queue.add(named(name, priority=priority))
        waiting.now += 1
    waiting.queue.add(named("young"))
    assert [waiting.popped() for _ in range(4)] == ["urgent", "old", "young", None]


def test_a_rejected_pod_rests_until_an_event_and_then_needs_not_wait_if_nothing_else_does() -> None:
    waiting = Waiting()
    waiting.queue.add(named("p"))
    waiting.fail(BY_EXTENDER)
    waiting.now += 60
    assert waiting.popped() is None
    waiting.queue.move(Event("Node", "UpdateNodeAnnotation"))
    assert waiting.popped() == "p"


def test_a_rejected_pod_gives_way_to_others_until_its_wait_is_over() -> None:
    waiting = Waiting()
    waiting.queue.add(named("rejected"))
    waiting.fail(BY_EXTENDER)
    waiting.queue.move(NODE_DELETE)
    waiting.queue.add(named("other", priority=-5))
    assert waiting.popped() == "other"
    waiting.queue.add(named("other", priority=-5))
    waiting.now += 2
    assert waiting.popped() == "rejected"


def test_after_an_error_a_pod_waits_though_nothing_else_is_to_do() -> None:
    waiting = Waiting()
    waiting.queue.add(named("p"))
    for wait in (1, 2, 4, 8, 10, 10):
        waiting.fail(ERROR)
        # Waits end at whole seconds: at 1000.5 one of a second ends when 1002 begins.
        since = waiting.now
        begins = int(since) + wait + 1
        waiting.now = begins - 0.25
        assert waiting.queue.seconds_to_next() == 0.25
        assert waiting.popped() is None
        waiting.now = begins + 0.5
    assert waiting.popped() == "p"


def test_a_pod_that_is_gone_is_not_tried() -> None:
    waiting = Waiting()
    for name in ("active", "rejected", "failed"):
        waiting.queue.add(named(name))
    waiting.fail(BY_FIT)
    waiting.fail(ERROR)
    for name in ("active", "rejected", "failed"):
        waiting.queue.discard(name)
        assert name not in waiting.queue
    waiting.now += LONGEST_STAY_S
    assert waiting.popped() is None


def test_the_newest_version_of_a_pod_is_tried_and_at_once_if_it_changed_so_that_it_may_fit() -> (
    None
):
    waiting = Waiting()
    waiting.queue.add(named("p"))
    waiting.fail(BY_FIT)
    waiting.now += 60
    changed = named("p") | {"status": {"phase": "Pending"}}
    waiting.queue.update(changed, [Event("UnscheduledPod", "Update")])
    assert waiting.popped() is None
    waiting.queue.update(changed, [Event("UnscheduledPod", "UpdatePodScaleDown")])
    queued = waiting.queue.pop()
    assert queued is not None
    assert queued.pod == changed


@pytest.mark.parametrize(
    ("event", "helps_fit"),
    [
        (NODE_ADD, True),
        (Event("Node", "UpdateNodeAllocatable"), True),
        (POD_DELETE, True),
        (POD_ADD, False),
        (Event("Node", "UpdateNodeAnnotation"), False),
        (Event("AssignedPod", "Update"), False),
    ],
)
def test_a_plugin_names_its_events_and_an_extender_gets_all(event: Event, helps_fit: bool) -> None:
    assert interests("NodeResourcesFit", event) == helps_fit
    assert interests(EXTENDER, event)


@pytest.mark.parametrize(
    ("change", "actions"),
    [
        ({}, []),
        ({"spec": {"unschedulable": True}}, []),
        ({"spec": {"taints": []}}, ["UpdateNodeTaint"]),
        ({"status": {"allocatable": {CORE: "1"}}}, ["UpdateNodeAllocatable"]),
        (
            {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
            ["UpdateNodeCondition"],
        ),
    ],
)
def test_changes_of_a_node_have_names(change: Json, actions: list[str]) -> None:
    old = node() | {"status": {}}
    assert [each.action for each in node_events(old, old | change)] == actions


def test_changes_of_a_pod_have_names_or_are_just_changes() -> None:
    old = pod(limits={CORE: "30"}, schedulingGates=[{"name": "g"}])
    less = pod(limits={CORE: "20"}, tolerations=[{}])
    less["metadata"]["labels"] = {"some": "label"}
    assert [each.action for each in pod_events(old, less)] == [
        "UpdatePodLabel",
        "UpdatePodScaleDown",
        "UpdatePodSchedulingGatesEliminated",
        "UpdatePodToleration",
    ]
    placed = pod(nodeName="n1")
    assert pod_events(placed, placed) == [Event("AssignedPod", "Update")]
