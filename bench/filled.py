"""A cluster filled with pods, as the extender's state and as plain lists of cards."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.cluster import Json
from contract.inventory import NOTHING, Card, Link, PublishedInventory, encode_inventory
from contract.names import Names
from scheduler.state import State

NAMES = Names()
CARDS = 8
LIMITS = tuple((cores, cores // 4) for cores in (5, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100))
"""Cores and memory blocks of the shares that pods request."""

_BLOCKS, _BLOCK = 160, 256 << 20
_LOAD, _PODS_PER_NODE = 0.8, 20


def node_object(number: int) -> Json:
    """Return a node of eight cards on two sockets."""
    cards = tuple(
        Card(
            f"GPU-{number:05}-{index}",
            index,
            "NVIDIA A100-SXM4-40GB",
            _BLOCKS * _BLOCK,
            index // 4,
        )
        for index in range(CARDS)
    )
    links = tuple(
        Link((low, high), "NV4" if low // 4 == high // 4 else "SYS")
        for low in range(CARDS)
        for high in range(low + 1, CARDS)
    )
    inventory = encode_inventory(PublishedInventory(_BLOCK, cards, links, (NOTHING,) * CARDS))
    return {
        "metadata": {"name": f"node-{number:05}", "annotations": {NAMES.gpu_cards: inventory}},
        "status": {"allocatable": {NAMES.core: "800"}},
    }


def pod_object(uid: str, limit: tuple[int, int], node: str = "", cards: str = "") -> Json:
    """Return a pod of one container, about as large as real pods."""
    annotations = {NAMES.predicate_gpu_idx(0): cards} if cards else {}
    limits = {NAMES.core: str(limit[0]), NAMES.memory: str(limit[1])}
    return {
        "metadata": {
            "name": f"pod-{uid}",
            "namespace": "default",
            "uid": uid,
            "labels": {"app": "bench", "pod-template-hash": "5d4f8c7b9"},
            "annotations": annotations,
        },
        "spec": {
            "nodeName": node,
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/cuda:12",
                    "env": [{"name": f"VARIABLE_{each}", "value": "x" * 40} for each in range(20)],
                    "resources": {"limits": limits, "requests": limits},
                }
            ],
        },
        "status": {"phase": "Running"},
    }


@dataclass
class Filled:
    """Nodes with pods on them, and the same cards as plain lists for first-fit."""

    nodes: int
    state: State = field(default_factory=lambda: State(NAMES))
    free: dict[str, list[list[int]]] = field(default_factory=dict)
    placed: list[tuple[str, str, int, tuple[int, int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(7)  # noqa: S311 -- test data
        self.names = [f"node-{number:05}" for number in range(self.nodes)]
        self.count = 0
        for number, name in enumerate(self.names):
            self.state.put_node(node_object(number))
            self.free[name] = [[100, _BLOCKS] for _ in range(CARDS)]
            remaining = int(CARDS * 100 * _LOAD)
            for _ in range(_PODS_PER_NODE):
                limit = min(self.random.choice(LIMITS), (remaining, remaining // 4))
                if limit[1] and self.add(name, limit):
                    remaining -= limit[0]

    def add(self, name: str, limit: tuple[int, int]) -> bool:
        """Place a pod on the fullest card where it fits; return whether there was one."""
        cards = self.free[name]
        fitting = [
            (row[0], index)
            for index, row in enumerate(cards)
            if row[0] >= limit[0] and row[1] >= limit[1]
        ]
        if not fitting:
            return False
        _, index = min(fitting)
        self.count += 1
        uid = f"{self.count:08}"
        self.state.put_pod(pod_object(uid, limit, name, str(index)))
        cards[index][0] -= limit[0]
        cards[index][1] -= limit[1]
        self.placed.append((uid, name, index, limit))
        return True

    def end_one(self) -> None:
        """Remove a random pod."""
        chosen = self.random.randrange(len(self.placed))
        self.placed[chosen], self.placed[-1] = self.placed[-1], self.placed[chosen]
        uid, name, index, limit = self.placed.pop()
        self.state.drop_pod(uid)
        self.free[name][index][0] += limit[0]
        self.free[name][index][1] += limit[1]


def first_fit(cards: Sequence[Sequence[int]], limit: tuple[int, int]) -> int:
    """Return the first card where a pod fits; for whole cards, the number of free ones.

    The result is -1 if the pod does not fit.
    """
    cores, blocks = limit
    if cores > 100:
        whole = sum(row[0] >= 100 and row[1] >= blocks // (cores // 100) for row in cards)
        return whole if whole >= cores // 100 else -1
    for index, row in enumerate(cards):
        if row[0] >= cores and row[1] >= blocks:
            return index
    return -1
