"""One pod's way to a node, as ``pkg/scheduler/schedule_one.go`` goes it.

Filter by counts, then the extenders one after the other; scores where more than one node is
left; the best of them, by chance among equals.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from simulator.client import Json
from simulator.scheduler.cache import NodeInfo
from simulator.scheduler.configuration import SchedulerSettings
from simulator.scheduler.endpoint import ExtenderError
from simulator.scheduler.events import EXTENDER
from simulator.scheduler.extender import MAX_EXTENDER_PRIORITY, Extender
from simulator.scheduler.fit import Rejection, rejection
from simulator.scheduler.scoring import MAX_NODE_SCORE, score

_log = logging.getLogger(__name__)
_MIN_NODES = 100
_MIN_PERCENTAGE = 5


class NoNodesAvailable(Exception):
    """There are no nodes at all."""

    def __init__(self) -> None:
        super().__init__("no nodes available to schedule pods")


class Unschedulable(Exception):
    """No node is left.

    Attributes:
        rejections: why, by node.
        plugins: who rejected.
    """

    def __init__(
        self, nodes: int, rejections: Mapping[str, Rejection], plugins: frozenset[str]
    ) -> None:
        counts = Counter(reason for each in rejections.values() for reason in each.reasons)
        reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
        said = f" {reasons}." if reasons else ""
        super().__init__(f"0/{nodes} nodes are available:{said}")
        self.rejections = rejections
        self.plugins = plugins


@dataclass(frozen=True, slots=True)
class Choice:
    """A node, and how many others there were."""

    node: str
    feasible: int


class Cycle:
    """Decides for one pod after the other.

    Args:
        settings: of the scheduler.
        extenders: in the order in which they are asked.
        random: of the choice among equal nodes.
    """

    def __init__(
        self, settings: SchedulerSettings, extenders: Sequence[Extender], random: Random
    ) -> None:
        self._settings = settings
        self._extenders = extenders
        self._random = random
        self._start = 0

    def choose(self, pod: Json, nodes: Sequence[NodeInfo]) -> Choice:
        """Choose a node for *pod*.

        Raises:
            NoNodesAvailable: there are none.
            Unschedulable: none is left.
            ExtenderError: an extender that must be heard failed.
        """
        if not nodes:
            raise NoNodesAvailable
        rejections: dict[str, Rejection] = {}
        found = self._fitting(pod, nodes, rejections)
        self._start = (self._start + len(found) + len(rejections)) % len(nodes)
        plugins = {each.plugin for each in rejections.values()}
        left = self._pass_extenders(pod, found, rejections)
        if not left:
            plugins |= {EXTENDER} if found else set()
            raise Unschedulable(len(nodes), rejections, frozenset(plugins))
        if len(left) == 1:
            return Choice(left[0].name, 1)
        scores = self._scores(pod, left)
        best = max(scores.values())
        names = [name for name, each in scores.items() if each == best]
        return Choice(self._random.choice(names), len(left))

    def _fitting(
        self, pod: Json, nodes: Sequence[NodeInfo], rejections: dict[str, Rejection]
    ) -> Sequence[NodeInfo]:
        """Return nodes with room by count, at most as many as extenders are asked about.

        The search goes on where that for the pod before ended, so that all nodes get their turn.
        """
        wanted = feasible_nodes_to_find(len(nodes), self._settings.percentage)
        found: list[NodeInfo] = []
        for index in range(len(nodes)):
            info = nodes[(self._start + index) % len(nodes)]
            rejected = rejection(info.node, pod, info.used, self._settings.ignored)
            if rejected:
                rejections[info.name] = rejected
                continue
            found.append(info)
            if len(found) == wanted:
                break
        return found

    def _pass_extenders(
        self, pod: Json, nodes: Sequence[NodeInfo], rejections: dict[str, Rejection]
    ) -> Sequence[NodeInfo]:
        for extender in self._extenders:
            if not nodes:
                break
            if not extender.is_interested(pod):
                continue
            try:
                said = extender.filter(pod, nodes)
            except ExtenderError as error:
                if not extender.settings.ignorable:
                    raise
                _log.info(
                    "skipping an extender",
                    extra={"url": extender.settings.url_prefix, "reason": str(error)},
                )
                continue
            for name, reason in said.failed.items():
                rejections[name] = Rejection(EXTENDER, (reason,), resolvable=True)
            # Where a node is in both, that it cannot be helped counts.
            for name, reason in said.unresolvable.items():
                rejections[name] = Rejection(EXTENDER, (reason,), resolvable=False)
            nodes = said.nodes
        return nodes

    def _scores(self, pod: Json, nodes: Sequence[NodeInfo]) -> dict[str, int]:
        scored, most = self._settings.scored, self._settings.most_allocated
        scores = {
            each.name: score(pod, each.node, each.pods, scored, most_allocated=most)
            for each in nodes
        }
        for extender in self._extenders:
            if not extender.is_interested(pod):
                continue
            try:
                given = extender.prioritize(pod, nodes)
            except ExtenderError as error:
                # Others decide then.
                _log.info(
                    "an extender gives no scores",
                    extra={"url": extender.settings.url_prefix, "reason": str(error)},
                )
                continue
            for name in scores.keys() & given.keys():
                scores[name] += given[name] * (MAX_NODE_SCORE // MAX_EXTENDER_PRIORITY)
        return scores


def feasible_nodes_to_find(nodes: int, percentage: int) -> int:
    """Return after how many fitting nodes the search ends (``numFeasibleNodesToFind``).

    Args:
        nodes: how many there are.
        percentage: ``percentageOfNodesToScore``; 0 lets the number of nodes decide.
    """
    if nodes < _MIN_NODES:
        return nodes
    percentage = percentage or max(50 - nodes // 125, _MIN_PERCENTAGE)
    return max(nodes * percentage // 100, _MIN_NODES)
