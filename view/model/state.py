"""The cluster as objects of the API server come in, and all that can be asked about it. No I/O."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from contract.names import Names
from placement.pods import PodClass, PodInfo
from placement.scoring import Policy
from view.model.events import EventFacts
from view.model.explanation import FitReport, PodExplanation
from view.model.manifest import fit_manifests
from view.model.node_report import POOL_LABELS, report_node
from view.model.nodes import NodeFacts, read_node
from view.model.occupancy import Occupancy, occupancy_of
from view.model.pod_report import report_pod
from view.model.pods import PodFacts, read_pod_facts
from view.model.reports import (
    ClusterReport,
    DeniedReport,
    Gap,
    NodeReport,
    PodReport,
    Stage,
)
from view.model.why import PodClassFit, explain_pod, find_room, why_waiting

_REMEMBERED = timedelta(minutes=15)
"""For so long what was known of a pod is kept after its end."""

_MOST_REMEMBERED = 2000
_RETRIED = timedelta(minutes=20)
"""Controllers try again to create a pod after 1,000 s at the latest, and say so by an Event."""


def _now() -> datetime:
    return datetime.now(UTC)


def _written(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _drop(index: dict[str, dict[str, Any]], key: str, item: str) -> None:
    """Take something out of an index, and its key with the last of it."""
    if key in index:
        index[key].pop(item, None)
        if not index[key]:
            del index[key]


class _OneNode(NamedTuple):
    """A node as it was worked out: true until it or one of its pods changes."""

    occupancy: Occupancy
    report: NodeReport


class _Departed(NamedTuple):
    """A pod that has gone, and what was known of it then."""

    at: datetime
    facts: PodFacts
    report: PodReport


class _Memory:
    """Pods that have gone, for a while."""

    def __init__(self) -> None:
        self._gone: dict[tuple[str, str], _Departed] = {}  # the oldest first

    def keep(self, pod: _Departed) -> None:
        """Keep one more, and forget those that went long ago."""
        for key, old in [*self._gone.items()]:
            if len(self._gone) < _MOST_REMEMBERED and pod.at - old.at <= _REMEMBERED:
                break
            del self._gone[key]
        self._gone[pod.facts.placed.id.key] = pod

    def forget(self, key: tuple[str, str]) -> None:
        """Forget one of whose name there is another pod now."""
        self._gone.pop(key, None)

    def find(self, key: tuple[str, str], now: datetime) -> _Departed | None:
        """Return one that has gone a while ago."""
        found = self._gone.get(key)
        return found if found is not None and now - found.at <= _REMEMBERED else None


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
        self._names = names
        self._policy = policy
        self._now = now
        self._pool_labels = pool_labels
        self._gaps: tuple[Gap, ...] = ()
        self._nodes: dict[str, NodeFacts] = {}
        self._pods: dict[str, PodFacts] = {}
        self._by_name: dict[tuple[str, str], str] = {}
        self._bound: dict[str, dict[str, PodInfo]] = defaultdict(dict)  # by node
        self._owned: dict[str, dict[str, str]] = defaultdict(dict)  # by owner: when created
        self._told = EventFacts(names)
        self._gone = _Memory()
        # What was worked out of these.
        self._worked_out: dict[str, _OneNode] = {}
        self._rooms: dict[PodClass, PodClassFit] = {}
        self._pod_reports: dict[str, PodReport] = {}

    # --- what comes in ----------------------------------------------------------------

    def put_node(self, obj: Mapping[str, Any]) -> None:
        """Take in a node as the API shows it."""
        facts = read_node(obj, self._names)
        name = facts.placed.name
        if self._nodes.get(name) != facts:
            self._nodes[name] = facts
            self._forget_about(name)

    def drop_node(self, name: str) -> None:
        """Forget a node; its pods stay known until they are gone themselves."""
        self._nodes.pop(name, None)
        self._forget_about(name)

    def put_pod(self, obj: Mapping[str, Any]) -> None:
        """Take in a pod as the API shows it; those that ask for no GPU are passed over."""
        facts, uid = read_pod_facts(obj, self._names), obj["metadata"].get("uid", "")
        if facts is None:
            self.drop_pod(uid)
            return
        before = self._pods.get(uid)
        if before == facts:
            return
        self._pods[uid] = facts
        self._by_name[facts.placed.id.key] = uid
        self._gone.forget(facts.placed.id.key)
        self._pod_reports.pop(uid, None)
        if before is None and facts.owner_uid:
            siblings = self._owned[facts.owner_uid]
            siblings[uid] = facts.report.created
            for each in siblings:
                self._pod_reports.pop(each, None)  # which this one may replace
        if before is None or before.placed != facts.placed:
            if before is not None:
                self._leave(before.placed)
            if facts.placed.node:
                self._bound[facts.placed.node][uid] = facts.placed
                self._forget_about(facts.placed.node)

    def drop_pod(self, uid: str) -> None:
        """Forget a pod that is gone."""
        facts = self._pods.get(uid)
        if facts is None:
            return
        key = facts.placed.id.key
        if self._by_name.get(key) == uid:
            del self._by_name[key]
            self._gone.keep(_Departed(self._now(), facts, self._report_pod(facts)))
        del self._pods[uid]
        _drop(self._owned, facts.owner_uid, uid)
        self._pod_reports.pop(uid, None)
        self._leave(facts.placed)

    def put_event(self, obj: Mapping[str, Any]) -> None:
        """Take in an Event; those of a pod may come before it."""
        self._pod_reports.pop(self._told.put(obj), None)

    def drop_event(self, obj: Mapping[str, Any]) -> None:
        """Forget an Event that has expired."""
        self._pod_reports.pop(self._told.drop(obj), None)

    def set_gaps(self, gaps: Iterable[Gap]) -> None:
        """Take in what could not be read."""
        if self._gaps != (gaps := tuple(gaps)):
            self._gaps = gaps
            for each in (self._worked_out, self._rooms, self._pod_reports):
                each.clear()

    def _leave(self, pod: PodInfo) -> None:
        """Count a pod no more on its node."""
        if pod.node:
            self._forget_about(pod.node)
            _drop(self._bound, pod.node, pod.id.uid)

    def _forget_about(self, node: str) -> None:
        """Work out anew what depends on a node."""
        self._rooms.clear()
        self._worked_out.pop(node, None)
        for uid in self._bound.get(node, ()):
            self._pod_reports.pop(uid, None)

    # --- what can be asked ------------------------------------------------------------

    def nodes_of_pods(self) -> list[str]:
        """Return the nodes that pods are on."""
        return sorted(self._bound)

    def report(self, stages: Iterable[Stage] = Stage) -> ClusterReport:
        """Return the cluster as it is now."""
        told = frozenset(stages)
        pods = [
            self._report_pod(facts) for facts in self._pods.values() if facts.report.stage in told
        ]
        return ClusterReport(
            tuple(each.report for each in self._work_out_all()),
            tuple(sorted(pods, key=lambda each: (each.namespace, each.name, each.uid))),
            tuple(sorted(self._still_denied(), key=lambda each: (each.namespace, each.name))),
            self._gaps,
        )

    def explain(self, namespace: str, name: str) -> PodExplanation | None:
        """Return one pod's way; ``None`` where no such pod is known, and none was a while ago."""
        key, deleted, node = (namespace, name), "", None
        facts = self._pods.get(self._by_name.get(key, ""))
        gone = self._gone.find(key, self._now())
        if facts is not None:
            report = self._report_pod(facts)
            if report.node in self._nodes:
                node = self._work_out(report.node).report
        elif gone is not None:
            facts, report, deleted = gone.facts, gone.report, _written(gone.at)
        else:
            return None
        return explain_pod(
            facts,
            report,
            [each.occupancy for each in self._work_out_all()],
            gaps=self._gaps,
            names=self._names,
            policy=self._policy,
            node=node,
            deleted=deleted,
        )

    def fit(self, *manifests: Mapping[str, Any]) -> tuple[FitReport, ...]:
        """Return whether and where pods would fit together that are not created yet.

        Raises:
            InvalidManifest: one is neither, or its pods ask for no GPU.
        """
        nodes = [each.occupancy for each in self._work_out_all()]
        return fit_manifests(manifests, nodes, self._gaps, self._names, self._policy)

    def _still_denied(self) -> list[DeniedReport]:
        """Return what has not healed: nobody has said so for long, or there is a pod since."""
        oldest = _written(self._now() - _RETRIED)
        return [
            denied
            for about, denied in self._told.denied()
            if denied.at >= oldest
            and denied.at > max(self._owned.get(about, {}).values(), default="")
        ]

    # --- worked out once ----------------------------------------------------------------

    def _work_out_all(self) -> list[_OneNode]:
        """Work out the nodes that have, or should have, anything to do with GPUs, by name."""
        return [
            self._work_out(name)
            for name, facts in sorted(self._nodes.items())
            if facts.for_gpus or any(not pod.terminal for pod in self._pods_on(name))
        ]

    def _pods_on(self, node: str) -> Iterable[PodInfo]:
        return self._bound.get(node, {}).values()

    def _work_out(self, name: str) -> _OneNode:
        found = self._worked_out.get(name)
        if found is None:
            partial = any(gap.what == "pods" for gap in self._gaps)
            occupancy = occupancy_of(
                self._nodes[name], self._pods_on(name), self._policy, partial=partial
            )
            found = _OneNode(occupancy, report_node(occupancy, self._pool_labels))
            self._worked_out[name] = found
        return found

    def _report_pod(self, facts: PodFacts) -> PodReport:
        uid, node = facts.placed.id.uid, self._nodes.get(facts.placed.node)
        found = self._pod_reports.get(uid)
        if found is not None:
            return found
        events = self._told.of(uid)
        waits = facts.report.stage is Stage.WAITING
        siblings = self._owned.get(facts.owner_uid, {}).values()
        found = report_pod(
            facts,
            node=node,
            held=self._work_out(facts.placed.node).occupancy.held.get(uid) if node else None,
            why=why_waiting(facts, self._room_of(facts), events) if waits else "",
            events=events,
            replaced=facts.ended and max(siblings, default="") > facts.report.created,
        )
        if not waits:  # why one waits depends on all nodes
            self._pod_reports[uid] = found
        return found

    def _room_of(self, facts: PodFacts) -> PodClassFit:
        shape = facts.placed.pod_class
        if shape not in self._rooms:
            nodes = [each.occupancy for each in self._work_out_all()]
            self._rooms[shape] = find_room(shape, nodes, self._gaps)
        return self._rooms[shape]
