"""Situation 3: pods deleted before, during and between their calls, and reused names."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from simulator.kubelet.settings import HookPoint
from simulator.node.node import SimulatedNode
from tests.agent.fakes import DEADLINE_S
from tests.situations.build import (
    NEVER_ENDS,
    Json,
    a_node,
    a_pod,
    assert_no_guess,
    assert_right,
    assert_sound,
    calls_of,
    gpu,
    refusal_message,
    uid_of,
    wait_for,
)

STEPS = tuple(
    (number, when, call)
    for number in (1, 2, 3)
    for call in ("GetPreferredAllocation", "Allocate")
    for when in ("before", "after")
)
"""The steps of three calls of each kind: two of c0, the first of c1."""

Delete = Callable[[SimulatedNode, str], None]

DELETIONS: dict[str, Delete] = {
    "deleted": lambda node, uid: node.delete(uid),
    "removed by force": lambda node, uid: node.remove(uid),
}


@dataclass
class AtStep:
    """A hook that does something once, at one step of one pod, and may delay the kubelet."""

    pod: str
    number: int
    when: str
    call: str
    do: Callable[[], None] = lambda: None
    seen: int = 0
    reached: threading.Event = field(default_factory=threading.Event)

    def __call__(self, moment: HookPoint) -> None:
        if (moment.pod.name, moment.when, moment.what) != (self.pod, self.when, self.call):
            return
        self.seen += 1
        if self.seen == self.number:
            self.do()
            self.reached.set()


def victim(name: str = "victim") -> Json:
    return a_pod(name, gpu("c0"), gpu("c1"))


def ended(node: SimulatedNode, uid: str) -> bool:
    return any(
        each.event in ("end", "reject") and each.pod_uid == uid
        for each in node.kubelet.trace.events
    )


def assert_next_is_right_and_all_is_free_again(node: SimulatedNode) -> None:
    """Admit an equal pod, which gets right calls; then one that needs the whole node."""
    node.admit([victim("good")])
    assert_right(node, "uid-good")
    assert_no_guess(node, "uid-good")
    node.remove("uid-good")
    wait_for(lambda: ended(node, "uid-good"))
    whole = a_pod("whole", gpu("c0", 200, 64))
    node.admit([whole])
    assert_right(node, uid_of(whole))
    assert_sound(node)


@pytest.mark.parametrize(("number", "when", "call"), STEPS)
def test_a_pod_deleted_at_any_step_of_its_admission_frees_its_slots(
    number: int, when: str, call: str
) -> None:
    """The kubelet finishes its admission, and ends it then."""
    delete = DELETIONS["deleted" if when == "before" else "removed by force"]
    hook = AtStep("victim", number, when, call)
    with a_node(seed=number, kubelet={"hook": hook}) as node:
        hook.do = lambda: delete(node, "uid-victim")
        node.bind(victim())
        wait_for(lambda: ended(node, "uid-victim"))
        assert hook.reached.is_set()
        assert refusal_message(node, "uid-victim") == ""
        calls = calls_of(node, "uid-victim")
        assert [each.verdict.value for each in calls] == ["right"] * 4
        node.sweep()
        assert_next_is_right_and_all_is_free_again(node)


@dataclass
class Gate:
    """A hook that delays the kubelet at the first call for the pod *first*."""

    reached: threading.Event = field(default_factory=threading.Event)
    open: threading.Event = field(default_factory=threading.Event)

    def __call__(self, moment: HookPoint) -> None:
        if moment.pod.name == "first" and not self.reached.is_set():
            self.reached.set()
            assert self.open.wait(DEADLINE_S)


@contextmanager
def held_up(seed: int = 0) -> Iterator[tuple[SimulatedNode, Gate]]:
    """A node whose kubelet is in the middle of an admission, so that new pods wait."""
    gate = Gate()
    with a_node(seed=seed, kubelet={"hook": gate}) as node:
        node.bind(a_pod("first", at=-1))
        wait_for(gate.reached.is_set)
        try:
            yield node, gate
        finally:
            gate.open.set()


# --- reused names -------------------------------------------------------------------------

SHAPES = {
    "same shape": (gpu("c0"), gpu("c1")),
    "another shape": (gpu("c0", 7, 3), gpu("c1", 9, 5), gpu("c2", 7, 3)),
}


def web(uid: str, *containers: Json, at: int = 0) -> Json:
    return a_pod("web", *(containers or SHAPES["same shape"]), uid=uid, at=at)


def replace(node: SimulatedNode, shape: tuple[Json, ...], *, by_force: bool) -> None:
    """Delete web (uid-1) and create web (uid-2) as soon as the API server allows it."""
    if by_force:
        node.remove("uid-1")
    else:
        node.delete("uid-1")
        wait_for(lambda: ended(node, "uid-1"))
        node.sweep()
    node.admit([web("uid-2", *shape, at=9)])


@pytest.mark.parametrize("by_force", [False, True], ids=["deleted", "removed by force"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_name_reused_at_once_is_another_pod(shape: tuple[Json, ...], by_force: bool) -> None:
    """After a deletion by force, the old containers still run and keep their slots."""
    grace_s = NEVER_ENDS if by_force else (0.001, 0.01)
    old_list = by_force == (shape is SHAPES["same shape"])
    kubelet = {"active_pods_only": not old_list, "grace_s": grace_s}
    with a_node(kubelet=kubelet) as node:
        node.admit([web("uid-1"), a_pod("other")])
        replace(node, shape, by_force=by_force)
        assert_right(node, "uid-2", "uid-other")
        assert_no_guess(node, "uid-2")
        assert_sound(node)
        assert node.decision_log.counts["corrected"] == 0
        assert node.decision_log.refusals == []


@pytest.mark.parametrize("by_force", [False, True], ids=["deleted", "removed by force"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_name_reused_before_the_watch_event_is_looked_up(
    shape: tuple[Json, ...], by_force: bool
) -> None:
    with a_node() as node:
        node.admit([web("uid-1"), a_pod("other")])
        node.api.hanging = True
        replace(node, shape, by_force=by_force)
        assert refusal_message(node, "uid-2") == ""
        node.catch_up()
        node.admit([a_pod("probe")])
        assert_right(node, "uid-2", "uid-other", "uid-probe")
        assert_sound(node)


@pytest.mark.parametrize(("number", "when", "call"), STEPS[1:8])
def test_calls_of_a_pod_removed_in_mid_admission_are_not_its_successors(
    number: int, when: str, call: str
) -> None:
    """The API shows the successor already."""
    shape = SHAPES["same shape" if when == "after" else "another shape"]
    hook = AtStep("web", number, when, call)
    with a_node(seed=number, kubelet={"hook": hook}) as node:

        def again() -> None:
            node.remove("uid-1")
            node.bind(web("uid-2", *shape, at=9))

        hook.do = again
        node.bind(web("uid-1"))
        wait_for(lambda: ended(node, "uid-1"))
        node.settle()
        node.admit([a_pod("probe")])
        assert_right(node, "uid-2", "uid-probe")
        assert_sound(node)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_pod_replaced_before_its_first_call_takes_nothing_from_its_successor(
    shape: tuple[Json, ...],
) -> None:
    """``List`` shows a name and no UID: the removed pod's calls may be taken for the successor's.

    The successor's own calls are right, and so is its annotation.
    """
    with held_up() as (node, gate):
        node.bind(web("uid-1"))
        node.remove("uid-1")
        node.bind(web("uid-2", *shape, at=9))
        gate.open.set()
        wait_for(lambda: ended(node, "uid-1"))
        node.settle()
        node.admit([a_pod("probe")])
        assert_right(node, "uid-2", "uid-first", "uid-probe")
        assert node.differences() == []
        assert node.miscounts() == []
        assert node.double_grants() == 0
