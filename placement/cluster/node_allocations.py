"""What is free on one node: its cards, less what each of its pods holds. No I/O.

Kept up event by event. What a pod holds is known by its record or by a scheduler's choice; pods of
which neither tells are simulated, in the order in which the kubelet admits them, on what the
others leave. So the same pods leave the same, in whatever order the events came.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from placement.cluster.holdings import NodeSnapshot, PodCards, known_cards, simulate, taken_on
from placement.cluster.nodes import Node
from placement.held import HeldAmounts, Taken
from placement.pods import PodInfo
from placement.scoring import Policy


class ClusterAllocations(dict[str, "NodeAllocations"]):
    """What pods hold, by node; one of which nothing is known yet is there once it is asked for."""

    def __init__(self, policy: Policy) -> None:
        """Start without nodes; *policy* is which card a share prefers."""
        super().__init__()
        self._policy = policy

    def __missing__(self, name: str) -> "NodeAllocations":
        """Begin a node."""
        made = self[name] = NodeAllocations(name, self._policy)
        return made

    def forget_empty(self, name: str) -> None:
        """Forget a node that has gone, unless it has pods."""
        if name in self and not self[name].pods:
            del self[name]


class NodeAllocations:
    """What pods hold on one node. Not safe to share between threads."""

    __slots__ = ("_by_pod", "_held", "_policy", "_snapshot", "_unknown", "node", "pods")

    def __init__(self, name: str, policy: Policy) -> None:
        """Start with a node of which nothing is known yet.

        Args:
            name: of the node.
            policy: which card a share prefers, to simulate as the agent does.
        """
        self.node = Node(name)
        self.pods: dict[str, PodInfo] = {}
        self._policy = policy
        self._by_pod: dict[str, Taken] = {}
        self._unknown: set[str] = set()
        self._held = HeldAmounts.nothing_of(())
        self._snapshot: NodeSnapshot | None = None

    def set_node(self, node: Node) -> None:
        """Take what the node is now; who holds what is worked out anew."""
        self.node = node
        self._snapshot = None
        self._by_pod.clear()
        self._unknown.clear()
        self._held = HeldAmounts.nothing_of(node.sizes)
        for pod in self.pods.values():
            self._count(pod)

    def add_pod(self, pod: PodInfo) -> None:
        """Count a pod, instead of what was known of it before."""
        self._uncount(pod.id.uid)
        self.pods[pod.id.uid] = pod
        self._count(pod)

    def remove_pod(self, uid: str) -> None:
        """Count a pod no more."""
        self._uncount(uid)
        self.pods.pop(uid, None)

    def snapshot(self) -> NodeSnapshot:
        """Return the node with what is free now; the same object for as long as nothing changes."""
        if self._snapshot is None:
            self._snapshot = self._snapshot_of(self._unknown, self._held)
        return self._snapshot

    def snapshot_without(self, uid: str) -> NodeSnapshot:
        """Return the node with what would be free if one pod held nothing."""
        if uid not in self.pods:
            return self.snapshot()
        held = self._held.subtract(self._by_pod.get(uid, {}))
        return self._snapshot_of(self._unknown - {uid}, held)

    def holding(self, uid: str) -> Taken | None:
        """Return what a pod holds; ``None`` where that is simulated or the pod is not here."""
        return self._by_pod.get(uid)

    def simulate(self) -> Mapping[str, PodCards]:
        """Return by UID the cards of pods where they are simulated."""
        return self._simulate(self._unknown, self._held)[0]

    def _snapshot_of(self, unknown: AbstractSet[str], held: HeldAmounts) -> NodeSnapshot:
        return NodeSnapshot(self.node, self._simulate(unknown, held)[1].free)

    def _simulate(
        self, unknown: AbstractSet[str], held: HeldAmounts
    ) -> tuple[Mapping[str, PodCards], HeldAmounts]:
        """Place some pods as the kubelet admits them, beside what is *held*; then what is held."""
        cards = {}
        for pod in sorted((self.pods[uid] for uid in unknown), key=lambda pod: pod.rank):
            cards[pod.id.uid], taken = simulate(pod, self.node, held.free, self._policy)
            held = held.add(taken)
        return cards, held

    def _count(self, pod: PodInfo) -> None:
        self._snapshot = None
        if not self.node.cards:
            return
        cards = known_cards(pod, self.node)
        if cards is None:
            self._unknown.add(pod.id.uid)
            return
        taken = self._by_pod[pod.id.uid] = taken_on(pod.demand, cards)
        self._held = self._held.add(taken)

    def _uncount(self, uid: str) -> None:
        self._snapshot = None
        self._unknown.discard(uid)
        self._held = self._held.subtract(self._by_pod.pop(uid, {}))
