"""One seed: a node, some hundred calls, everything that can go wrong."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.adversary import quiet
from tests.adversary.chaos import Chaos
from tests.adversary.judge import Finding
from tests.adversary.moves import Faults
from tests.adversary.world import KubeletDied, World

FORMS = {"new List": True, "old List": False}
"""By name, whether ``List`` shows active pods only (K8)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one node, or many, came to.

    Attributes:
        verdicts: of what the agent said and did.
        faults: what happened to the node, and how often.
        evidence: by what the agent decided.
        excused: refusals of pods that fitted, where nobody could have known better.
        findings: what must not be.
    """

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
    """Run one node through so many rounds of bursts.

    Args:
        seed: everything falls from it.
        active_only: whether ``List`` is in its new form (K8).
        rounds: how many bursts.
        trace: told of everything that happens.
    """
    random = Random(seed)
    world = World(random, active_only=active_only)
    world.trace = world.judge.trace = trace
    faults = Faults(world, random)
    chaos = Chaos(faults, random)
    world.strike, world.loses = chaos.strike, chaos.loses
    for _ in range(rounds):
        faults.bind_a_burst()
        _drain(world, chaos, faults)
        if random.random() < 0.2:
            chaos.paused = True
            quiet.come_to_rest(world)
            quiet.check(world)
            chaos.paused = False
        elif random.random() < 0.15:
            faults.restart_kubelet()
    judge = world.judge
    return Outcome(
        judge.verdicts, world.faults, judge.evidence, judge.excused, tuple(judge.findings)
    )


def _drain(world: World, chaos: Chaos, faults: Faults) -> None:
    """Let the kubelet come to all pods that wait."""
    while world.kubelet.queue:
        world.judge.step += 1
        try:
            chaos.strike("between", None)
            if world.kubelet.queue:
                pod = world.kubelet.queue[0]
                world.kubelet.admit_next()
                faults.admitted(pod)
        except KubeletDied:
            faults.restart_kubelet()
        if not world.kubelet.connected:
            world.register()
