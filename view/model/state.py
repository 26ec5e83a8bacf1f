"""The cluster as objects of the API server come in, and all that can be asked about it. No I/O."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from contract.names import Names
from placement.cluster.node_allocations import ClusterAllocations
from placement.scoring import Policy
from view.model.events import ids_of, read_event
from view.model.manifest import fit_manifests
from view.model.node_report import POOL_LABELS, report_node
from view.model.nodes import NodeFacts, read_node
from view.model.occupancy import Occupancy, PodHolding, occupancy_of
from view.model.pod_report import report_pod
from view.model.pods import PodFacts, read_pod_facts
from view.model.reports import (
    ClusterReport,
    DeniedReport,
    EventReport,
    Gap,
    NodeReport,
    PodReport,
    Stage,
)
from view.model.stories import FitReport, PodStory
from view.model.story import tell_story
from view.model.waiting import Waiting

_REMEMBERED = timedelta(minutes=15)
"""For so long what was known of a pod is kept after its end."""

_MOST_REMEMBERED = 2000
_RETRIED = timedelta(minutes=20)
"""Controllers try again to create a pod after 1,000 s at the latest, and say so by an Event."""


def _now() -> datetime:
    return datetime.now(UTC)


class ClusterState:
    """Nodes, GPU pods and Events. Not safe to share between threads.

    What has not changed is not worked out again: after one event a report costs little.
    """

    def __init__(
        self,
        names: Names,
        policy: Policy = Policy.BINPACK,
        now: Callable[[], datetime] = _now,
        pool_labels: Sequence[str] = POOL_LABELS,
    ) -> None:
        """Start with an empty cluster; what has healed or gone is forgotten by the clock."""
        self._now = now
        self._waiting: Waiting | None = None  # what it has found out is true until a node changes
        self._owned: dict[str, dict[str, str]] = {}  # by UID of the owner: its pods, when created
        self._departed: dict[tuple[str, str], tuple[datetime, PodFacts, PodReport]] = {}
        self._names = names
        self._policy = policy
        self._pool_labels = pool_labels
        self._nodes: dict[str, NodeFacts] = {}
        self._allocations = ClusterAllocations(policy)
        self._pods: dict[str, PodFacts] = {}
        self._by_name: dict[tuple[str, str], str] = {}
        self._told: dict[str, dict[str, EventReport]] = {}  # by UID of what it is about
        self._denied: dict[str, tuple[str, DeniedReport]] = {}  # by UID of the Event: about whom
        self._gaps: tuple[Gap, ...] = ()
        self._occupancies: dict[str, Occupancy] = {}
        self._node_reports: dict[str, NodeReport] = {}
        self._pod_reports: dict[str, PodReport] = {}

    # --- what comes in ----------------------------------------------------------------

    def put_node(self, obj: Mapping[str, Any]) -> None:
        """Take in a node as the API shows it."""
        facts = read_node(obj, self._names)
        name = facts.placed.name
        before = self._nodes.get(name)
        if before == facts:
            return
        self._nodes[name] = facts
        allocations = self._allocations[name]
        if before is None or allocations.node != facts.placed:
            allocations.set_node(facts.placed)
        self._touch(name)

    def drop_node(self, name: str) -> None:
        """Forget a node; its pods stay known until they are gone themselves."""
        self._nodes.pop(name, None)
        self._allocations.forget_empty(name)
        self._touch(name)

    def put_pod(self, obj: Mapping[str, Any]) -> None:
        """Take in a pod as the API shows it; those that ask for no GPU are passed over."""
        facts = read_pod_facts(obj, self._names)
        if facts is None:
            self.drop_pod(obj["metadata"].get("uid", ""))
            return
        pod = facts.placed
        before = self._pods.get(pod.id.uid)
        if before == facts:
            return
        self._pods[pod.id.uid] = facts
        self._by_name[pod.id.key] = pod.id.uid
        self._departed.pop(pod.id.key, None)
        self._pod_reports.pop(pod.id.uid, None)
        if before is None and facts.owner_uid:
            self._owned.setdefault(facts.owner_uid, {})[pod.id.uid] = facts.report.created
            for uid in self._owned[facts.owner_uid]:
                self._pod_reports.pop(uid, None)  # which this one may replace
        if before is not None and before.placed == pod and before.ended == facts.ended:
            return
        if before is not None and before.placed.node:
            self._leave(before)
        if pod.node and not facts.ended:
            self._allocations[pod.node].add_pod(pod)
            self._touch(pod.node)

    def drop_pod(self, uid: str) -> None:
        """Forget a pod that is gone."""
        facts = self._pods.get(uid)
        if facts is None:
            return
        pod, at = facts.placed, self._now()
        if self._by_name.get(pod.id.key) == uid:
            del self._by_name[pod.id.key]
            self._remember(at, facts)
        del self._pods[uid]
        self._owned.get(facts.owner_uid, {}).pop(uid, None)
        self._pod_reports.pop(uid, None)
        self._told.pop(uid, None)
        if pod.node:
            self._leave(facts)

    def put_event(self, obj: Mapping[str, Any]) -> None:
        """Take in an Event; those of a pod may come before it."""
        uid, about = ids_of(obj)
        report = read_event(obj, self._names)
        if isinstance(report, DeniedReport):
            self._denied[uid] = about, report
        elif report is not None:
            self._told.setdefault(about, {})[uid] = report
            self._pod_reports.pop(about, None)

    def drop_event(self, obj: Mapping[str, Any]) -> None:
        """Forget an Event that has expired."""
        uid, about = ids_of(obj)
        self._denied.pop(uid, None)
        if self._told.get(about, {}).pop(uid, None) is not None:
            self._pod_reports.pop(about, None)

    def set_gaps(self, gaps: Iterable[Gap]) -> None:
        """Take in what could not be read."""
        if self._gaps != (gaps := tuple(gaps)):
            self._gaps, self._waiting = gaps, None
            self._occupancies.clear()
            self._node_reports.clear()
            self._pod_reports.clear()

    # --- what can be asked ------------------------------------------------------------

    def nodes_of_pods(self) -> list[str]:
        """Return the nodes that pods are on."""
        return sorted({each.placed.node for each in self._pods.values() if each.placed.node})

    def report(self, stages: Iterable[Stage] = Stage) -> ClusterReport:
        """Return the cluster as it is now."""
        told = frozenset(stages)
        pods = [
            self._report_pod(facts) for facts in self._pods.values() if facts.report.stage in told
        ]
        return ClusterReport(
            tuple(self._report_node(each) for each in sorted(self._gpu_nodes())),
            tuple(sorted(pods, key=lambda each: (each.namespace, each.name, each.uid))),
            tuple(sorted(self._still_denied(), key=lambda each: (each.namespace, each.name))),
            self._gaps,
        )

    def explain(self, namespace: str, name: str) -> PodStory | None:
        """Return one pod's way; ``None`` where no such pod is known, and none was a while ago."""
        facts = self._pods.get(self._by_name.get((namespace, name), ""))
        if facts is not None:
            return self._tell(facts, self._report_pod(facts))
        at, gone, report = self._departed.get((namespace, name), (None, None, None))
        if at is None or gone is None or report is None or self._now() - at > _REMEMBERED:
            return None
        return self._tell(gone, report, deleted=at.strftime("%Y-%m-%dT%H:%M:%SZ"))

    def _tell(self, facts: PodFacts, report: PodReport, deleted: str = "") -> PodStory:
        node = facts.placed.node
        return tell_story(
            facts,
            report,
            self._for_gpus(),
            gaps=self._gaps,
            names=self._names,
            policy=self._policy,
            node=self._report_node(node) if node in self._nodes and not deleted else None,
            deleted=deleted,
        )

    def fit(self, *manifests: Mapping[str, Any]) -> tuple[FitReport, ...]:
        """Return whether and where pods would fit together that are not created yet.

        Raises:
            InvalidManifest: one is neither, or its pods ask for no GPU.
        """
        return fit_manifests(manifests, self._for_gpus(), self._gaps, self._names, self._policy)

    # --- inside -------------------------------------------------------------------------

    def _gpu_nodes(self) -> set[str]:
        named = {name for name, facts in self._nodes.items() if facts.for_gpus}
        with_pods = {name for name, each in self._allocations.items() if each.pods}
        return named | with_pods & set(self._nodes)

    def _still_denied(self) -> list[DeniedReport]:
        """Return what has not healed: nobody has said so for long, or there is a pod since."""
        oldest = (self._now() - _RETRIED).strftime("%Y-%m-%dT%H:%M:%SZ")
        return [
            denied
            for about, denied in self._denied.values()
            if denied.at >= oldest
            and denied.at > max(self._owned.get(about, {}).values(), default="")
        ]

    def _remember(self, at: datetime, facts: PodFacts) -> None:
        """Keep what is known of a pod that is about to be forgotten."""
        while self._departed:
            oldest = next(iter(self._departed))
            few = len(self._departed) < _MOST_REMEMBERED
            if few and at - self._departed[oldest][0] <= _REMEMBERED:
                break
            del self._departed[oldest]
        pod = facts.placed
        self._departed[pod.id.key] = at, facts, self._report_pod(facts)

    def _for_gpus(self) -> list[Occupancy]:
        return [self._occupancy(name) for name in sorted(self._gpu_nodes())]

    def _occupancy(self, name: str) -> Occupancy:
        found = self._occupancies.get(name)
        if found is None:
            partial = any(gap.what == "pods" for gap in self._gaps)
            found = occupancy_of(self._allocations[name], self._nodes[name], partial=partial)
            self._occupancies[name] = found
        return found

    def _report_node(self, name: str) -> NodeReport:
        found = self._node_reports.get(name)
        if found is None:
            occupancy = self._occupancy(name)
            found = self._node_reports[name] = report_node(occupancy, self._pool_labels)
        return found

    def _report_pod(self, facts: PodFacts) -> PodReport:
        pod = facts.placed
        found = self._pod_reports.get(pod.id.uid)
        if found is not None:
            return found
        stage, node = facts.report.stage, self._nodes.get(pod.node)
        found = report_pod(
            facts,
            node=node,
            held=self._held(facts) if node is not None else None,
            why=self._why(facts) if stage is Stage.WAITING else "",
            events=self._told.get(pod.id.uid, {}).values(),
            replaced=facts.ended and self._replaced(facts),
        )
        if stage is not Stage.WAITING:  # why one waits depends on all nodes
            self._pod_reports[pod.id.uid] = found
        return found

    def _why(self, facts: PodFacts) -> str:
        if self._waiting is None:
            self._waiting = Waiting(self._for_gpus(), self._gaps)
        return self._waiting.why(facts)

    def _replaced(self, facts: PodFacts) -> bool:
        siblings = self._owned.get(facts.owner_uid, {})
        return any(created > facts.report.created for created in siblings.values())

    def _held(self, facts: PodFacts) -> PodHolding | None:
        if facts.ended:
            return None
        for each in self._occupancy(facts.placed.node).held:
            if each.pod.id.uid == facts.placed.id.uid:
                return each
        return None

    def _leave(self, facts: PodFacts) -> None:
        pod = facts.placed
        self._allocations[pod.node].remove_pod(pod.id.uid)
        if pod.node not in self._nodes:
            self._allocations.forget_empty(pod.node)
        self._touch(pod.node)

    def _touch(self, name: str) -> None:
        self._waiting = None
        self._occupancies.pop(name, None)
        self._node_reports.pop(name, None)
        for uid in [uid for uid, each in self._pod_reports.items() if each.node == name]:
            del self._pod_reports[uid]
