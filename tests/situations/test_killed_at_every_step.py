"""Situation 7: the agent, the kubelet, or both killed at every step of a pod's admission.

The pod has an ordinary init container, a sidecar and two containers, each with both resources,
so its calls have every form: slots of the init container reused without a preferred call, reused
with new ones, and new ones only. Another pod ran before; one with equal cores and other memory
waits behind it, though its stamps are older; one more comes afterwards.

Killed means: calls in flight are aborted, sockets stay. The agent loses its state, except the file
of the current pod, and all that it has not written to the API server yet.
"""

import re
import threading
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest

from contract.allocation import Evidence
from contract.demand import ContainerKind
from contract.resource import Resource
from simulator.kubelet.errors import CrashHere
from simulator.kubelet.pods import parse_pod
from simulator.kubelet.settings import HookPoint
from simulator.node.judge import Attribution
from simulator.node.killable import AgentKilled, CallStage
from tests.agent.fakes import DEADLINE_S, eventually
from tests.situations.build import NAMES, Node, a_node, a_pod, gpu, sidecar, uid_of

pytestmark = pytest.mark.usefixtures("quick_restarts")

START = "PreStartContainer"


@dataclass(frozen=True, slots=True, order=True)
class Step:
    container: str
    what: str
    resource: str
    when: str

    def __str__(self) -> str:
        words = (self.when, self.what, self.container, self.resource.rpartition("-")[2])
        return "-".join(each for each in words if each)


def steps_of(manifest: dict[str, Any]) -> list[Step]:
    """Every step that the kubelet takes with a pod, from its shape alone (facts K1, K2, K7, K10).

    The kubelet's random order of a container's resources does not change them.
    """
    found: list[Step] = []

    def both(container: str, what: str, resource: str = "") -> None:
        found.extend(Step(container, what, resource, when) for when in ("before", "after"))

    pod = parse_pod(manifest)
    reusable: Counter[str] = Counter()
    for container in pod.containers:
        for resource, size in sorted(container.limits.items()):
            reused = min(reusable[resource], size)
            if reused < size:  # else there is no preferred call (K7)
                both(container.name, "GetPreferredAllocation", resource)
            both(container.name, "Allocate", resource)
            if container.kind is ContainerKind.INIT:
                reusable[resource] += size - reused
            else:
                reusable[resource] -= reused
        both(container.name, "Checkpoint")
    for container in pod.containers:
        for resource in sorted(container.limits):
            both(container.name, START, resource)
    return found


class Trap:
    """Records the steps of one pod, and springs once at one of them."""

    def __init__(self) -> None:
        self.passed: list[Step] = []
        self.sprung = threading.Event()
        self.done = threading.Event()
        self._lock = threading.Lock()
        self._uid = ""
        self._at: Step | None = None
        self._action: Callable[[], None] = lambda: None

    def watch(self, uid: str) -> None:
        self._uid = uid

    def set(self, at: Step, action: Callable[[], None]) -> None:
        self._at, self._action = at, action

    def __call__(self, moment: HookPoint) -> None:
        if moment.pod.uid != self._uid:
            return
        step = Step(moment.container, moment.what, moment.resource, moment.when)
        with self._lock:
            self.passed.append(step)
            if step != self._at or self.sprung.is_set():
                return
            self.sprung.set()
        try:
            self._action()
        finally:
            self.done.set()


BEFORE = a_pod("before", gpu("c0", 20, 3), at=5, created="2025-01-15T08:00:00Z")
POD = a_pod(
    "killed",
    gpu("c0", 20, 6),
    gpu("c1", 20, 10),
    init=[gpu("init", 20, 8), sidecar("sidecar", 10, 4)],
    at=4,
    created="2025-01-15T08:00:01Z",
)
BEHIND = a_pod("behind", gpu("c0", 20, 5), at=2, created="2025-01-15T08:00:02Z")
AFTER = a_pod("after", gpu("c0", 20, 7), at=1, created="2025-01-15T08:00:03Z")

STEPS = steps_of(POD)

FORKS = tuple(
    step
    for step in STEPS
    if step.what != START
    and (
        step.container == "init"
        or (step.container == "c0" and step.what == "GetPreferredAllocation")
    )
)
"""The steps where it matters which resource came first and what is written by then.

``List`` omits the init container (K4), and c0 is the first container that gets new slots: its card
must not change between its two resources.
"""


@dataclass(frozen=True, slots=True)
class Course:
    """One admission of a pod without a fault.

    With *seed*, *first* comes first for every container of the pod. Either the agent loses all
    annotations that it has to write (*unwritten*), or they are written at once.
    """

    seed: int
    first: str
    unwritten: bool

    def __str__(self) -> str:
        return f"{self.first.rpartition('-')[2]}-first"


COURSES = (Course(22, NAMES.core, unwritten=True), Course(38, NAMES.memory, unwritten=False))


class Fault(StrEnum):
    """Which process is killed at a step, and when its successor starts."""

    DISCONNECTED = "agent"
    """The agent; the next one starts when the kubelet has handled all its pods."""
    REPLACED = "agent-replaced"
    """The agent; the next one has registered before the kubelet continues."""
    LOST = "agent-in-call"
    """The agent, in the call: all is assigned, the response is lost. Then as ``DISCONNECTED``."""
    KUBELET = "kubelet"
    BOTH = "both"
    """The kubelet starts first."""
    BOTH_AGENT_FIRST = "both-agent-first"

    @property
    def agent(self) -> bool:
        return self is not Fault.KUBELET

    @property
    def kubelet(self) -> bool:
        return self in (Fault.KUBELET, Fault.BOTH, Fault.BOTH_AGENT_FIRST)


# The kubelet's own messages for a pod that it admits while the plugin is disconnected.
_RESOURCE = rf"{re.escape(NAMES.domain)}/vcuda-(core|memory)"
_CUT = r"rpc error: code = (Unavailable|Canceled) desc = .+"
DISCONNECTED_TEXT = re.compile(
    r"Pod was rejected: Allocate failed due to ("
    rf"no healthy devices present; cannot allocate unhealthy devices {_RESOURCE}"
    rf"|endpoint {_RESOURCE} has been stopped"
    rf"|device plugin GetPreferredAllocation rpc failed with err: "
    rf"(endpoint {_RESOURCE} has been stopped|{_CUT})"
    rf"|{_CUT}"
    r"), which is unexpected"
)


class Case:
    def __init__(
        self, fault: Fault, step: Step, course: Course, log: pytest.LogCaptureFixture
    ) -> None:
        self.fault = fault
        self.log = log
        self.step = step
        self.course = course
        self.trap = Trap()
        self.node = a_node(
            seed=course.seed,
            patches_wait=course.unwritten,
            agent_hook=self.in_agent,
            kubelet={"hook": self.trap},
        )
        self.killed = threading.Event()
        self.ids: frozenset[str] = frozenset()

    def run(self) -> None:
        node = self.node
        node.admit([deepcopy(BEFORE)])
        node.write_patches()
        self.trap.watch(uid_of(POD))
        self.trap.set(self.step, self.strike)
        node.bind(deepcopy(POD), deepcopy(BEHIND))
        assert self.trap.done.wait(DEADLINE_S), f"the pod never came to {self.step}"
        self.recover()
        node.wait_until_offered()
        node.settle()
        node.admit([deepcopy(AFTER)])
        node.write_patches()

    def strike(self) -> None:
        """Kill what the fault names; runs in the kubelet's thread of the step."""
        if self.step.what == START:  # in a thread of the pod: the next pod continues meanwhile
            behind = (uid_of(BEHIND), "c0")
            eventually(lambda: behind in self.node.kubelet.running(), "the next pod runs")
        if self.fault.kubelet:
            raise CrashHere
        if self.fault is Fault.LOST:
            self.ids = held(self.node, uid_of(POD)).get(
                (self.step.container, self.step.resource), frozenset()
            )
            return
        self.node.kill_agent()
        if self.fault is Fault.REPLACED:
            self.node.start_agent()
            self.node.wait_until_offered()

    def in_agent(self, moment: CallStage) -> None:
        mine = self.fault is Fault.LOST and self.trap.sprung.is_set() and not self.killed.is_set()
        mine = mine and moment.call == self.step.what
        mine = mine and self.step.resource.endswith(moment.resource.value)
        if mine and (moment.call != START or moment.ids == self.ids):
            self.killed.set()
            raise AgentKilled

    def recover(self) -> None:
        node = self.node
        if self.fault.kubelet:
            eventually(lambda: node.kubelet.crashed, "the kubelet crashes")
        if self.fault in (Fault.BOTH, Fault.BOTH_AGENT_FIRST):
            node.kill_agent()
        if self.fault is Fault.BOTH_AGENT_FIRST:
            node.kubelet.kill()
            self.log.clear()  # of the previous agent
            node.start_agent()
            eventually(lambda: "registration failed" in self.log.text, "the agent waits")
            node.start_kubelet()
        elif self.fault.kubelet:
            node.restart_kubelet()
        if self.fault is Fault.BOTH:
            node.start_agent()
        if self.fault is Fault.LOST:
            assert self.killed.wait(DEADLINE_S), "that call never came"
        if self.fault in (Fault.DISCONNECTED, Fault.LOST):
            eventually(node.kubelet.idle, "the kubelet has handled all pods")
            node.kill_agent()
            node.start_agent()

    # --- expectations --------------------------------------------------------------------

    @property
    def until_then(self) -> set[Step]:
        return set(self.trap.passed[: self.trap.passed.index(self.step) + 1])

    @property
    def is_rejected(self) -> bool:
        """Whether the kubelet makes another call for the pod's admission while no agent runs."""
        if self.fault not in (Fault.DISCONNECTED, Fault.LOST) or self.step.what == START:
            return False
        allocates = {each for each in STEPS if (each.what, each.when) == ("Allocate", "after")}
        return not allocates <= self.until_then


HeldIds = dict[tuple[str, str], frozenset[str]]
"""Container and resource -> device IDs."""


def held(node: Node, uid: str) -> HeldIds:
    return {
        (each.container, each.resource): frozenset(each.ids)
        for each in node.kubelet.held_devices()
        if each.pod_uid == uid
    }


def agents_snapshot(node: Node) -> dict[str, HeldIds]:
    assert node.agent is not None
    names = {Resource.CORE: NAMES.core, Resource.MEMORY: NAMES.memory}
    found: dict[str, HeldIds] = {}
    for pod in node.agent.allocator.snapshot().pods:
        for container, held_ids in pod.held.items():
            for resource, ids in held_ids.items():
                found.setdefault(pod.id.uid, {})[container, names[resource]] = ids
    return found


def check(case: Case) -> None:
    """Compare decisions, annotations, snapshot and counts, after the last pod."""
    node = case.node
    for each in node.admissions():
        if each.verdict is Attribution.REFUSED:
            assert each.event.pod_uid in (uid_of(POD), uid_of(BEHIND))
            continue
        assert each.verdict is Attribution.RIGHT, each
        assert each.evidence in (Evidence.TICKET, Evidence.WITNESS), each
    assert node.decision_log.refusals == []
    assert node.decision_log.counts["corrected"] == 0
    node.assert_recorded()
    running = {uid_of(each) for each in (BEFORE, POD, BEHIND, AFTER)}
    for uid in (uid_of(POD), uid_of(BEHIND)):
        if text := node.refusal_message(uid):
            running.discard(uid)
            assert DISCONNECTED_TEXT.fullmatch(text), text
    assert (uid_of(POD) not in running) == case.is_rejected, node.refusal_message(uid_of(POD))
    if case.fault.kubelet or case.fault is Fault.REPLACED or case.step.what == START:
        assert uid_of(BEHIND) in running
    kept = {uid: held(node, uid) for uid in running}
    assert [uid for uid in running if not kept[uid]] == []
    assert agents_snapshot(node) == kept
    for uid in running:
        assert {name for name, _ in kept[uid]} == {*node.recorded(uid)}, uid
    assert node.miscounts() == []
    assert node.decision_log.counts["unproven"] == 0
    check_received(node)


def check_received(node: Node) -> None:
    """Check that every container sees the one card of its cores and memory."""
    cards: dict[tuple[str, str], set[str]] = {}
    for each in node.kubelet.held_devices():
        of = cards.setdefault((each.pod_uid, each.container), set())
        of |= {device_id.partition("::")[0] for device_id in each.ids}
        assert {each.received["envs"]["NVIDIA_VISIBLE_DEVICES"]} == of


def cases() -> list[tuple[Fault, Step, Course]]:
    """Return every fault at every fork; at other steps similar faults take turns.

    At each step the agent is killed at least once, and so is the kubelet.
    """
    found = []
    for number, step in enumerate(STEPS):
        turn = number // 2  # a call has two steps
        one, other = (COURSES[(turn + each) % 2] for each in (0, 1))
        if step in FORKS:
            # Only the agent loses what is not written yet.
            found += [(Fault.DISCONNECTED, step, one), (Fault.DISCONNECTED, step, other)]
            found.append((Fault.BOTH, step, COURSES[(number + turn) % 2]))
            found.append(((Fault.REPLACED, Fault.KUBELET)[number % 2], step, other))
        else:
            agents, kubelets = (Fault.DISCONNECTED, Fault.REPLACED), (Fault.KUBELET, Fault.BOTH)
            found += [(agents[number % 2], step, one), (kubelets[(number + turn) % 2], step, other)]
        if step.when == "before" and step.what != "Checkpoint":  # about calls, each once
            found.append((Fault.LOST, step, other))
        if number % 4 == 0:  # its difference from BOTH does not depend on the course
            found.append((Fault.BOTH_AGENT_FIRST, step, COURSES[0]))
    return found


@pytest.mark.parametrize("course", COURSES, ids=str)
def test_these_are_all_steps_and_each_case_takes_the_named_ones(course: Course) -> None:
    trap = Trap()
    trap.watch(uid_of(POD))
    with a_node(seed=course.seed, kubelet={"hook": trap}) as node:
        node.admit([deepcopy(BEFORE)])
        node.bind(deepcopy(POD), deepcopy(BEHIND))
        node.settle()
    assert len(STEPS) == 52
    assert sorted(trap.passed) == sorted(STEPS)
    allocates = [each for each in trap.passed if each.what == "Allocate"]
    first = {each.container: each.resource for each in reversed(allocates)}
    assert first == dict.fromkeys(["init", "sidecar", "c0", "c1"], course.first)


@pytest.mark.parametrize(("fault", "step", "course"), cases(), ids=str)
def test_after_a_kill_all_pods_run_or_have_a_reason_and_the_agents_snapshot_is_right(
    fault: Fault, step: Step, course: Course, caplog: pytest.LogCaptureFixture
) -> None:
    case = Case(fault, step, course, caplog)
    with case.node:
        case.run()
        check(case)
