"""Ten thousand containers, with and without faults: how many were named wrongly.

Bursts of the simulated kubelet, one a seed, on a node with our agent. With faults, while a
burst is being admitted: the agent is restarted with nothing remembered, the kubelet is killed
and restarted, pods are deleted, ``List`` is rate limited far below what the agent would like,
and the agent's watch is behind. A third run has no ``List`` at all.

Then the adversary: nodes in one thread, with faults that no simulated node
has; see :mod:`bench.adversary`.
"""

import logging
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from random import Random

from bench.adversary.soak import soak as soak_by_adversary
from bench.bursts import Json, draw_burst
from bench.result import Cell, Result, Table, wrong
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


Counts = Counter[tuple[str, str]]
"""What a burst, or many, came to: how often what, and of what kind.

Kinds: ``containers`` that were asked for (ordinary init containers included); ``verdict`` of an
``Allocate`` call; ``evidence`` by which it was settled; ``agent`` for its other words; ``refusal``,
the whole answer of a failed call; ``different``, an allocation recorded on a pod that is not what
the kubelet holds; ``doubled``, a place that two pods held at the end.
"""


def run(
    *,
    seeds: int = 50,
    pods: int = 80,
    processes: int = 3,
    scenarios: Sequence[Scenario] = SCENARIOS,
) -> Result:
    """Measure."""
    totals: dict[Scenario, Counts] = {}
    # Of each of thousands of connections that faults cut gRPC would tell, in a line.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # A forked child would inherit gRPC's threads, which gRPC does not allow. What the agents log by
    # the thousand is in their decision logs, too.
    with ProcessPoolExecutor(processes, get_context("spawn"), logging.disable) as pool:
        for scenario in scenarios:
            tasks = [pool.submit(soak, scenario, seed, pods) for seed in range(seeds)]
            totals[scenario] = sum((task.result() for task in tasks), Counts())
    tables, counted, figures = soak_by_adversary(seeds=seeds, processes=processes)
    rows: list[tuple[Cell, ...]] = [
        (
            scenario.name,
            total["containers", ""],
            sum(of_kind(total, "verdict").values()),
            *(total["verdict", each] for each in Verdict),
            total["agent", "corrected"],
            total["different", ""],
            total["doubled", ""],
        )
        for scenario, total in totals.items()
    ]
    witnessed = [total for scenario, total in totals.items() if scenario.witness]
    named = sum(total["verdict", Verdict.WRONG] for total in witnessed)
    doubled = sum(total["doubled", ""] for total in totals.values())
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
        wrong(
            {"named wrongly where List can be asked": named, "places given to two pods": doubled}
            | counted
        ),
        figures
        | {
            scenario.name: {
                "evidence": of_kind(total, "evidence"),
                "agent": of_kind(total, "agent"),
                "refusals": dict(list(of_kind(total, "refusal").items())[:20]),
            }
            for scenario, total in totals.items()
        },
    )


def of_kind(counts: Counts, kind: str) -> dict[str, int]:
    """Return the counts of a kind, the highest first."""
    return {what: count for (each, what), count in counts.most_common() if each == kind}


def soak(scenario: Scenario, seed: int, pods: int) -> Counts:
    """Run one burst.

    Raises:
        NodeStuck: the node did not come to rest.
    """
    random = Random(seed)  # noqa: S311 -- faults are to be repeatable
    manifests = draw_burst(pods, seed=seed)
    options = NodeOptions(seed=seed, cards=24, witness=scenario.witness)
    if scenario.faults:
        options = replace(
            options,
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
        counts = Counts({("agent", word): count for word, count in node.diary.counts.items()})
        for each in node.admissions():
            counts["verdict", each.verdict] += 1
            if each.evidence:
                counts["evidence", each.evidence] += 1
            if each.error:
                counts["refusal", _without_names(each.error)] += 1
        counts["containers", ""] = sum(map(_containers, manifests))
        counts["different", ""] = len(node.differences())
        counts["doubled", ""] = node.double_grants()
        return counts


def _submit_with_faults(node: Node, manifests: Sequence[Json], random: Random) -> None:
    """Bind a burst piece by piece; something happens while a piece is being admitted.

    A kubelet rejects every pod that it comes to while its plugin is away, so few may be waiting
    when the agent is restarted: each piece begins with an idle kubelet, and three pods of it
    are under way. A kubelet that was killed before its first checkpoint would know one resource
    for a moment, and pass over the other in silence (K11): nothing tells whom it asks for then.
    """
    node.wait_until_known()
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
