"""Run one seed: a node, some hundred calls, and all kinds of faults."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.adversary import quiet
from tests.adversary.judge import Finding
from tests.adversary.moves import Faults
from tests.adversary.world import KubeletKilled, World

FORMS = {"new List": True, "old List": False}
"""Form of ``List`` -> whether it shows only active pods (K8)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The numbers of decisions, faults and excuses of one node or of several, and the findings."""

    verdicts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    evidence: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    findings: Sequence[Finding] = ()

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome(
            self.verdicts + other.verdicts,
            self.faults + other.faults,
            self.evidence + other.evidence,
            self.excused + other.excused,
            (*self.findings, *other.findings),
        )


def run(
    seed: int,
    *,
    active_only: bool,
    rounds: int = 40,
    trace: Callable[[str], None] = lambda _line: None,
) -> Outcome:
    """Run one node through several bursts; if *seed* is odd, shares may be over several cards."""
    random = Random(seed)
    world = World(random, active_only=active_only)
    world.trace = world.judge.trace = trace
    faults = Faults(world, random, divided=seed % 2 == 1)
    world.strike, world.loses = faults.strike, faults.loses
    for _ in range(rounds):
        faults.bind_a_burst()
        _drain(world, faults)
        if random.random() < 0.2:
            faults.paused = True
            quiet.settle(world)
            quiet.check(world)
            faults.paused = False
        elif random.random() < 0.15:
            faults.restart_kubelet()
    judge = world.judge
    return Outcome(
        judge.verdicts, world.faults, judge.evidence, judge.excused, tuple(judge.findings)
    )


def _drain(world: World, faults: Faults) -> None:
    """Let the kubelet admit all pods in its queue."""
    while world.kubelet.queue:
        world.judge.step += 1
        try:
            faults.strike("between", None)
            if world.kubelet.queue:
                pod = world.kubelet.queue[0]
                world.kubelet.admit_next()
                faults.admitted(pod)
        except KubeletKilled:
            faults.restart_kubelet()
        if not world.kubelet.connected:
            world.register()
