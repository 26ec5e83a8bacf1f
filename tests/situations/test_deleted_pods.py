"""Situation 3: pods deleted before, during and between their calls, and reused names."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from simulator.kubelet.settings import HookPoint
from tests.agent.fakes import DEADLINE_S
from tests.situations.build import NEVER_ENDS, Json, Node, a_node, a_pod, gpu, uid_of, wait_for

STEPS = tuple(
    (number, when, call)
    for number in (1, 2, 3)
    for call in ("GetPreferredAllocation", "Allocate")
    for when in ("before", "after")
)
"""The steps of three calls of each kind: two of c0, the first of c1."""

Delete = Callable[[Node, str], None]

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
    do: Callable[[], object] = lambda: None
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


def ended(node: Node, uid: str) -> bool:
    return any(
        each.event in ("end", "reject") and each.pod_uid == uid
        for each in node.kubelet.trace.events
    )


def assert_next_is_right_and_all_is_free_again(node: Node) -> None:
    """Admit an equal pod, which gets right calls; then one that needs the whole node."""
    node.admit([victim("good")])
    node.assert_right("uid-good")
    node.assert_no_guess("uid-good")
    node.remove("uid-good")
    wait_for(lambda: ended(node, "uid-good"))
    whole = a_pod("whole", gpu("c0", 200, 64))
    node.admit([whole])
    node.assert_right(uid_of(whole))
    node.assert_sound()


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
        assert node.refusal_message("uid-victim") == ""
        calls = node.calls_of("uid-victim")
        assert [each.verdict.value for each in calls] == ["right"] * 4
        node.sweep()
        assert_next_is_right_and_all_is_free_again(node)


SHAPES = {
    "same shape": (gpu("c0"), gpu("c1")),
    "another shape": (gpu("c0", 7, 3), gpu("c1", 9, 5), gpu("c2", 7, 3)),
}


def web(uid: str, *containers: Json, at: int = 0) -> Json:
    return a_pod("web", *(containers or SHAPES["same shape"]), uid=uid, at=at)


def replace(node: Node, shape: tuple[Json, ...], *, by_force: bool) -> None:
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
        node.assert_right("uid-2", "uid-other")
        node.assert_no_guess("uid-2")
        node.assert_sound()
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
        assert node.refusal_message("uid-2") == ""
        node.catch_up()
        node.admit([a_pod("probe")])
        node.assert_right("uid-2", "uid-other", "uid-probe")
        node.assert_sound()


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
        node.assert_right("uid-2", "uid-probe")
        node.assert_sound()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_pod_replaced_before_its_first_call_takes_nothing_from_its_successor(
    shape: tuple[Json, ...],
) -> None:
    """``List`` shows a name and no UID: the removed pod's calls may be taken for the successor's.

    The successor's own calls are right, and so is its annotation.
    """
    hook, go_on = AtStep("first", 1, "before", "GetPreferredAllocation"), threading.Event()
    hook.do = lambda: go_on.wait(DEADLINE_S)
    with a_node(kubelet={"hook": hook}) as node:
        node.bind(a_pod("first", at=-1))
        wait_for(lambda: hook.seen)
        node.bind(web("uid-1"))
        node.remove("uid-1")
        node.bind(web("uid-2", *shape, at=9))
        go_on.set()
        wait_for(lambda: ended(node, "uid-1"))
        node.settle()
        node.admit([a_pod("probe")])
        node.assert_right("uid-2", "uid-first", "uid-probe")
        node.assert_counted()
