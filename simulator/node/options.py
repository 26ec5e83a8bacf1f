"""How a node in this process is set up."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from placement.scoring import Policy
from simulator.node.killable import AgentHook, no_hook


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """How a node is set up.

    Attributes:
        seed: of everything the kubelet leaves to chance.
        cards: how many cards of 80 GiB.
        document: a decoded cards file instead of *cards*.
        policy: which card a share prefers.
        witness: whether the agent can ask ``List``.
        checkpoint: whether the agent can read the kubelet's checkpoint.
        list_rate, list_burst: the kubelet's limit on ``List`` (fact K5).
        boot: whether kubelet and agent are started at once; a test may want to do it itself.
        cache_behind: of every so many pods at once the agent's watch tells; it hangs meanwhile.
        patches_wait: whether allocations stay in the agent's queue until
            ``Node.write_patches``; they die with the agent.
        agent_hook: called in the agent before each answer leaves; it may let the agent die.
        numa: whether the agent tells the kubelet the cards' NUMA nodes.
        limits: whether containers are held to their limits, by ``vcuda``; its directories are
            in ``Node.state``.
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
