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
from placement.cluster.holdings import View
from placement.cluster.nodes import parse_node
from placement.cluster.pods import Pod, Shape
from placement.scoring import Policy
from scheduler.score import score
from scheduler.state import State

_MOST_SHAPES = 64
UNKNOWN = Unschedulable("the node is not known yet", for_good=False)


class Verdict(NamedTuple):
    """The decision about one node.

    Attributes:
        score: 0 to 10; 0 where the pod does not fit.
        refusal: why not.
    """

    score: int
    refusal: Unschedulable | None = None


@dataclass(frozen=True, slots=True)
class Filtered:
    """The nodes asked about, by what was decided.

    Attributes:
        fitting: those on which the pod fits, in the order in which they were asked about.
        failed: the others, and why; freeing cards may help.
        for_good: the others, and why; freeing cards would not help.
    """

    fitting: list[str]
    failed: dict[str, str] = field(default_factory=dict)
    for_good: dict[str, str] = field(default_factory=dict)

    def titled(self, title: str) -> "Filtered":
        """Return the same with a title before each reason."""
        texts = {text: title + text for text in {*self.failed.values(), *self.for_good.values()}}
        return Filtered(
            self.fitting,
            {name: texts[text] for name, text in self.failed.items()},
            {name: texts[text] for name, text in self.for_good.items()},
        )


@dataclass(slots=True)
class _Table:
    """What was decided for one shape of pod, as of one version of the cluster."""

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
        self._tables: OrderedDict[Shape, _Table] = OrderedDict()

    def filter(self, pod: Pod | None, nodes: Sequence[str]) -> Filtered:
        """Decide on which of *nodes* a pod fits; without a pod that asks for GPUs, on all."""
        if pod is None:
            return Filtered(list(nodes))
        with self._state.lock:
            verdicts = self._verdicts(pod, nodes)
        refusals = [verdict.refusal for verdict in verdicts]
        if not any(refusals):
            return Filtered(list(nodes))
        pairs = list(zip(nodes, refusals, strict=True))
        result = Filtered([name for name, refusal in pairs if refusal is None])
        for name, refusal in pairs:
            if refusal is not None:
                _note(result, name, refusal)
        return result

    def scores(self, pod: Pod | None, nodes: Sequence[str]) -> list[int]:
        """Return the score of each of *nodes*; 0 where the pod does not fit."""
        if pod is None:
            return [0] * len(nodes)
        with self._state.lock:
            return [verdict.score for verdict in self._verdicts(pod, nodes)]

    def filter_objects(self, pod: Pod | None, nodes: Sequence[Mapping[str, Any]]) -> Filtered:
        """Decide on which of some nodes a pod fits, by the objects that were sent."""
        if pod is None:
            return Filtered([obj["metadata"]["name"] for obj in nodes])
        result = Filtered([])
        with self._state.lock:
            for obj in nodes:
                name = obj["metadata"]["name"]
                verdict = self._judge_object(pod, obj)
                if verdict.refusal is None:
                    result.fitting.append(name)
                else:
                    _note(result, name, verdict.refusal)
        return result

    def score_objects(self, pod: Pod | None, nodes: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the score of each of some nodes, by the objects that were sent."""
        if pod is None:
            return [0] * len(nodes)
        with self._state.lock:
            return [self._judge_object(pod, obj).score for obj in nodes]

    def _verdicts(self, pod: Pod, nodes: Sequence[str]) -> list[Verdict]:
        table = self._table(pod.shape)
        known = table.verdicts
        found: list[Verdict | None] = list(map(known.get, nodes))
        if not all(found):
            for place in [place for place, each in enumerate(found) if each is None]:
                found[place] = known[nodes[place]] = self._judge(pod.shape, nodes[place])
        for name in self._state.assumed_on(pod.uid):
            if name in nodes:
                found[nodes.index(name)] = self._judge_for_itself(pod, name)
        return found  # type: ignore[return-value]  # none is missing any more

    def _table(self, shape: Shape) -> _Table:
        table = self._tables.get(shape)
        if table is None:
            table = self._tables[shape] = _Table(self._state.version)
            if len(self._tables) > _MOST_SHAPES:
                self._tables.popitem(last=False)
            return table
        self._tables.move_to_end(shape)
        for name in self._state.changed_since(table.version):
            table.verdicts.pop(name, None)
        table.version = self._state.version
        return table

    def _judge(self, shape: Shape, name: str) -> Verdict:
        room = self._state.room(name)
        if room is None:
            return Verdict(0, UNKNOWN)
        return self.judge(shape, room.view())

    def _judge_for_itself(self, pod: Pod, name: str) -> Verdict:
        """Decide about the node where a pod counts already: its earlier Binding is in doubt."""
        room = self._state.room(name)
        if room is None:
            return Verdict(0, UNKNOWN)
        return self.judge(pod.shape, room.view_without(pod.uid))

    def _judge_object(self, pod: Pod, obj: Mapping[str, Any]) -> Verdict:
        """Decide by an object: the pods that are known there count on the cards that it names."""
        node = parse_node(obj, self._names)
        room = self._state.room(node.name)
        if room is None or node.cards != room.node.cards:
            return self.judge(pod.shape, View(node, node.all_free()))
        return self.judge(pod.shape, View(node, room.view_without(pod.uid).free))

    def judge(self, shape: Shape, view: View) -> Verdict:
        """Decide about one node."""
        fit = check(shape, view)
        if isinstance(fit, Unschedulable):
            return Verdict(0, fit)
        wished = shape.wishes.node_policy
        policy = Policy(wished) if wished else self._node_policy
        return Verdict(score(shape, view, fit, policy))


def _note(result: Filtered, name: str, refusal: Unschedulable) -> None:
    (result.for_good if refusal.for_good else result.failed)[name] = refusal.reason
