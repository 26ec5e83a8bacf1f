"""What is free on one node: its cards, less what each of its pods holds. No I/O.

Kept up event by event. What a pod holds is known by its record or by a scheduler's choice; pods of
which neither tells are simulated, in the order in which the kubelet admits them, on what the
others leave. So the same pods have the same room, in whatever order the events came.
"""

from collections.abc import Mapping
from operator import add, sub

from contract.resource import RESOURCES, Counts
from placement.cluster.holdings import (
    PodCards,
    Taken,
    View,
    known_cards,
    less,
    simulate,
    simulate_cards,
    taken_on,
)
from placement.cluster.nodes import Node
from placement.pods import PodInfo
from placement.scoring import Policy


class Room:
    """The room on one node. Not safe to share between threads."""

    __slots__ = ("_held", "_policy", "_unknown", "_used", "_view", "node", "pods")

    def __init__(self, name: str, policy: Policy) -> None:
        """Start with a node of which nothing is known yet.

        Args:
            name: of the node.
            policy: which card a share prefers, to simulate as the agent does.
        """
        self.node = Node(name)
        self.pods: dict[str, PodInfo] = {}
        self._policy = policy
        self._held: dict[str, Taken] = {}
        self._unknown: set[str] = set()
        self._used: list[list[int]] = []
        self._view: View | None = None

    def set_node(self, node: Node) -> None:
        """Take what the node is now; who holds what is worked out anew."""
        self.node = node
        self._view = None
        self._held.clear()
        self._unknown.clear()
        self._used = [[0] * len(RESOURCES) for _ in node.cards]
        for pod in self.pods.values():
            self._count(pod)

    def put(self, pod: PodInfo) -> None:
        """Count a pod, instead of what was known of it before."""
        self._uncount(pod.id.uid)
        self.pods[pod.id.uid] = pod
        self._count(pod)

    def drop(self, uid: str) -> None:
        """Count a pod no more."""
        self._uncount(uid)
        self.pods.pop(uid, None)

    def view(self) -> View:
        """Return the node with what is free now; the same object for as long as nothing changes."""
        if self._view is None:
            self._view = self._left(self._used, [self.pods[uid] for uid in self._unknown])
        return self._view

    def view_without(self, uid: str) -> View:
        """Return the node with what would be free if one pod held nothing."""
        if uid not in self.pods:
            return self.view()
        used = [row.copy() for row in self._used]
        for place, *counts in self._held.get(uid, ()):
            used[place] = list(map(sub, used[place], counts))
        return self._left(used, [self.pods[each] for each in self._unknown if each != uid])

    def holding(self, uid: str) -> Taken | None:
        """Return what a pod holds; ``None`` where that is simulated or the pod is not here."""
        return self._held.get(uid)

    def simulated(self) -> Mapping[str, tuple[PodCards, Taken]]:
        """Return by UID what pods hold where that is simulated: cards of containers, and counts."""
        free = list(self._left(self._used, []).free)
        found = {}
        unknown = [self.pods[uid] for uid in self._unknown]
        for pod in sorted(unknown, key=lambda pod: pod.rank):
            found[pod.id.uid] = simulate_cards(pod, self.node, free, self._policy)
            _take(free, found[pod.id.uid][1])
        return found

    def _left(self, used: list[list[int]], unknown: list[PodInfo]) -> View:
        cards = self.node.cards
        free = [less(card.places, row) for card, row in zip(cards, used, strict=True)]
        for pod in sorted(unknown, key=lambda pod: pod.rank):
            _take(free, simulate(pod, self.node, free, self._policy))
        return View(self.node, tuple(free))

    def _count(self, pod: PodInfo) -> None:
        self._view = None
        if not self.node.cards:
            return
        cards = known_cards(pod, self.node)
        if cards is None:
            self._unknown.add(pod.id.uid)
            return
        self._held[pod.id.uid] = taken_on(pod.demand, cards)
        for place, *counts in self._held[pod.id.uid]:
            self._used[place] = list(map(add, self._used[place], counts))

    def _uncount(self, uid: str) -> None:
        self._view = None
        self._unknown.discard(uid)
        for place, *counts in self._held.pop(uid, ()):
            self._used[place] = list(map(sub, self._used[place], counts))


def _take(free: list[Counts], taken: Taken) -> None:
    for place, *counts in taken:
        free[place] = less(free[place], counts)
