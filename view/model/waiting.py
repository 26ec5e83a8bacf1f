"""Why a pod has no node yet, in one line; and pods that wait for the same. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from placement.cluster.fit import Unschedulable
from placement.cluster.nodes import Problem
from placement.pods import PodClass
from view.model.constraints import Constraints
from view.model.occupancy import Occupancy
from view.model.pods import PodFacts
from view.model.reports import Gap, PodReport
from view.model.verdicts import why_not_on
from view.model.words import clamp, count_of, name_some, summarize

GATED = "SchedulingGated"


@dataclass(frozen=True, slots=True)
class Group:
    """Pods of one owner that ask for the same and are kept by the same.

    Attributes:
        pods: the oldest first.
    """

    pods: tuple[PodReport, ...]

    @property
    def name(self) -> str:
        """How they are called: by their owner, or by the first of them."""
        first = self.pods[0]
        if len(self.pods) == 1:
            return f"{first.namespace}/{first.name}"
        if first.owner:
            kind, _, name = first.owner.partition("/")
            return f"{kind} {first.namespace}/{name}: {len(self.pods)} pods"
        return f"{first.namespace}/{first.name} and {len(self.pods) - 1} more"


def group_pods(pods: Sequence[PodReport]) -> list[Group]:
    """Return pods by owner and cause, the group with the oldest first."""
    groups: dict[tuple[object, ...], list[PodReport]] = {}
    for pod in sorted(pods, key=lambda each: (each.created, each.namespace, each.name)):
        asks = tuple((each.cores, each.blocks) for each in pod.containers)
        why = pod.why.replace(pod.name, "")
        groups.setdefault((pod.namespace, pod.owner, asks, why), []).append(pod)
    return [Group(tuple(each)) for each in groups.values()]


class Waiting:
    """Answers for one moment; equal pods are looked at once."""

    def __init__(self, nodes: Sequence[Occupancy], gaps: Sequence[Gap]) -> None:
        """Take the cluster as it is."""
        self._nodes = nodes
        self._gaps = gaps
        self._known: dict[tuple[PodClass, Constraints], tuple[tuple[str, ...], str]] = {}

    def why(self, facts: PodFacts) -> str:
        """Return why a pod that is bound to no node is not."""
        reason, message = facts.unscheduled
        if facts.report.deleting:
            return "it is being deleted"
        if facts.placed.errors:
            return facts.placed.errors[0]
        if reason == GATED:
            return f"{GATED}: {message}"
        return self._by_nodes(facts, message)

    def answers(self, facts: PodFacts) -> tuple[tuple[str, ...], str]:
        """Return the nodes where a pod fits, and why it does not on the others."""
        key = facts.placed.pod_class, facts.constraints  # equal for equal pods
        found = self._known.get(key)
        if found is None:
            refusals = [(each.view.node.name, why_not_on(facts, each)) for each in self._nodes]
            found = (
                tuple(name for name, refusal in refusals if refusal is None),
                self._in_words([refusal for _, refusal in refusals if refusal is not None]),
            )
            self._known[key] = found
        return found

    def _in_words(self, refusals: Sequence[Unschedulable]) -> str:
        """Return the reasons; nodes that serve no GPU pod at all are counted as one."""
        problems = {problem.value for problem in Problem}
        others = [clamp(each.reason) for each in refusals if each.reason not in problems]
        unserved = len(refusals) - len(others)
        served = f"{count_of(unserved, 'node')} without a working agent" if unserved else ""
        return "; ".join(filter(None, (summarize(others), served)))

    def _by_nodes(self, facts: PodFacts, message: str) -> str:
        if not self._nodes:
            return self._no_nodes()
        nodes, reasons = self.answers(facts)
        if not nodes:
            return reasons
        said = f': "{message}"' if message else " has not said anything yet"
        return f"cards are free for it on {name_some(nodes)}; {facts.report.scheduler}{said}"

    def _no_nodes(self) -> str:
        for gap in self._gaps:
            if gap.what == "nodes":
                return f"unknown: nodes cannot be read ({gap.reason})"
        return "no node of this cluster has GPUs"
