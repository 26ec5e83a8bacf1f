"""The options of a node in this process."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from placement.scoring import Policy
from simulator.node.killable import AgentHook, no_hook


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """The options of a node.

    Attributes:
        seed: of the kubelet's random choices.
        cards: the number of cards, of 80 GiB each.
        document: a decoded cards file instead of *cards*.
        policy: which card a share prefers.
        witness: whether the agent can call ``List``.
        checkpoint: whether the agent can read the kubelet's checkpoint.
        list_rate, list_burst: the kubelet's limit on ``List`` (fact K5).
        boot: whether kubelet and agent are started at once, not by the test.
        cache_behind: the agent's watch delivers pods in groups of this size; 0: at once.
        patches_wait: whether allocations stay in the agent's queue until
            ``SimulatedNode.write_patches``; they are lost with the agent.
        agent_hook: called in the agent before each response is sent; it may kill the agent.
        numa: whether the agent reports the cards' NUMA nodes to the kubelet.
        limits: whether ``vcuda`` enforces limits; its directories are in ``SimulatedNode.state``.
        kubelet: other settings of the kubelet, by name (``simulator.kubelet.settings``).
    """

    seed: int = 0
    cards: int = 8
    document: Mapping[str, Any] | None = None
    policy: Policy = Policy.BINPACK
    witness: bool = True
    checkpoint: bool = True
    list_rate: float = 100.0
    list_burst: int = 10
    boot: bool = True
    cache_behind: int = 0
    patches_wait: bool = False
    agent_hook: AgentHook = no_hook
    numa: bool = False
    limits: bool = False
    kubelet: Mapping[str, Any] = field(default_factory=dict)
