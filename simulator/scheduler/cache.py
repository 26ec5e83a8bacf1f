"""What a scheduler believes of the cluster: nodes, pods, and pods on their way to a node. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simulator.client import Json
from simulator.scheduler.fit import node_of, pod_requests


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node and the pods on it, those on their way included."""

    node: Json
    pods: Sequence[Json] = ()

    @property
    def name(self) -> str:
        """The node's own."""
        return str(self.node["metadata"]["name"])

    @property
    def used(self) -> Counter[str]:
        """What the pods take of each extended resource."""
        used: Counter[str] = Counter()
        for pod in self.pods:
            used += pod_requests(pod)
        return used


class Cache:
    """Nodes and pods by what was seen last, and what was decided since.

    An assumed pod takes room on its node before the API server knows of it, until the watch
    shows it there or :meth:`forget`.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}
        self._assumed: dict[str, str] = {}

    def is_assumed(self, uid: str) -> bool:
        """Return whether a pod is on its way to a node."""
        return uid in self._assumed

    def assume(self, uid: str, node: str) -> None:
        """Take room for a pod."""
        self._assumed[uid] = node

    def forget(self, uid: str) -> bool:
        """Free the room of an assumed pod; return whether it was assumed."""
        return self._assumed.pop(uid, None) is not None

    def set_pod(self, uid: str, pod: Json) -> None:
        """Keep the newest version of a pod; one with a node is no longer assumed."""
        self.pods[uid] = pod
        if node_of(pod):
            self._assumed.pop(uid, None)

    def drop_pod(self, uid: str) -> None:
        """Forget a pod that is gone or has ended."""
        self.pods.pop(uid, None)
        self._assumed.pop(uid, None)

    def snapshot(self) -> Sequence[NodeInfo]:
        """Return all nodes by name, with what is on them."""
        placed: dict[str, list[Json]] = {name: [] for name in self.nodes}
        for uid, pod in self._placed():
            placed.setdefault(self._assumed.get(uid) or node_of(pod), []).append(pod)
        return [NodeInfo(self.nodes[name], tuple(placed[name])) for name in sorted(self.nodes)]

    def _placed(self) -> Iterable[tuple[str, Json]]:
        for uid, pod in self.pods.items():
            if node_of(pod) or uid in self._assumed:
                yield uid, pod
