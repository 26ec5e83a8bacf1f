"""Ten thousand containers, with and without faults: how many were named wrongly.

Bursts of the simulated kubelet, one a seed, on a node with our agent. With faults, while a
burst is being admitted: the agent is restarted with nothing remembered, the kubelet is killed
and restarted, pods are deleted, ``List`` is rate limited far below what the agent would like,
and the agent's watch is behind. A third run has no ``List`` at all.

Then the adversary: nodes in one thread, with faults that no simulated node
has; see :mod:`bench.adversary`.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from random import Random

from bench.adversary.soak import soak as soak_by_adversary
from bench.bursts import Json, draw_burst
from bench.result import Cell, Goal, Result, Table
from simulator.node.judge import Verdict
from simulator.node.node import Node
from simulator.node.options import NodeOptions

NAME = "soak"

_PIECES = 6

_NOTES = (
    "refused: the call failed, by our refusal or because agent or kubelet was being restarted.",
    "corrected: wrong guesses that a later List put right. Answers and evidence are in the JSON.",
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of run.

    Attributes:
        name: for the table.
        faults: whether things go wrong during the burst.
        witness: whether the agent can ask ``List``.
    """

    name: str
    faults: bool
    witness: bool


SCENARIOS = (
    Scenario("no faults", faults=False, witness=True),
    Scenario("faults", faults=True, witness=True),
    Scenario("without List", faults=False, witness=False),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one burst, or many, came to.

    Attributes:
        containers: how many were asked for (ordinary init containers included).
        verdicts: of the ``Allocate`` calls.
        evidence: by what the answered ones were settled.
        counts: of the agent's other words.
        refusals: whole answers of failed calls, for the JSON.
        different: allocations recorded on pods that are not what the kubelet holds.
        doubled: places that two pods held at the end.
    """

    containers: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    evidence: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    different: int = 0
    doubled: int = 0

    def __add__(self, other: "Outcome") -> "Outcome":
        """Add two outcomes up."""
        return Outcome(
            self.containers + other.containers,
            self.verdicts + other.verdicts,
            self.evidence + other.evidence,
            self.counts + other.counts,
            self.refusals + other.refusals,
            self.different + other.different,
            self.doubled + other.doubled,
        )


def run(
    *,
    seeds: int = 50,
    pods: int = 80,
    processes: int = 3,
    scenarios: Sequence[Scenario] = SCENARIOS,
) -> Result:
    """Measure.

    Args:
        seeds: how many bursts a scenario has.
        pods: pods a burst; 80 have more than 200 containers.
        processes: how many nodes are simulated at once; they wait a good deal for restarts.
        scenarios: what to run.

    Raises:
        NodeStuck: a node did not come to rest.
    """
    totals = {scenario: Outcome() for scenario in scenarios}
    # A forked child would inherit gRPC's threads, which gRPC does not allow. What the agents log by
    # the thousand is in their decision logs, too.
    with ProcessPoolExecutor(processes, get_context("spawn"), logging.disable) as pool:
        for scenario in scenarios:
            tasks = [pool.submit(soak, scenario, seed, pods) for seed in range(seeds)]
            totals[scenario] = sum((task.result() for task in tasks), Outcome())
    tables, goals, figures = soak_by_adversary(seeds=seeds, processes=processes)
    rows: list[tuple[Cell, ...]] = [
        (
            scenario.name,
            total.containers,
            total.verdicts.total(),
            *(total.verdicts[each.value] for each in Verdict),
            total.counts["corrected"],
            total.different,
            total.doubled,
        )
        for scenario, total in totals.items()
    ]
    witnessed = [total for scenario, total in totals.items() if scenario.witness]
    wrong = sum(total.verdicts[Verdict.WRONG] for total in witnessed)
    return Result(
        NAME,
        (
            Table(
                f"Soak: {seeds} bursts of {pods} pods each, a seed each",
                (
                    "scenario",
                    "containers",
                    "Allocates",
                    "right",
                    "wrong",
                    "refused",
                    "corrected",
                    "records differ",
                    "places doubled",
                ),
                rows,
                _NOTES,
            ),
            *tables,
        ),
        (
            Goal("named wrongly where List can be asked", 0, wrong),
            Goal("places given to two pods", 0, sum(each.doubled for each in totals.values())),
            *goals,
        ),
        figures
        | {
            scenario.name: {
                "evidence": dict(total.evidence),
                "agent": dict(total.counts),
                "refusals": dict(total.refusals.most_common(20)),
            }
            for scenario, total in totals.items()
        },
    )


def soak(scenario: Scenario, seed: int, pods: int) -> Outcome:
    """Run one burst.

    Raises:
        NodeStuck: the node did not come to rest.
    """
    random = Random(seed)  # noqa: S311 -- faults are to be repeatable
    manifests = draw_burst(pods, seed=seed)
    options = NodeOptions(seed=seed, cards=24, witness=scenario.witness)
    if scenario.faults:
        options = NodeOptions(
            seed=seed,
            cards=24,
            witness=scenario.witness,
            list_rate=random.choice((20.0, 50.0, 100.0)),
            list_burst=random.choice((1, 3, 10)),
            cache_behind=random.choice((0, 5, 20)),
        )
    with Node(options) as node:
        if scenario.faults:
            _submit_with_faults(node, manifests, random)
        else:
            node.admit(manifests)
        node.settle()
        admissions = node.admissions()
        return Outcome(
            sum(_containers(each) for each in manifests),
            Counter(each.verdict.value for each in admissions),
            Counter(each.evidence.value for each in admissions if each.evidence),
            node.diary.counts,
            Counter(_without_names(each.error) for each in admissions if each.error),
            len(node.differences()),
            node.double_grants(),
        )


def _submit_with_faults(node: Node, manifests: Sequence[Json], random: Random) -> None:
    """Bind a burst piece by piece; something happens while a piece is being admitted.

    A kubelet rejects every pod that it comes to while its plugin is away, so few may be waiting
    when the agent is restarted: each piece begins with an idle kubelet, and three pods of it
    are under way.
    """
    faults = [node.restart_agent, node.restart_kubelet]
    bound: list[str] = []
    size = max(len(manifests) // _PIECES, 1)
    for begin in range(0, len(manifests), size):
        piece = manifests[begin : begin + size]
        node.settle()
        for place, manifest in enumerate(piece):
            if place == 3 and random.random() < 0.5:
                random.choice(faults)()
                node.wait_until_offered()
            node.bind(manifest)
            bound.append(manifest["metadata"]["uid"])
        uid = random.choice(bound)
        node.delete(uid)
        bound.remove(uid)


def _containers(manifest: Json) -> int:
    spec = manifest["spec"]
    return len(spec["containers"]) + len(spec.get("initContainers", ()))


def _without_names(text: str) -> str:
    """Cut an answer to what it has in common with others of its kind."""
    return text.partition(":: ")[0].partition("; waiting")[0].partition("GPU-")[0][:160]
