"""Which nodes of the cluster fit a pod, and their scores. No I/O.

Decisions are cached for each pod class and node, and dropped when the allocations of the node
change. In a burst of equal pods, each pod costs only the nodes that the one before it has changed.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from placement.cluster.fit import Unschedulable, check
from placement.cluster.holdings import NodeSnapshot
from placement.cluster.nodes import parse_node, parse_template
from placement.pods import PodClass, PodInfo
from placement.scoring import Policy
from scheduler.score import score
from scheduler.state import State

_MOST_CLASSES = 64
UNKNOWN = Unschedulable("the node is not known yet", unresolvable=False)
ELSEWHERE = Unschedulable("other pods are evicted for it on another node", unresolvable=False)
PROMISED_ELSEWHERE = Unschedulable(
    "an admission check keeps cards of another node for it", unresolvable=False
)

NodeDecision: TypeAlias = int | Unschedulable
"""The decision about one node: its score, 0 to 10, or why the pod does not fit."""

Json: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FilterResult:
    """The nodes of a request, by decision.

    Attributes:
        fitting: the nodes on which the pod fits, in the order of the request.
        failed: nodes on which it does not fit, with reasons; freeing cards may help.
        unresolvable: nodes on which it does not fit, with reasons; freeing cards would not help.
        version: of the state before the decisions: what has changed since may not count in them.
    """

    fitting: tuple[str, ...]
    failed: dict[str, str] = field(default_factory=dict)
    unresolvable: dict[str, str] = field(default_factory=dict)
    version: int = field(default=0, compare=False)

    def titled(self, title: str) -> "FilterResult":
        """Return a copy with *title* before each reason."""
        if not self.failed and not self.unresolvable:
            return self
        texts = {
            text: title + text for text in {*self.failed.values(), *self.unresolvable.values()}
        }
        return FilterResult(
            self.fitting,
            {name: texts[text] for name, text in self.failed.items()},
            {name: texts[text] for name, text in self.unresolvable.items()},
        )


@dataclass(slots=True)
class _Table:
    """The decisions for one pod class, by node, at one version of the cluster."""

    version: int
    decided: dict[str, NodeDecision] = field(default_factory=dict)


class Decisions:
    """Decides about nodes for pods."""

    def __init__(self, state: State, node_policy: Policy = Policy.BINPACK) -> None:
        """Start without decisions.

        *node_policy* is which node a pod prefers if its author has no wish.
        """
        self._state = state
        self._node_policy = node_policy
        self._tables: OrderedDict[PodClass, _Table] = OrderedDict()

    def filter(
        self, pod: PodInfo | None, nodes: Sequence[str], objects: Sequence[Json] | None = None
    ) -> FilterResult:
        """Return the *nodes* on which a pod fits.

        *pod* is ``None`` if no cards are chosen for it here: it fits on all nodes. *objects* are
        the nodes if the request has whole ones.
        """
        if pod is None:
            return FilterResult(tuple(nodes))
        version = self._state.version
        fitting: list[str] = []
        failed: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        for name, decision in zip(nodes, self._decide(pod, nodes, objects), strict=True):
            if isinstance(decision, int):
                fitting.append(name)
            else:
                (unresolvable if decision.unresolvable else failed)[name] = decision.reason
        return FilterResult(tuple(fitting), failed, unresolvable, version)

    def scores(
        self, pod: PodInfo | None, nodes: Sequence[str], objects: Sequence[Json] | None = None
    ) -> Sequence[int]:
        """Return the score of each node, 0 if the pod does not fit; arguments as :meth:`filter`."""
        if pod is None:
            return [0] * len(nodes)
        decisions = self._decide(pod, nodes, objects)
        return [each if isinstance(each, int) else 0 for each in decisions]

    def _decide(
        self, pod: PodInfo, nodes: Sequence[str], objects: Sequence[Json] | None
    ) -> list[NodeDecision]:
        with self._state.lock:
            if objects is not None:
                return [self._decide_object(pod, obj) for obj in objects]
            pod_class = pod.pod_class
            cached = self._cached(pod_class)
            apart = self._state.assumed_on(pod.id.uid)
            nominations = self._state.nominations
            if nominations.nodes:
                own = nominations.find(pod.id.uid)
                if own is not None:
                    return [
                        self._decide_apart(pod, name) if name == own.node else ELSEWHERE
                        for name in nodes
                    ]
                promised = nominations.promised_nodes(pod.id.uid)
                if promised:
                    return [
                        self._decide_apart(pod, name) if name in promised else PROMISED_ELSEWHERE
                        for name in nodes
                    ]
                apart = apart | nominations.nodes
            return [
                self._decide_apart(pod, name)
                if name in apart
                else cached[name]
                if name in cached
                else self._decide_and_cache(pod_class, name, cached)
                for name in nodes
            ]

    def _cached(self, pod_class: PodClass) -> dict[str, NodeDecision]:
        """Return the decisions for a pod class that are still valid."""
        table = self._tables.setdefault(pod_class, _Table(self._state.version))
        self._tables.move_to_end(pod_class)
        if len(self._tables) > _MOST_CLASSES:
            self._tables.popitem(last=False)
        for name in self._state.changed_since(table.version):
            table.decided.pop(name, None)
        table.version = self._state.version
        return table.decided

    def _decide_and_cache(
        self, pod_class: PodClass, name: str, cached: dict[str, NodeDecision]
    ) -> NodeDecision:
        allocations = self._state.allocations(name)
        if allocations is None:
            return UNKNOWN  # not cached: a client may invent any number of names
        cached[name] = self.decide_node(pod_class, allocations.snapshot())
        return cached[name]

    def _decide_apart(self, pod: PodInfo, name: str) -> NodeDecision:
        """Decide about a node that this pod finds in another way than those of its class.

        It is assumed there itself, after an uncertain Binding, or cards are kept there.
        """
        allocations = self._state.allocations(name)
        if allocations is None:
            return UNKNOWN
        snapshot = self._state.snapshot_for(pod.id.uid, allocations)
        return self.decide_node(pod.pod_class, snapshot)

    def _decide_object(self, pod: PodInfo, obj: Json) -> NodeDecision:
        """Decide about a node object; known pods count if it has the cards that are known."""
        node = parse_template(obj, self._state.names) or parse_node(obj, self._state.names)
        allocations = self._state.allocations(node.name)
        if allocations is None or node.cards != allocations.node.cards:
            return self.decide_node(pod.pod_class, NodeSnapshot(node, node.sizes))
        return self.decide_node(
            pod.pod_class,
            NodeSnapshot(node, self._state.snapshot_for(pod.id.uid, allocations).free),
        )

    def decide_node(self, pod_class: PodClass, snapshot: NodeSnapshot) -> NodeDecision:
        """Decide about one node."""
        fit = check(pod_class, snapshot)
        if isinstance(fit, Unschedulable):
            return fit
        wish = pod_class.wishes.node_policy
        policy = Policy(wish) if wish else self._node_policy
        return score(pod_class, snapshot, fit, policy)
