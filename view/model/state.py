"""The state of the cluster: takes objects of the API server and returns reports. No I/O."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from contract.names import Names
from placement.cluster.selectors import NodeSelection
from placement.first_fit import as_claimed
from placement.pods import PodClass, PodInfo
from placement.scoring import Policy
from view.model.claims import NOT_PREPARED, TemplateFacts
from view.model.doctor.facts import AGENT
from view.model.doctor.objects import component_of, is_ready, parse_time
from view.model.event_facts import EventFacts, PodCounts
from view.model.manifest_fit import FitReport, fit_manifests, named_node
from view.model.node_facts import NodeFacts, find_condition, read_node
from view.model.node_fits import PodClassFit, find_fitting_nodes
from view.model.node_report import POOL_LABELS, report_node
from view.model.occupancy import KeptCards, NodeRefusals, Occupancy, occupancy_of
from view.model.pod_explanation import PodExplanation, explain_pod
from view.model.pod_facts import PodFacts, node_fault, read_pod_facts, time_of
from view.model.pod_groups import OwnedPods
from view.model.pod_reasons import why_pending
from view.model.pod_report import report_pod, without_node
from view.model.queues import QueueFacts, QueueKey, QueueReport, report_queue
from view.model.reports import (
    ClusterReport,
    DeniedReport,
    Gap,
    NodeReport,
    PodReport,
    Stage,
)
from view.model.words import rfc3339

_REMEMBERED = timedelta(minutes=15)
"""How long a deleted pod is remembered."""

_MOST_REMEMBERED = 2000
_RETRIED = timedelta(minutes=20)
"""Controllers retry the creation of a pod within 1,000 s, each time with an Event."""

_REFUSED = timedelta(hours=1)
"""How long a node may still refuse pods, if no other pod comes there and its agent has not started
since."""

_REFUSES = timedelta(minutes=5)
"""How long it is taken to refuse the next pod, too: no sign tells that the fault is gone."""

_STARTS = timedelta(seconds=30)
"""How long the agent of a node may take to get ready, as in an update."""


def _drop(index: dict[str, dict[str, Any]], key: str, item: str) -> None:
    """Remove an item from an index, and the key with its last item."""
    if key in index:
        index[key].pop(item, None)
        if not index[key]:
            del index[key]


class _ComputedNode(NamedTuple):
    """Results for one node, valid until the node or one of its pods changes."""

    occupancy: Occupancy
    report: NodeReport
    until: datetime | None  # while its agent is taken for what it is; ``None`` without an end


class _AgentPod(NamedTuple):
    """The pod of an agent, and since when it is ready, or is not."""

    node: str
    ready: bool
    since: datetime


class _DeletedPod(NamedTuple):
    """A deleted pod and its last known state."""

    at: datetime
    facts: PodFacts
    report: PodReport


class _DeletedPods:
    """Recently deleted pods."""

    def __init__(self) -> None:
        self._gone: dict[tuple[str, str], _DeletedPod] = {}  # the oldest first

    def keep(self, pod: _DeletedPod) -> None:
        """Remember a pod, and forget those deleted long ago."""
        for key, old in [*self._gone.items()]:
            if len(self._gone) < _MOST_REMEMBERED and pod.at - old.at <= _REMEMBERED:
                break
            del self._gone[key]
        self._gone[pod.facts.info.id.key] = pod

    def forget(self, key: tuple[str, str]) -> None:
        """Forget a pod whose name another pod has now."""
        self._gone.pop(key, None)

    def find(self, key: tuple[str, str], now: datetime) -> _DeletedPod | None:
        """Return a pod that was deleted recently, if there is one."""
        found = self._gone.get(key)
        return found if found is not None and now - found.at <= _REMEMBERED else None


class ClusterState:
    """Nodes, GPU pods and Events. Not safe to share between threads.

    Results are kept until their input changes: after one event a report costs little.
    """

    def __init__(
        self,
        names: Names,
        policy: Policy = Policy.BINPACK,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        pool_labels: Sequence[str] = POOL_LABELS,
    ) -> None:
        """Start with an empty cluster; *now* decides when old denials and pods are forgotten."""
        self._names = names
        self._policy = policy
        self._now = now
        self._pool_labels = pool_labels
        self._gaps: tuple[Gap, ...] = ()
        self._nodes: dict[str, NodeFacts] = {}
        self._pods: dict[str, PodFacts] = {}
        self._by_name: dict[tuple[str, str], str] = {}
        self._bound: dict[str, dict[str, PodInfo]] = defaultdict(dict)  # by node
        self._kept: dict[str, dict[str, KeptCards]] = defaultdict(dict)  # by node
        self._owned: dict[str, dict[str, str]] = defaultdict(dict)  # by owner: time of creation
        self._siblings = OwnedPods()
        self._events = EventFacts(names)
        self._settled: dict[str, str] = {}  # by UID of a workload: time of its last denial
        self._missing: dict[str, PodCounts] = {}  # by UID of a workload whose pods are denied
        self._agents: dict[str, dict[str, _AgentPod]] = defaultdict(dict)  # by node
        self._agent_pods: dict[str, _AgentPod] = {}  # the same by UID
        self._deleted = _DeletedPods()
        self._templates: dict[str, TemplateFacts] = {}  # that a pod waits for, by UID of the pod
        self._queues: dict[str, QueueFacts | None] = {}  # of Kueue, by UID of the pod
        # Results computed from these.
        self._computed: dict[str, _ComputedNode] = {}
        self._class_fits: dict[
            tuple[PodClass, NodeSelection, bool, str, int | None], PodClassFit
        ] = {}
        self._pod_reports: dict[str, PodReport] = {}

    # --- input ------------------------------------------------------------------------

    def put_node(self, obj: Mapping[str, Any]) -> None:
        """Add or update a node."""
        facts = read_node(obj, self._names)
        name = facts.node.name
        if self._nodes.get(name) != facts:
            self._nodes[name] = facts
            self._invalidate(name)

    def drop_node(self, name: str) -> None:
        """Remove a node; its pods stay until they are removed themselves."""
        self._nodes.pop(name, None)
        self._invalidate(name)

    def put_pod(self, obj: Mapping[str, Any]) -> None:
        """Add or update a pod; pods that request no GPU are ignored, without those of agents."""
        facts, uid = read_pod_facts(obj, self._names), obj["metadata"].get("uid", "")
        self._put_agent(uid, obj)
        if facts is None:
            self._drop_gpu_pod(uid)
            return
        before = self._pods.get(uid)
        if before == facts:
            return
        self._pods[uid] = facts
        self._by_name[facts.info.id.key] = uid
        self._deleted.forget(facts.info.id.key)
        self._pod_reports.pop(uid, None)
        self._siblings.put(facts)
        if before is None and facts.owner_uid:
            self._owned[facts.owner_uid][uid] = facts.report.created
        if before is None or (before.info, before.ends_at) != (facts.info, facts.ends_at):
            if before is not None:
                self._unbind(before.info)
            if facts.info.node:
                self._bound[facts.info.node][uid] = facts.info
                self._invalidate(facts.info.node)
        self._keep_cards(before, facts)

    def _put_agent(self, uid: str, obj: Mapping[str, Any] | None) -> None:
        """Set what is known of an agent by its pod; without one, or of another pod, nothing is."""
        found, before = None, self._agent_pods.pop(uid, None)
        if obj is not None and component_of(obj) == AGENT:
            ready = find_condition(obj.get("status") or {}, "Ready")
            since = parse_time(
                ready.get("lastTransitionTime") or obj["metadata"].get("creationTimestamp")
            )
            node = (obj.get("spec") or {}).get("nodeName") or ""
            if node and since is not None:
                found = self._agent_pods[uid] = _AgentPod(node, is_ready(obj), since)
        if before != found:
            if before is not None:
                _drop(self._agents, before.node, uid)
                self._invalidate(before.node)
            if found is not None:
                self._agents[found.node][uid] = found
                self._invalidate(found.node)

    def drop_pod(self, uid: str) -> None:
        """Remove a pod."""
        self._put_agent(uid, None)
        self._drop_gpu_pod(uid)

    def _drop_gpu_pod(self, uid: str) -> None:
        facts = self._pods.get(uid)
        if facts is None:
            return
        key = facts.info.id.key
        if self._by_name.get(key) == uid:
            del self._by_name[key]
            self._deleted.keep(_DeletedPod(self._now(), facts, self._report_pod(facts)))
        del self._pods[uid]
        self._templates.pop(uid, None)
        self._queues.pop(uid, None)
        _drop(self._owned, facts.owner_uid, uid)
        self._siblings.drop(facts)
        self._pod_reports.pop(uid, None)
        self._unbind(facts.info)
        self._keep_cards(facts, None)

    def put_event(self, obj: Mapping[str, Any]) -> None:
        """Add an Event; it may come before its pod."""
        self._drop_report(self._events.put(obj))

    def drop_event(self, obj: Mapping[str, Any]) -> None:
        """Remove an Event that has expired."""
        self._drop_report(self._events.drop(obj))

    def _drop_report(self, uid: str) -> None:
        """Drop the report on a pod with a changed Event, which may have refused its claim."""
        self._pod_reports.pop(uid, None)
        facts = self._pods.get(uid)
        if facts is not None and facts.report.claim and facts.info.node:
            self._invalidate(facts.info.node)

    def put_template(self, namespace: str, pod: str, facts: TemplateFacts) -> None:
        """Set whether the template exists that a pod names; it is part of its explanation only."""
        uid = self._by_name.get((namespace, pod))
        if uid is not None:
            self._templates[uid] = facts

    def put_queue(self, namespace: str, pod: str, facts: QueueFacts | None) -> None:
        """Set what Kueue has about a pod; it is part of its explanation only."""
        uid = self._by_name.get((namespace, pod))
        if uid is not None:
            self._queues[uid] = facts

    def settle_denials(self, workload: str, at: str) -> None:
        """Stop reporting the denials of a workload (its UID) up to *at*: it wants no more pods."""
        old = [uid for uid, at in self._settled.items() if at < self._oldest_denial()]
        for uid in old:
            del self._settled[uid]
        self._missing.pop(workload, None)
        self._settled[workload] = at

    def put_missing(self, workload: str, counts: PodCounts) -> None:
        """Set how many pods a workload (its UID) wants and has, whose pods are denied."""
        self._missing[workload] = counts

    def settle_pods(self, namespace: str, controller: str, wanted: int) -> bool:
        """Set how many pods a controller wants of which pods are left over.

        If so many run, the refused and failed ones count as replaced. Return whether they do.
        """
        return self._siblings.settle(namespace, controller, wanted)

    def set_gaps(self, gaps: Iterable[Gap]) -> None:
        """Set what could not be read."""
        if self._gaps != (gaps := tuple(gaps)):
            self._gaps = gaps
            for each in (self._computed, self._class_fits, self._pod_reports):
                each.clear()

    def _keep_cards(self, before: PodFacts | None, facts: PodFacts | None) -> None:
        """Keep the cards of a pod's nomination, and no longer those of the one before."""
        if before is not None and before.nomination is not None:
            self._invalidate(before.nomination.node)
            _drop(self._kept, before.nomination.node, before.info.id.uid)
        if facts is not None and facts.nomination is not None:
            kept = KeptCards(facts.info, facts.priority or 0, facts.nomination)
            self._kept[facts.nomination.node][facts.info.id.uid] = kept
            self._invalidate(facts.nomination.node)

    def _unbind(self, pod: PodInfo) -> None:
        """Stop counting a pod on its node."""
        if pod.node:
            self._invalidate(pod.node)
            _drop(self._bound, pod.node, pod.id.uid)

    def _invalidate(self, node: str) -> None:
        """Drop all results that depend on a node."""
        self._class_fits.clear()
        self._computed.pop(node, None)
        for uid in self._bound.get(node, ()):
            self._pod_reports.pop(uid, None)

    # --- results ----------------------------------------------------------------------

    def nodes_of_pods(self) -> list[str]:
        """Return the names of nodes with GPU pods."""
        return sorted(self._bound)

    def report(self, stages: Iterable[Stage] = Stage) -> ClusterReport:
        """Return a report on the cluster, with the pods in these stages."""
        wanted = frozenset(stages)
        pods = [
            self._report_pod(facts)
            for facts in self._pods.values()
            if (Stage.FAILING if self._is_lost(facts) else facts.report.stage) in wanted
        ]
        denied = (each for _, each in self.denied_workloads())
        return ClusterReport(
            tuple(each.report for each in self._compute_nodes()),
            tuple(sorted(pods, key=lambda each: (each.namespace, each.name, each.uid))),
            tuple(sorted(denied, key=lambda each: (each.namespace, each.name))),
            self._gaps,
        )

    def explain(self, namespace: str, name: str) -> PodExplanation | None:
        """Explain one pod; ``None`` if there is none with this name, nor a recently deleted one."""
        key, deleted, node, template, queue = (namespace, name), "", None, None, None
        facts = self._pods.get(self._by_name.get(key, ""))
        deleted_pod = self._deleted.find(key, self._now())
        if facts is not None:
            report = self._report_pod(facts)
            template = self._templates.get(report.uid)
            kueue = self._queues.get(report.uid)
            if kueue and facts.queue and (kueue.obj or kueue.unread or facts.gated):
                queue = self.report_queue(kueue)
            if report.stage is Stage.PENDING and (template or queue):
                fit = self._class_fit_of(facts)
                why = why_pending(facts, fit, report.events, template, queue)
                report = replace(report, why=why)
            if report.node in self._nodes:
                node = self._compute_node(report.node).report
        elif deleted_pod is not None:
            facts, report = deleted_pod.facts, deleted_pod.report
            deleted = rfc3339(deleted_pod.at)
        else:
            return None
        return explain_pod(
            facts,
            report,
            self._found_by(report.uid, facts.priority),
            gaps=self._gaps,
            names=self._names,
            policy=self._policy,
            now=self._now(),
            node=node,
            template=template,
            queue=queue,
            refused=self._siblings.refused_like(report),
            deleted=deleted,
        )

    def is_missing(self, node: str) -> bool:
        """Return whether a node does not exist; false if nodes cannot all be read."""
        return node not in self._nodes and all(gap.what != "nodes" for gap in self._gaps)

    def _is_lost(self, facts: PodFacts) -> bool:
        """Return whether a pod that has not ended is bound to a node that does not exist."""
        node = facts.info.node
        return bool(node) and not facts.ended and self.is_missing(node)

    def awaited_template(self, namespace: str, name: str) -> str:
        """Return the template of the claim that a pod waits for; empty if it waits for none."""
        facts = self._pods.get(self._by_name.get((namespace, name), ""))
        waits = facts is not None and facts.report.stage is Stage.PENDING and not facts.report.claim
        return facts.report.claim_template if facts is not None and waits else ""

    def awaited_queue(self, namespace: str, name: str) -> QueueKey | None:
        """Return by what the Workload of a pod without a node is found; ``None`` without Kueue."""
        facts = self._pods.get(self._by_name.get((namespace, name), ""))
        return None if facts is None else facts.queue

    def report_queue(self, facts: QueueFacts) -> QueueReport:
        """Return what Kueue has decided about a Workload."""

        def ending(node: str, cards: AbstractSet[int]) -> Iterable[str]:
            if node not in self._nodes:
                return
            for card in self._compute_node(node).report.cards:
                for each in card.holders if card.index in cards else ():
                    pod = self._pods.get(self._by_name.get((each.namespace, each.pod), ""))
                    if pod is not None and pod.ends_at:
                        yield f"{each.namespace}/{each.pod}"

        return report_queue(facts, self._names, ending)

    def fit(self, *manifests: Mapping[str, Any]) -> tuple[FitReport, ...]:
        """Return whether and where the pods of manifests would fit, all together.

        Raises:
            InvalidManifest: one is not a pod or workload, or its pods request no GPU.
        """
        named = {node for each in manifests if (node := named_node(each))}
        missing = {each for each in named if self.is_missing(each)}
        return fit_manifests(
            manifests,
            [each.occupancy for each in self._compute_nodes()],
            self._gaps,
            self._names,
            self._policy,
            now=self._now(),
            missing=missing,
        )

    def denied_workloads(self) -> list[tuple[str, DeniedReport]]:
        """Return the UIDs of workloads whose pods are denied, each with its report.

        The denial is recent, the workload has no newer pod, and is not known to want none.
        """
        oldest = self._oldest_denial()
        return [
            (about, self._with_counts(about, denied))
            for about, denied in self._events.denied()
            if denied.at >= oldest
            and denied.at > max(self._owned.get(about, {}).values(), default="")
            and denied.at > self._settled.get(about, "")
        ]

    def left_over(self) -> set[tuple[str, str]]:
        """Return namespace and controller of refused and failed pods that are not replaced.

        A controller is such as ``ReplicaSet/web-5d``.
        """
        return self._siblings.left_over()

    def _with_counts(self, workload: str, denied: DeniedReport) -> DeniedReport:
        counts = self._missing.get(workload)
        if counts is None:
            return denied
        return replace(denied, missing=counts.missing, wanted=counts.wanted)

    def _oldest_denial(self) -> str:
        return rfc3339(self._now() - _RETRIED)

    # --- computed on demand -------------------------------------------------------------

    def _compute_nodes(self) -> list[_ComputedNode]:
        """Compute all nodes that have GPUs or should have some, sorted by name."""
        return [
            self._compute_node(name)
            for name, facts in sorted(self._nodes.items())
            if facts.for_gpus or any(not pod.terminal for pod in self._pods_on(name))
        ]

    def _pods_on(self, node: str) -> Iterable[PodInfo]:
        return self._bound.get(node, {}).values()

    def _refusals_on(self, node: str, now: datetime) -> NodeRefusals | None:
        """Return the refusals because of a node since it last admitted a pod, if they are new.

        An agent that got ready later may find the fault gone: what it would do is unknown then, and
        nothing is left of them once they are minutes old.
        """
        admitted, refused = "", list[tuple[str, str]]()
        for uid in self._bound.get(node, ()):
            facts = self._pods[uid]
            at = time_of(facts.info.rank.bound) or facts.report.created
            if facts.info.annotated:
                admitted = max(admitted, at)
            elif fault := self._node_fault(facts):
                refused.append((at, fault))
        last = sorted(each for each in refused if each[0] > admitted)
        if not last:
            return None
        at, fault = last[-1]
        then = datetime.fromisoformat(at)
        agents = self._agents.get(node, {}).values()
        later = any(each.ready and each.since > then for each in agents)
        if now - then > (_REFUSES if later else _REFUSED):
            return None
        return NodeRefusals(fault, len(last), at, not later and now - then <= _REFUSES)

    def _unready_since(self, node: str) -> datetime | None:
        """Return since when no agent of a node is ready; ``None`` if one is, or none is known."""
        agents = self._agents.get(node, {}).values()
        if any(each.ready for each in agents):
            return None
        return max((each.since for each in agents), default=None)

    def _node_fault(self, facts: PodFacts) -> str:
        """Return for what its node refused a pod, or keeps it from starting by a claim."""
        if facts.report.stage is Stage.REFUSED:
            return node_fault(facts.report.message)
        waits = facts.report.claim and not facts.ended
        events = self._events.of(facts.info.id.uid) if waits else ()
        newest = next((each.message for each in events if each.reason in NOT_PREPARED), "")
        return node_fault(newest)

    def _compute_node(self, name: str) -> _ComputedNode:
        found = self._computed.get(name)
        now = self._now()
        if found is not None and found.until is not None and now > found.until:
            self._invalidate(name)
            found = None
        if found is None:
            partial = any(gap.what == "pods" for gap in self._gaps)
            on_node = self._bound.get(name, {})
            leaving = {uid: at for uid in on_node if (at := self._pods[uid].ends_at)}
            facts, ends, unready = self._nodes[name], list[datetime](), self._unready_since(name)
            if unready is not None and now - unready > _STARTS:
                facts = replace(facts, agent_not_ready=True)
            elif unready is not None:
                ends.append(unready + _STARTS)
            occupancy = occupancy_of(facts, on_node.values(), self._policy, partial=partial)
            kept = tuple(self._kept.get(name, {}).values())
            refusals = self._refusals_on(name, now)
            if refusals is not None:
                then = datetime.fromisoformat(refusals.at)
                ends.append(then + (_REFUSES if now - then <= _REFUSES else _REFUSED))
            until = min(ends, default=None)
            occupancy = replace(occupancy, leaving=leaving, kept=kept, refusals=refusals)
            found = _ComputedNode(occupancy, report_node(occupancy, self._pool_labels), until)
            self._computed[name] = found
        return found

    def _report_pod(self, facts: PodFacts) -> PodReport:
        uid, node = facts.info.id.uid, self._nodes.get(facts.info.node)
        found = self._pod_reports.get(uid)
        pending = facts.report.stage is Stage.PENDING
        if found is None:
            events = self._events.of(uid)
            if facts.nominated and self.is_missing(facts.nominated):
                facts = replace(facts, nominated="")
            found = report_pod(
                facts,
                node=node,
                held=self._compute_node(facts.info.node).occupancy.held.get(uid) if node else None,
                why=why_pending(facts, self._class_fit_of(facts), events) if pending else "",
                events=events,
            )
            found = without_node(found) if self._is_lost(facts) else found
        # Of a kept report this alone may have changed: it depends on other pods of its owner.
        if found.replaced != (replaced := self._siblings.is_replaced(facts.report)):
            found = replace(found, replaced=replaced)
        if not pending:  # the reason of a pending pod depends on all nodes
            self._pod_reports[uid] = found
        return found

    def _class_fit_of(self, facts: PodFacts) -> PodClassFit:
        by_claim = bool(facts.report.claim_template)
        shape = (as_claimed(facts.info) if by_claim else facts.info).pod_class
        # Where cards are kept for pods, each finds the nodes by its priority and its own cards.
        uid = facts.info.id.uid if facts.nomination is not None else ""
        priority = facts.priority if self._kept else 0
        key = shape, facts.selection, by_claim, uid, priority
        if key not in self._class_fits:
            nodes = self._found_by(uid, priority)
            self._class_fits[key] = find_fitting_nodes(
                shape, nodes, self._gaps, facts.selection, by_claim=by_claim
            )
        return self._class_fits[key]

    def _found_by(self, uid: str, priority: int | None) -> list[Occupancy]:
        """Return all nodes as one pod finds them."""
        now = self._now().timestamp()
        nodes = (each.occupancy for each in self._compute_nodes())
        return [each.as_found_by(uid, priority, now) if each.kept else each for each in nodes]
