"""Which nodes fit a pod and how good they are, over the whole cluster. No I/O.

Decisions are remembered by node for each shape of pod, and forgotten when the allocations of
that node change: of a burst of equal pods, each costs the nodes that the one before it has changed.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from contract.names import Names
from placement.cluster.fit import Unschedulable, check
from placement.cluster.holdings import NodeSnapshot
from placement.cluster.nodes import parse_node
from placement.pods import PodClass, PodInfo
from placement.scoring import Policy
from scheduler.score import score
from scheduler.state import State

_MOST_SHAPES = 64
UNKNOWN = Unschedulable("the node is not known yet", unresolvable=False)


NodeDecision: TypeAlias = int | Unschedulable
"""The decision about one node: its score, 0 to 10, or why the pod does not fit."""

Json: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FilterResult:
    """The nodes asked about, by what was decided.

    Attributes:
        fitting: those on which the pod fits, in the order in which they were asked about.
        failed: the others, and why; freeing cards may help.
        unresolvable: the others, and why; freeing cards would not help.
    """

    fitting: tuple[str, ...]
    failed: dict[str, str] = field(default_factory=dict)
    unresolvable: dict[str, str] = field(default_factory=dict)

    def titled(self, title: str) -> "FilterResult":
        """Return the same with a title before each reason."""
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
    """What was decided for one shape of pod, by node, as of one version of the cluster."""

    version: int
    decided: dict[str, NodeDecision] = field(default_factory=dict)


class Decisions:
    """Decides about nodes for pods."""

    def __init__(self, state: State, names: Names, node_policy: Policy = Policy.BINPACK) -> None:
        """Decide on *state*.

        Args:
            state: the cluster.
            names: the contract's names, for nodes that come whole.
            node_policy: which node a pod prefers where its author has no wish.
        """
        self._state = state
        self._names = names
        self._node_policy = node_policy
        self._tables: OrderedDict[PodClass, _Table] = OrderedDict()

    def filter(
        self, pod: PodInfo | None, nodes: Sequence[str], objects: Sequence[Json] | None = None
    ) -> FilterResult:
        """Decide on which of *nodes* a pod fits; without a pod that asks for GPUs, on all.

        Args:
            pod: the pod.
            nodes: their names.
            objects: what to decide by, where the nodes were sent whole.
        """
        if pod is None:
            return FilterResult(tuple(nodes))
        fitting: list[str] = []
        failed: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        for name, decision in zip(nodes, self._decide(pod, nodes, objects), strict=True):
            if isinstance(decision, int):
                fitting.append(name)
            else:
                (unresolvable if decision.unresolvable else failed)[name] = decision.reason
        return FilterResult(tuple(fitting), failed, unresolvable)

    def scores(
        self, pod: PodInfo | None, nodes: Sequence[str], objects: Sequence[Json] | None = None
    ) -> Sequence[int]:
        """Return the score of each of *nodes*, as :meth:`filter`; 0 where the pod does not fit."""
        if pod is None:
            return [0] * len(nodes)
        decisions = self._decide(pod, nodes, objects)
        return [each if isinstance(each, int) else 0 for each in decisions]

    def _decide(
        self, pod: PodInfo, nodes: Sequence[str], objects: Sequence[Json] | None
    ) -> list[NodeDecision]:
        with self._state.lock:
            if objects is not None:
                return [self._judge_object(pod, obj) for obj in objects]
            shape = pod.pod_class
            known = self._known(shape)
            in_doubt = self._state.assumed_on(pod.id.uid)
            return [
                self._judge_for_itself(pod, name)
                if name in in_doubt
                else known[name]
                if name in known
                else self._judge(shape, name, known)
                for name in nodes
            ]

    def _known(self, shape: PodClass) -> dict[str, NodeDecision]:
        """Return what was decided for pods of one shape and still holds."""
        table = self._tables.setdefault(shape, _Table(self._state.version))
        self._tables.move_to_end(shape)
        if len(self._tables) > _MOST_SHAPES:
            self._tables.popitem(last=False)
        for name in self._state.changed_since(table.version):
            table.decided.pop(name, None)
        table.version = self._state.version
        return table.decided

    def _judge(self, shape: PodClass, name: str, known: dict[str, NodeDecision]) -> NodeDecision:
        held = self._state.allocations(name)
        if held is None:
            return UNKNOWN  # not remembered: a sender may make up any number
        known[name] = self.decide_node(shape, held.snapshot())
        return known[name]

    def _judge_for_itself(self, pod: PodInfo, name: str) -> NodeDecision:
        """Decide about the node where a pod counts already: its earlier Binding is in doubt."""
        held = self._state.allocations(name)
        if held is None:
            return UNKNOWN
        return self.decide_node(pod.pod_class, held.snapshot_without(pod.id.uid))

    def _judge_object(self, pod: PodInfo, obj: Json) -> NodeDecision:
        """Decide by an object: the pods that are known there count on the cards that it names."""
        node = parse_node(obj, self._names)
        held = self._state.allocations(node.name)
        if held is None or node.cards != held.node.cards:
            return self.decide_node(pod.pod_class, NodeSnapshot(node, node.sizes))
        return self.decide_node(
            pod.pod_class, NodeSnapshot(node, held.snapshot_without(pod.id.uid).free)
        )

    def decide_node(self, shape: PodClass, snapshot: NodeSnapshot) -> NodeDecision:
        """Decide about one node."""
        fit = check(shape, snapshot)
        if isinstance(fit, Unschedulable):
            return fit
        wished = shape.wishes.node_policy
        policy = Policy(wished) if wished else self._node_policy
        return score(shape, snapshot, fit, policy)
