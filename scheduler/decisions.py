"""Which nodes fit a pod and how good they are, over the whole cluster. No I/O.

Decisions are remembered by node for each shape of pod, and forgotten when the room of that node
changes: of a burst of equal pods, each costs the nodes that the one before it has changed.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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


class Verdict(NamedTuple):
    """The decision about one node.

    Attributes:
        score: 0 to 10; ``None`` where the pod does not fit.
        refusal: why not.
    """

    score: int | None
    refusal: Unschedulable | None = None


@dataclass(frozen=True, slots=True)
class Filtered:
    """The nodes asked about, by what was decided.

    Attributes:
        fitting: those on which the pod fits, in the order in which they were asked about.
        failed: the others, and why; freeing cards may help.
        unresolvable: the others, and why; freeing cards would not help.
    """

    fitting: tuple[str, ...]
    failed: dict[str, str] = field(default_factory=dict)
    unresolvable: dict[str, str] = field(default_factory=dict)

    def titled(self, title: str) -> "Filtered":
        """Return the same with a title before each reason."""
        if not self.failed and not self.unresolvable:
            return self
        texts = {
            text: title + text for text in {*self.failed.values(), *self.unresolvable.values()}
        }
        return Filtered(
            self.fitting,
            {name: texts[text] for name, text in self.failed.items()},
            {name: texts[text] for name, text in self.unresolvable.items()},
        )


@dataclass(slots=True)
class _Table:
    """What was decided for one shape of pod, by node, as of one version of the cluster."""

    version: int
    verdicts: dict[str, Verdict] = field(default_factory=dict)


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

    def filter(self, pod: PodInfo | None, nodes: Sequence[str]) -> Filtered:
        """Decide on which of *nodes* a pod fits; without a pod that asks for GPUs, on all."""
        return Filtered(tuple(nodes)) if pod is None else _sorted(nodes, self._decide(pod, nodes))

    def scores(self, pod: PodInfo | None, nodes: Sequence[str]) -> Sequence[int]:
        """Return the score of each of *nodes*; 0 where the pod does not fit."""
        if pod is None:
            return [0] * len(nodes)
        return [verdict.score or 0 for verdict in self._decide(pod, nodes)]

    def filter_objects(self, pod: PodInfo | None, nodes: Sequence[Mapping[str, Any]]) -> Filtered:
        """Decide on which of some nodes a pod fits, by the objects that were sent."""
        names = [obj["metadata"]["name"] for obj in nodes]
        if pod is None:
            return Filtered(tuple(names))
        return _sorted(names, self._decide_by_objects(pod, nodes))

    def score_objects(self, pod: PodInfo | None, nodes: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the score of each of some nodes, by the objects that were sent."""
        if pod is None:
            return [0] * len(nodes)
        return [verdict.score or 0 for verdict in self._decide_by_objects(pod, nodes)]

    def _decide(self, pod: PodInfo, nodes: Sequence[str]) -> list[Verdict]:
        with self._state.lock:
            known = self._known(pod.pod_class)
            in_doubt = self._state.assumed_on(pod.id.uid)
            return [
                self._judge_for_itself(pod, name)
                if name in in_doubt
                else known.get(name) or self._judge(pod.pod_class, name, known)
                for name in nodes
            ]

    def _decide_by_objects(self, pod: PodInfo, nodes: Sequence[Mapping[str, Any]]) -> list[Verdict]:
        with self._state.lock:
            return [self._judge_object(pod, obj) for obj in nodes]

    def _known(self, shape: PodClass) -> dict[str, Verdict]:
        """Return what was decided for pods of one shape and still holds."""
        table = self._tables.setdefault(shape, _Table(self._state.version))
        self._tables.move_to_end(shape)
        if len(self._tables) > _MOST_SHAPES:
            self._tables.popitem(last=False)
        for name in self._state.changed_since(table.version):
            table.verdicts.pop(name, None)
        table.version = self._state.version
        return table.verdicts

    def _judge(self, shape: PodClass, name: str, known: dict[str, Verdict]) -> Verdict:
        room = self._state.room(name)
        if room is None:
            return Verdict(None, UNKNOWN)  # not remembered: a sender may make up any number
        known[name] = self.judge(shape, room.snapshot())
        return known[name]

    def _judge_for_itself(self, pod: PodInfo, name: str) -> Verdict:
        """Decide about the node where a pod counts already: its earlier Binding is in doubt."""
        room = self._state.room(name)
        if room is None:
            return Verdict(None, UNKNOWN)
        return self.judge(pod.pod_class, room.snapshot_without(pod.id.uid))

    def _judge_object(self, pod: PodInfo, obj: Mapping[str, Any]) -> Verdict:
        """Decide by an object: the pods that are known there count on the cards that it names."""
        node = parse_node(obj, self._names)
        room = self._state.room(node.name)
        if room is None or node.cards != room.node.cards:
            return self.judge(pod.pod_class, NodeSnapshot(node, node.sizes))
        return self.judge(pod.pod_class, NodeSnapshot(node, room.snapshot_without(pod.id.uid).free))

    def judge(self, shape: PodClass, view: NodeSnapshot) -> Verdict:
        """Decide about one node."""
        fit = check(shape, view)
        if isinstance(fit, Unschedulable):
            return Verdict(None, fit)
        wished = shape.wishes.node_policy
        policy = Policy(wished) if wished else self._node_policy
        return Verdict(score(shape, view, fit, policy))


def _sorted(names: Sequence[str], verdicts: Sequence[Verdict]) -> Filtered:
    """Sort nodes by what was decided about each."""
    fitting: list[str] = []
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    for name, (_, refusal) in zip(names, verdicts, strict=True):
        if refusal is None:
            fitting.append(name)
        else:
            (unresolvable if refusal.unresolvable else failed)[name] = refusal.reason
    return Filtered(tuple(fitting), failed, unresolvable)
