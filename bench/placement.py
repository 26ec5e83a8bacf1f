"""How fast cards are chosen, and how many pods a node takes: ours, gpu-manager's rules, first-fit.

Three questions. A decision among many cards in random states (sixteen, linked as nodes are, or ten,
linked anyhow), next to looking at every set of cards. And a node of eight cards that random pods
come to until the first is refused; what is refused then is checked against trying everything.
And how well sets are connected, beside NVIDIA's policy (:mod:`bench.peers.quality`).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from random import Random
from statistics import mean, median

from bench.packing import Free, admit_first_fit, admit_gpu_manager, can_be_placed
from bench.peers import quality
from bench.peers.machines import Machine
from bench.result import Goal, Result, Table
from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind, Demand
from contract.inventory import Amounts, Card, Inventory, Link
from placement.capacity import CardSet, need_of
from placement.errors import NoPlacement
from placement.scoring import Policy
from placement.search import ContainerStep, make_plan
from placement.topology import Links

NAME = "placement"

_BLOCKS = 64
_TRIES = 3  # of each decision the quickest counts: the others were interrupted
_GOALS_MS = {"median": 2.0, "worst": 20.0}
_KINDS = ("SYS", "NODE", "PHB", "PXB", "PIX", "NV2", "NV4")

Admit = Callable[[Sequence[Demand], Free], bool]
"""Place all containers of a pod on the cards, or tell that it cannot."""


def run(
    *,
    states: int = 1000,
    brute: int = 200,
    seeds: int = 200,
    machines: Sequence[Machine] = quality.MACHINES,
) -> Result:
    """Measure.

    Args:
        states: random states of a node.
        brute: in how many of them every set is looked at as well, which takes long.
        seeds: random sequences of pods.
        machines: on which sets are compared with those of NVIDIA's policy.
    """
    speed, goals = _speed(states, brute)
    packing, more = _packing(seeds)
    sets, in_a_row = quality.tables(machines)
    known = {each.name for each in machines if len(each.pcie) == comb(each.count, 2)}
    below = sum(int(row[2]) for row in sets.rows if row[0] in known)
    linked = Goal("sets below NVIDIA's in sum, where all levels are known", 0, below)
    return Result(NAME, (speed, packing, sets, in_a_row), (*goals, *more, linked))


# --- how fast -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Case:
    inventory: Inventory
    free: Sequence[Amounts]
    demand: Demand


def draw_case(random: Random) -> _Case:
    """Draw ten cards linked anyhow or sixteen linked as nodes are, some in use, and a demand."""
    if random.random() < 0.5:
        count = 10
        kinds = {pair: random.choice(_KINDS) for pair in combinations(range(count), 2)}
    else:  # two sockets, four switches; a quarter of the nodes have an NVSwitch
        count, switch = 16, random.random() < 0.25
        kinds = {
            (a, b): "NV18" if switch else _by_place(a, b) for a, b in combinations(range(count), 2)
        }
    inventory = _node(count, kinds)
    busy = random.random() / 2
    free = []
    for _ in inventory.cards:
        cores = random.randrange(100) if random.random() < busy else CORES_PER_CARD
        memory = _BLOCKS if cores == CORES_PER_CARD else random.randrange(_BLOCKS)
        free.append(Amounts(cores, memory))
    cores = random.choice([30, 100, 200, 300, 400, 800])
    return _Case(inventory, free, Demand(cores, random.choice([4, 16])))


def _by_place(one: int, other: int) -> str:
    if one // 4 == other // 4:
        return "PIX"
    return "NODE" if one // 8 == other // 8 else "SYS"


def _speed(states: int, brute: int) -> tuple[Table, Sequence[Goal]]:
    cases = [draw_case(Random(seed)) for seed in range(states)]  # noqa: S311 -- test data
    ours, everything, worse = [], [], 0
    for number, case in enumerate(cases):
        links = Links(case.inventory)
        tries = []
        for _ in range(_TRIES):
            began = time.perf_counter()
            cards = _decide(case, links)
            tries.append((time.perf_counter() - began) * 1e3)
        ours.append(min(tries))
        if number < brute and case.demand.cards > 1:
            began = time.perf_counter()
            best = _look_at_all(case, links)
            everything.append((time.perf_counter() - began) * 1e3)
            found = links.quality(cards) if cards else None
            worse += found != best
    rows = [
        ("ours", round(median(ours), 3), round(max(ours), 3)),
        ("every set", round(median(everything), 3), round(max(everything), 3)),
    ]
    return (
        Table(
            "a decision among 10 or 16 cards, ms",
            ("", "median", "worst"),
            rows,
            (
                f"{states} random states; each decided {_TRIES} times, the quickest counts",
                f"every set: whole cards, in the first {brute}",
            ),
        ),
        (
            Goal("median decision, ms", _GOALS_MS["median"], round(median(ours), 3)),
            Goal("worst decision, ms", _GOALS_MS["worst"], round(max(ours), 3)),
            Goal("sets worse connected than the best there is", 0, worse),
        ),
    )


def _decide(case: _Case, links: Links) -> tuple[int, ...]:
    try:
        plan = make_plan(
            [_task(case.demand, 0)],
            _cards(case.inventory, links),
            case.free,
            policy=Policy.BINPACK,
        )
    except NoPlacement:
        return ()
    return plan[0].cards if plan else ()


def _look_at_all(case: _Case, links: Links) -> tuple[int, int] | None:
    """Return the quality of the best set, by looking at every one."""
    whole = [at for at, free in enumerate(case.free) if free.cores == CORES_PER_CARD]
    every = (links.quality(found) for found in combinations(whole, case.demand.cards))
    return max(every, default=None)


# --- how many -------------------------------------------------------------------------


def draw_pod(random: Random) -> list[Demand]:
    """Draw a pod: mostly one share, sometimes several containers, sometimes whole cards."""
    containers = []
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        if random.random() < 0.2:
            containers.append(Demand(random.choice([100, 100, 200]), 0))
        else:
            containers.append(
                Demand(random.choice([10, 20, 25, 30, 40, 50, 60, 70]), random.randint(4, 40))
            )
    return containers


def _packing(seeds: int) -> tuple[Table, Sequence[Goal]]:
    inventory = _node(8, {(a, b): _by_place(2 * a, 2 * b) for a, b in combinations(range(8), 2)})
    links = Links(inventory)
    rules: dict[str, Admit] = {
        "ours": lambda pod, free: admit_ours(pod, free, inventory, links),
        "gpu-manager's rules": admit_gpu_manager,
        "first-fit": admit_first_fit,
    }
    admitted: dict[str, list[int]] = {name: [] for name in rules}
    possible = dict.fromkeys(rules, 0)
    for seed in range(seeds):
        random = Random(seed)  # noqa: S311 -- test data
        pods = [draw_pod(random) for _ in range(100)]
        for name, admit in rules.items():
            free = [[CORES_PER_CARD, _BLOCKS] for _ in inventory.cards]
            count = 0
            while True:
                before = [list(card) for card in free]
                if not admit(pods[count], free):
                    possible[name] += can_be_placed(pods[count], before)
                    break
                count += 1
            admitted[name].append(count)
    rows = [
        (name, round(mean(counts), 2), min(counts), max(counts), possible[name])
        for name, counts in admitted.items()
    ]
    ours = mean(admitted["ours"])
    return (
        Table(
            "pods admitted until the first refusal, 8 cards",
            ("", "mean", "fewest", "most", "refused though a placement existed"),
            rows,
            (f"{seeds} random sequences of pods with shares and whole cards",),
        ),
        (
            Goal("refused by ours though a placement existed", 0, possible["ours"]),
            *(
                Goal(f"{name}: more pods than ours in the mean", 0, round(mean(counts) - ours, 2))
                for name, counts in admitted.items()
                if name != "ours"
            ),
        ),
    )


def admit_ours(pod: Sequence[Demand], free: Free, inventory: Inventory, links: Links) -> bool:
    """Place a pod as the agent does: as a whole."""
    rows = [Amounts(*each) for each in free]
    steps = [_task(demand, index) for index, demand in enumerate(pod)]
    try:
        plan = make_plan(steps, _cards(inventory, links), rows, policy=Policy.BINPACK)
    except NoPlacement:
        return False
    for assignment in plan or ():
        for at, fresh in zip(assignment.cards, assignment.fresh, strict=True):
            free[at][0] -= fresh.cores
            free[at][1] -= fresh.memory
    return plan is not None


# --- nodes and pods -------------------------------------------------------------------


def _node(count: int, kinds: dict[tuple[int, int], str]) -> Inventory:
    return Inventory(
        tuple(Card(f"GPU-{i:02}", i, "bench", 1 << 34, 2 * i // count) for i in range(count)),
        tuple(Link(pair, kind) for pair, kind in sorted(kinds.items())),
    )


def _cards(inventory: Inventory, links: Links) -> CardSet:
    names = [card.uuid for card in inventory.cards]
    nothing = [""] * len(names)
    sizes = [Amounts(CORES_PER_CARD, _BLOCKS)] * len(names)
    return CardSet(names, sizes, links, nothing, nothing)


def _task(demand: Demand, index: int) -> ContainerStep:
    container = ContainerDemand(f"c{index}", ContainerKind.MAIN, index, demand)
    return ContainerStep(container, need_of(demand))
