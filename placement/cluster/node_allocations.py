"""What each node has free: its cards without the amounts that its pods hold. No I/O.

Updated by each event. A pod's cards are known from its allocation annotation or a scheduler's
choice. Pods with neither are simulated in the order in which the kubelet admits them, on what the
others leave free. So the result does not depend on the order of the events.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from placement.cluster.holdings import NodeSnapshot, PodCards, held_by_pod, known_cards, simulate
from placement.cluster.nodes import Node
from placement.held import HeldAmounts, HeldByPosition
from placement.pods import PodInfo
from placement.scoring import Policy


class ClusterAllocations(dict[str, "NodeAllocations"]):
    """The allocations of all nodes, by node name; looking up a new name adds an empty node."""

    def __init__(self, policy: Policy) -> None:
        """Start without nodes; *policy* is how a share's card is chosen."""
        super().__init__()
        self._policy = policy

    def __missing__(self, name: str) -> "NodeAllocations":
        added = self[name] = NodeAllocations(name, self._policy)
        return added


class NodeAllocations:
    """The amounts that pods hold on one node. Not thread-safe."""

    __slots__ = ("_by_pod", "_held", "_policy", "_snapshot", "_unknown", "node", "pods")

    def __init__(self, name: str, policy: Policy) -> None:
        """Start with a node without known cards; *policy* is the agent's."""
        self.node = Node(name)
        self.pods: dict[str, PodInfo] = {}
        self._policy = policy
        self._by_pod: dict[str, HeldByPosition] = {}
        self._unknown: set[str] = set()
        self._held = HeldAmounts.none_held(())
        self._snapshot: NodeSnapshot | None = None

    def set_node(self, node: Node) -> None:
        """Replace the node, and count all pods again."""
        self.node = node
        self._snapshot = None
        self._by_pod.clear()
        self._unknown.clear()
        self._held = HeldAmounts.none_held(node.sizes)
        for pod in self.pods.values():
            self._count(pod)

    def add_pod(self, pod: PodInfo) -> None:
        """Add or replace a pod."""
        self._uncount(pod.id.uid)
        self.pods[pod.id.uid] = pod
        self._count(pod)

    def remove_pod(self, uid: str) -> None:
        """Remove a pod, if it is here."""
        self._uncount(uid)
        self.pods.pop(uid, None)

    def snapshot(self) -> NodeSnapshot:
        """Return the node as it is now; the same object until something changes."""
        if self._snapshot is None:
            self._snapshot = NodeSnapshot(self.node, self.held_without(frozenset()).free)
        return self._snapshot

    def snapshot_without(self, uid: str) -> NodeSnapshot:
        """Return the node as it would be without one pod."""
        if uid not in self.pods:
            return self.snapshot()
        return NodeSnapshot(self.node, self.held_without({uid}).free)

    def held_without(self, uids: AbstractSet[str]) -> HeldAmounts:
        """Return what would be held without these pods."""
        held = self._held
        for uid in uids & self._by_pod.keys():
            held = held.subtract(self._by_pod[uid])
        return self._simulate(self._unknown - uids, held)[1]

    def holding(self, uid: str) -> HeldByPosition | None:
        """Return what a pod holds; ``None`` if its cards are unknown or it is not here."""
        return self._by_pod.get(uid)

    def simulate(self) -> Mapping[str, PodCards]:
        """Return the simulated cards of all pods without known cards, by UID."""
        return self._simulate(self._unknown, self._held)[0]

    def _simulate(
        self, unknown: AbstractSet[str], held: HeldAmounts
    ) -> tuple[Mapping[str, PodCards], HeldAmounts]:
        """Simulate pods in their order of admission; return their cards, and all held with them."""
        cards = {}
        for pod in sorted((self.pods[uid] for uid in unknown), key=lambda pod: pod.rank):
            cards[pod.id.uid], simulated = simulate(pod, self.node, held.free, self._policy)
            held = held.add(simulated)
        return cards, held

    def _count(self, pod: PodInfo) -> None:
        self._snapshot = None
        if not self.node.cards:
            return
        cards = known_cards(pod, self.node)
        if cards is None:
            self._unknown.add(pod.id.uid)
            return
        held = self._by_pod[pod.id.uid] = held_by_pod(pod.demand, cards)
        self._held = self._held.add(held)

    def _uncount(self, uid: str) -> None:
        self._snapshot = None
        self._unknown.discard(uid)
        self._held = self._held.subtract(self._by_pod.pop(uid, {}))
