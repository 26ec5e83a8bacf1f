"""How a node in this process is set up."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.place import Policy
from agent.ports import RecordSource

Rewire = Callable[[RecordSource], RecordSource]
"""Puts something between the agent and the kubelet's record."""


def as_it_is(record: RecordSource) -> RecordSource:
    """Put nothing in between."""
    return record


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """How a node is set up.

    Attributes:
        seed: of everything the kubelet leaves to chance.
        cards: how many cards of 80 GiB.
        document: a decoded cards file instead of *cards*.
        policy: which card a share prefers.
        witness: whether the agent can ask ``List``.
        record: puts a fault between the agent and ``List``.
        list_rate, list_burst: the kubelet's limit on ``List`` (fact K5).
        cache_behind: how many pods the agent's watch is behind the kubelet.
        kubelet: other settings of the kubelet, by name (``simulator.kubelet.settings``).
    """

    seed: int = 0
    cards: int = 8
    document: Mapping[str, Any] | None = None
    policy: Policy = Policy.BINPACK
    witness: bool = True
    record: Rewire = as_it_is
    list_rate: float = 100.0
    list_burst: int = 10
    cache_behind: int = 0
    kubelet: Mapping[str, Any] = field(default_factory=dict)
