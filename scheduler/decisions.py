"""Which nodes fit a pod and how good they are, over the whole cluster. No I/O.

Decisions are remembered by node for each shape of pod, and forgotten when the room of that node
changes: of a burst of equal pods, each costs the nodes that the one before it has changed.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
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
        for_good: the others, and why; freeing cards would not help.
    """

    fitting: tuple[str, ...]
    failed: dict[str, str] = field(default_factory=dict)
    for_good: dict[str, str] = field(default_factory=dict)

    def titled(self, title: str) -> "Filtered":
        """Return the same with a title before each reason."""
        if not self.failed and not self.for_good:
            return self
        texts = {text: title + text for text in {*self.failed.values(), *self.for_good.values()}}
        return Filtered(
            self.fitting,
            {name: texts[text] for name, text in self.failed.items()},
            {name: texts[text] for name, text in self.for_good.items()},
        )


@dataclass(slots=True)
class _Table:
    """What was decided for one shape of pod, as of one version of the cluster.

    Scores are small integers, of which there is one object each. A list of hundreds of them is
    looked through in a tenth of the time that hundreds of verdicts take, all over the memory.

    Attributes:
        version: of the cluster.
        scores: of nodes on which it fits.
        refusals: of nodes on which it does not.
        answered: nodes that filter returned last, and their scores.
    """

    version: int
    scores: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, Unschedulable] = field(default_factory=dict)
    answered: tuple[Sequence[str], list[int]] = ((), [])

    def follow(self, version: int, changed: Iterable[str]) -> None:
        """Forget what was decided about nodes that have changed since."""
        for name in changed:
            self.scores.pop(name, None)
            self.refusals.pop(name, None)
            self.answered = (), []
        self.version = version


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
        names = tuple(nodes)
        if pod is None:
            return Filtered(names)
        with self._state.lock:
            table = self._table(pod.shape)
            scores, refusals = self._decide(pod, table, names)
            fits = bytearray(b"\1") * len(names)
            for place in refusals:
                fits[place] = 0
            result = Filtered(tuple(compress(names, fits)) if refusals else names)
            for place, refusal in refusals.items():
                _note(result, names[place], refusal)
            if not self._state.assumed_on(pod.uid):
                kept = list(compress(scores, fits))
                table.answered = result.fitting, kept  # type: ignore[assignment]  # no None is left
        return result

    def scores(self, pod: Pod | None, nodes: Sequence[str]) -> Sequence[int]:
        """Return the score of each of *nodes*; 0 where the pod does not fit."""
        if pod is None:
            return [0] * len(nodes)
        with self._state.lock:
            table = self._table(pod.shape)
            answered, scores = table.answered
            if answered is nodes and not self._state.assumed_on(pod.uid):
                return scores
            found, _ = self._decide(pod, table, nodes)
        return [score or 0 for score in found]

    def filter_objects(self, pod: Pod | None, nodes: Sequence[Mapping[str, Any]]) -> Filtered:
        """Decide on which of some nodes a pod fits, by the objects that were sent."""
        if pod is None:
            return Filtered(tuple([obj["metadata"]["name"] for obj in nodes]))
        with self._state.lock:
            verdicts = [(obj["metadata"]["name"], self._judge_object(pod, obj)) for obj in nodes]
        result = Filtered(tuple([name for name, (_, refusal) in verdicts if refusal is None]))
        for name, (_, refusal) in verdicts:
            if refusal is not None:
                _note(result, name, refusal)
        return result

    def score_objects(self, pod: Pod | None, nodes: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the score of each of some nodes, by the objects that were sent."""
        if pod is None:
            return [0] * len(nodes)
        with self._state.lock:
            return [self._judge_object(pod, obj).score or 0 for obj in nodes]

    def _decide(
        self, pod: Pod, table: _Table, nodes: Sequence[str]
    ) -> tuple[list[int | None], dict[int, Unschedulable]]:
        """Decide about each of *nodes*.

        Returns:
            The scores, ``None`` where the pod does not fit, and by place in *nodes* why not.
        """
        scores: list[int | None] = list(map(table.scores.get, nodes))
        refusals: dict[int, Unschedulable] = {}
        if None in set(scores):
            for place in [place for place, score in enumerate(scores) if score is None]:
                name = nodes[place]
                refusal = table.refusals.get(name)
                if refusal is None:
                    scores[place], refusal = self._judge(pod.shape, name, table)
                if refusal is not None:
                    refusals[place] = refusal
        in_doubt = [name for name in self._state.assumed_on(pod.uid) if name in nodes]
        for place in map(nodes.index, in_doubt):
            scores[place], refusal = self._judge_for_itself(pod, nodes[place])
            refusals.pop(place, None)
            if refusal is not None:
                refusals[place] = refusal
        return scores, dict(sorted(refusals.items())) if in_doubt else refusals

    def _table(self, shape: Shape) -> _Table:
        table = self._tables.get(shape)
        if table is None:
            table = self._tables[shape] = _Table(self._state.version)
            if len(self._tables) > _MOST_SHAPES:
                self._tables.popitem(last=False)
            return table
        self._tables.move_to_end(shape)
        table.follow(self._state.version, self._state.changed_since(table.version))
        return table

    def _judge(self, shape: Shape, name: str, table: _Table) -> Verdict:
        room = self._state.room(name)
        if room is None:
            return Verdict(None, UNKNOWN)  # not remembered: a sender may make up any number
        verdict = self.judge(shape, room.view())
        if verdict.score is not None:
            table.scores[name] = verdict.score
        elif verdict.refusal is not None:
            table.refusals[name] = verdict.refusal
        return verdict

    def _judge_for_itself(self, pod: Pod, name: str) -> Verdict:
        """Decide about the node where a pod counts already: its earlier Binding is in doubt."""
        room = self._state.room(name)
        if room is None:
            return Verdict(None, UNKNOWN)
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
            return Verdict(None, fit)
        wished = shape.wishes.node_policy
        policy = Policy(wished) if wished else self._node_policy
        return Verdict(score(shape, view, fit, policy))


def _note(result: Filtered, name: str, refusal: Unschedulable) -> None:
    (result.for_good if refusal.for_good else result.failed)[name] = refusal.reason
