"""Our decisions beside what the peers' own tests expect: the cases of :mod:`bench.peercases`.

Every case is decided alone: what came before it has happened as the peer expects. Sets of whole
cards are compared by NVIDIA's scale; a pod goes through the webhook, and then to the node that the
scheduler extender scores best.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import jsonpatch

from bench.linkquality import MACHINES, Kinds, Machine
from bench.peercases import CHOICES, FITTINGS, PODS, ROWS, Choice, Fitting, Pods
from bench.result import Goal, Result, Table
from contract.demand import CORES_PER_CARD
from contract.names import Names
from contract.stamps import OrderStamp
from placement.cards import Inventory
from placement.cluster.fit import Fit, check
from placement.cluster.holdings import View
from placement.cluster.nodes import Node, NodeCard, Problem
from placement.cluster.pods import Pod, parse_pod
from placement.scoring import Policy
from placement.topology import Links
from scheduler.score import score
from webhook.admission.options import DefaultMemory, Options
from webhook.admission.pods import decide_pod

NAME = "peers"

_NAMES = Names()


class Outcome(StrEnum):
    """Our decision beside the peer's."""

    SAME = "same"
    TIE = "another, as good"
    BETTER = "better"
    PURPOSE = "on purpose"
    WORSE = "worse"


def _six() -> Kinds:
    """Return the machine of gpu-manager's tests."""
    pairs = {(low, high): "SYS" for low in range(6) for high in range(low + 1, 6)}
    pairs.update(((low, high), "PHB") for low in range(4) for high in range(low + 1, 4))
    return {**pairs, (0, 1): "PIX", (2, 3): "PIX", (4, 5): "PIX"}


def run() -> Result:
    """Compare."""
    found = list(outcomes())
    peers = dict.fromkeys((peer, policy) for peer, policy, _, _ in found)
    rows: list[tuple[str | int, ...]] = []
    for key in peers:
        counts = Counter(outcome for *name, outcome, _ in found if tuple(name) == key)
        rows.append((*key, counts.total(), *(counts[each] for each in Outcome)))
    worse = [text for *_, outcome, text in found if outcome is Outcome.WORSE]
    return Result(
        NAME,
        (
            Table(
                "decisions beside what the peers' own tests expect",
                ("peer", "policy", "cases", *Outcome),
                rows,
                (
                    "whole cards by NVIDIA's scale; pods by whether they are served",
                    *(f"worse: {text}" for text in worse),
                ),
            ),
        ),
        (Goal("cases in which ours is worse", 0, len(worse)),),
    )


def outcomes() -> Iterator[tuple[str, str, Outcome, str]]:
    """Yield peer, policy, outcome and a description of every case."""
    machines = {
        name: Machine(kinds) for name, kinds in {**MACHINES, "six cards over PCIe": _six()}.items()
    }
    for case in (*CHOICES, *_one_by_one(machines)):
        ours, outcome = _choose(case, machines[case.machine])
        text = f"{case}: ours {ours or 'none'}"
        yield case.peer, case.policy, outcome, text
    for pods in PODS:
        for outcome, text in _serve(pods):
            yield pods.peer, pods.policy, outcome, text
    for fitting in FITTINGS:
        yield fitting.peer, fitting.policy, _fit(fitting), str(fitting)


def _one_by_one(machines: Mapping[str, Machine]) -> Iterator[Choice]:
    for row in ROWS:
        free = "".join(map(str, machines[row.machine].cards))
        for request in row.requests.split():
            size, _, expected = request.partition(":")
            yield Choice(row.peer, row.policy, row.machine, free, "", int(size), expected)
            free = "".join(each for each in free if each not in expected)


def _choose(case: Choice, machine: Machine) -> tuple[str, Outcome]:
    """Choose whole cards; return them and what they are beside the peer's."""
    ours = ""
    if {*case.must} <= {*case.free} and len(case.must) <= case.size <= len(case.free):
        names = tuple(case.free)
        best = machine.links.best(case.size, names, free=frozenset(names), must={*case.must})
        ours = "".join(best)
    if sorted(ours) == sorted(case.expected):
        return ours, Outcome.SAME
    if not ours or not case.expected:
        return ours, Outcome.BETTER if ours else Outcome.WORSE
    here, there = (machine.worth(tuple(map(int, each))) for each in (ours, case.expected))
    if here == there:
        return ours, Outcome.TIE
    return ours, Outcome.BETTER if here > there else Outcome.WORSE


# --- pods on nodes ------------------------------------------------------------------------


def _serve(case: Pods) -> Iterator[tuple[Outcome, str]]:
    """Serve pods one after the other, each where the peer had those before it."""
    nodes = [_node(f"n{each}", case.cards, case.blocks) for each in range(case.nodes)]
    taken: dict[int, tuple[int, Sequence[tuple[int, int, int]]]] = {}
    for at, (text, expected) in enumerate(zip(case.pods, case.expected, strict=True)):
        if text.startswith("-"):
            del taken[int(text[1:])]
            continue
        node, _, places = expected.partition(":")
        free = [
            _free(each, [t for n, t in taken.values() if n == number], case.blocks)
            for number, each in enumerate(nodes)
        ]
        ours = _best(_pod(text, case.blocks), nodes, free)
        outcome = Outcome.SAME if ours == node else Outcome.TIE if ours else Outcome.WORSE
        yield outcome, f"{case.peer} {case.policy}: {text} on node {node}: ours {ours or 'none'}"
        asked = [tuple(map(int, each.split("/"))) for each in text.split()]
        taken[at] = (
            int(node),
            [
                (int(card), min(cores, CORES_PER_CARD), blocks // len(on))
                for (cores, blocks), on in zip(asked, places.split(","), strict=True)
                for card in on
            ],
        )


def _fit(case: Fitting) -> Outcome:
    """Place one container on a node."""
    free, cards = [], []
    for at, text in enumerate(case.cards):
        cores, blocks, total = (0, 0, 0) if text == "ill" else map(int, text.split("/"))
        free.append((cores, blocks))
        cards.append(NodeCard(f"n0-{at}", at, "", total, healthy=text != "ill"))
    node = Node("n0", tuple(cards), Links(Inventory(())), Problem.NONE)
    fits = _best(_pod(case.asked, max(card.blocks for card in cards), case.wish), [node], [free])
    if bool(fits) == case.fits:
        return Outcome.SAME
    if case.purpose:
        return Outcome.PURPOSE
    return Outcome.BETTER if fits else Outcome.WORSE


def _node(name: str, cards: int, blocks: int) -> Node:
    listed = tuple(NodeCard(f"{name}-{at}", at, "", blocks, healthy=True) for at in range(cards))
    return Node(name, listed, Links(Inventory(())), Problem.NONE)


def _free(
    node: Node, taken: Sequence[Sequence[tuple[int, int, int]]], blocks: int
) -> list[tuple[int, int]]:
    left = [[CORES_PER_CARD, blocks] for _ in node.cards]
    for each in taken:
        for card, cores, held in each:
            left[card][0] -= cores
            left[card][1] = max(left[card][1] - held, 0)
    return [(cores, memory) for cores, memory in left]


def _pod(text: str, largest: int, wish: str = "") -> Pod | None:
    """Make the pod as its author wrote it, and let the webhook decide; ``None`` if it refuses."""
    containers = [
        {
            "name": f"c{at}",
            "resources": {
                "limits": dict(zip((_NAMES.core, _NAMES.memory), each.split("/"), strict=True))
            },
        }
        for at, each in enumerate(text.split())
    ]
    key, _, value = wish.partition("=")
    notes = {f"{_NAMES.domain}/{key}": value} if key else {}
    metadata = {"name": "p", "annotations": notes}
    pod: Any = {"metadata": metadata, "spec": {"containers": containers}}
    verdict = decide_pod(
        pod,
        names=_NAMES,
        stamp=lambda: OrderStamp(1, "bench", 0),
        options=Options(largest, DefaultMemory.PROPORTIONAL),
    )
    if not verdict.allowed:
        return None
    return parse_pod(jsonpatch.apply_patch(pod, [dict(each) for each in verdict.patch]), _NAMES)


def _best(pod: Pod | None, nodes: Sequence[Node], free: Sequence[Sequence[tuple[int, int]]]) -> str:
    """Return the place of the node with the best score; empty where it fits on none."""
    if pod is None:
        return ""
    scores = {}
    for at, (node, left) in enumerate(zip(nodes, free, strict=True)):
        view = View(node, left)
        fit = check(pod.shape, view)
        if isinstance(fit, Fit):
            scores[str(at)] = score(pod.shape, view, fit, Policy.BINPACK)
    return max(scores, key=scores.__getitem__, default="")
