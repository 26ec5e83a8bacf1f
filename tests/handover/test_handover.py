"""One agent hands a node over to the next; the kubelet and its pods notice nothing (K26)."""

import threading
from functools import partial
from typing import Self

import pytest

from simulator.kubelet.settings import Moment
from tests.agent.fakes import eventually
from tests.handover.stage import Stage, stage
from tests.situations.build import gpu

SERVING_STEPS = [
    "pause",
    "take",
    "tell",
    "await-registered",
    "go-on",
    "finish",
    "connections",
    "await-taken",
    "exit",
]
STANDBY_STEPS = ["ready", "take", "noted", "register", "registered", "hold", "taken", "alone"]


def _more(stream: "Stream", count: int) -> bool:
    return stream.count > count


ENDED = ("Running", "Failed")


class Stream:
    """Pods that come one after the other, while a test does something else."""

    def __init__(self, node: Stage, every: float = 0.02) -> None:
        self._node = node
        self._every = every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.count = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            if len(self._node.created) > 8:  # the oldest makes room
                if self._node.phase(self._node.created[0]) in ENDED:
                    self._node.delete(self._node.created[0])
                continue
            name = f"s{self.count}"
            self._node.create(name, gpu("c0", 5, 1), gpu("c1", 3, 1))
            self.count += 1


def test_pods_created_throughout_three_handovers_all_run() -> None:
    with stage() as node:
        node.serving("a0")
        with Stream(node) as stream:
            for number in (1, 2, 3):
                node.standing_by(f"a{number}")
                node.terminate(f"a{number - 1}")
                assert node.await_end(f"a{number - 1}") == 0
                assert node.said(f"a{number - 1}", "handed over")
                eventually(partial(_more, stream, stream.count + 5), "more pods come")
            assert node.alive() == ["a3"]
        assert node.failed_ever == {}
        node.await_running(*node.created)
        node.check()


def test_the_steps_of_a_handover_are_those_that_are_tested_here() -> None:
    with stage() as node:
        node.serving("old")
        node.standing_by("new")
        node.terminate("old")
        node.await_end("old")
        eventually(lambda: ("new", "alone") in node.steps, "the new one is alone")
        assert [step for name, step in node.steps if name == "old"] == SERVING_STEPS
        assert [step for name, step in node.steps if name == "new"] == STANDBY_STEPS


def test_an_init_container_that_is_half_served_is_known_to_the_next_agent() -> None:
    """The kubelet's record never shows it (K4): the first agent answers for its first resource."""
    begun, followed = threading.Event(), threading.Event()

    def hold(moment: Moment) -> None:
        if (moment.container, moment.what, moment.when) == ("i", "Allocate", "after"):
            begun.set()
            followed.wait(60)

    with stage(hook=hold) as node:
        node.serving("old")
        node.standing_by("new")
        node.create("p", gpu("c0", 10, 4), init=(gpu("i", 30, 8),))
        assert begun.wait(60)
        node.terminate("old")
        eventually(lambda: ("new", "registered") in node.steps, "the new one is registered")
        followed.set()
        node.await_running("p")
        assert _unproven(node, "new") == [("i", True)] * 2
        node.check()


def test_an_init_container_that_has_not_started_is_known_to_the_next_agent() -> None:
    """Its pod was admitted long ago: other pods came after it."""
    followed = threading.Event()

    def hold(moment: Moment) -> None:
        if (moment.container, moment.what, moment.when) == ("i", "PreStartContainer", "before"):
            followed.wait(60)

    with stage(hook=hold) as node:
        node.serving("old")
        node.standing_by("new")
        node.create("p", gpu("c0", 10, 4), init=(gpu("i", 30, 8),))
        node.create("q", gpu("c0", 10, 4))
        node.await_running("q")
        node.terminate("old")
        node.await_end("old")
        node.create("r", gpu("c0", 10, 4))
        node.await_running("r")
        followed.set()
        node.await_running("p")
        assert _unproven(node, "new") == [("i", True)] * 2
        node.check()


def _unproven(node: Stage, agent: str) -> list[tuple[str, bool]]:
    """Return the containers whose start an agent let pass, and whether it told their places."""
    lines = [line for line in node.log(agent) if line["message"] == "unproven"]
    return [(line.get("container", ""), len(line["ids"]) > 0) for line in lines]


def _settled(node: Stage) -> None:
    """Assert that the node works in the end, and that nothing was lost or given twice."""
    node.await_served()
    node.create("after-1", gpu("c0", 30, 6), gpu("c1", 20, 4), init=(gpu("i", 10, 2),))
    node.create("after-2", gpu("c0", 200, 40))
    node.await_running("before", "after-1", "after-2")
    node.check()


def _before(node: Stage) -> None:
    """Bring an agent and another that stands by, and a pod with an init container."""
    node.serving("old")
    node.create("before", gpu("c0", 20, 8), gpu("c1", 10, 4), init=(gpu("i", 30, 8),))
    node.await_running("before")
    node.standing_by("new")


@pytest.mark.parametrize("step", SERVING_STEPS)
def test_the_agent_that_hands_over_may_be_killed_at_every_step(step: str) -> None:
    with stage() as node:
        _before(node)
        node.act = lambda name, at: node.kill(name) if (name, at) == ("old", step) else None
        node.terminate("old")
        node.await_end("old")
        _settled(node)
        assert node.alive() == ["new"]


@pytest.mark.parametrize("step", STANDBY_STEPS[1:])
def test_the_agent_that_takes_over_may_be_killed_at_every_step(step: str) -> None:
    with stage() as node:
        _before(node)

        def act(name: str, at: str) -> None:
            if (name, at) == ("new", step):
                node.launch("next")
                node.kill("new")

        node.act = act
        node.terminate("old")
        node.await_end("new")
        node.await_end("old")
        eventually(lambda: node.said("next", "registered"), "the next registers", 60)
        _settled(node)
        assert node.alive() == ["next"]


@pytest.mark.parametrize(
    ("name", "step"),
    [*(("old", each) for each in SERVING_STEPS), *(("new", each) for each in STANDBY_STEPS[1:])],
)
def test_the_kubelet_may_be_killed_at_every_step(name: str, step: str) -> None:
    with stage() as node:
        _before(node)
        struck = threading.Event()

        def act(who: str, at: str) -> None:
            if (who, at) == (name, step) and not struck.is_set():
                struck.set()
                node.kubelet.restart()
                node.restarted.set()

        node.act = act
        node.terminate("old")
        node.await_end("old")
        assert struck.wait(20)
        eventually(node.restarted.is_set, "the kubelet is back", 60)
        _settled(node)
        assert node.alive() == ["new"]


def test_of_two_agents_the_second_stands_by_and_writes_nothing() -> None:
    with stage() as node:
        node.serving("one")
        written = [each.name for each in sorted((node.folder / "dp").rglob("*"))]
        node.standing_by("two")
        node.create("p", gpu("c0", 20, 8))
        node.await_running("p")
        assert not any(line["message"] == "registered" for line in node.log("two"))
        assert not any(line["message"] == "serving this node" for line in node.log("two"))
        left = {each.name for each in (node.folder / "dp").rglob("*")} - set(written)
        assert {name.partition("-")[0] for name in left} <= {"vcore", "vmemory", "kubelet_internal"}


@pytest.mark.parametrize("spares", [1, 2])
def test_an_agent_that_is_killed_is_followed_by_one_that_stands_by(spares: int) -> None:
    with stage() as node:
        node.serving("old")
        node.create("before", gpu("c0", 20, 8), gpu("c1", 10, 4), init=(gpu("i", 30, 8),))
        node.await_running("before")
        for number in range(spares):
            node.standing_by(f"new{number}")
        node.kill("old")
        node.await_end("old")
        eventually(
            lambda: any(node.said(f"new{number}", "registered") for number in range(spares)),
            "one registers",
        )
        _settled(node)
        assert len(node.alive()) == spares
        assert sum(node.said(f"new{number}", "registered") for number in range(spares)) == 1
