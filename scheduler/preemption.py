"""Preemption by card: evicts pods of lower priority for a pod that fits on no card.

kube-scheduler evicts nobody where the totals of a node suffice. Here filter reports each pod that
fits nowhere, with the nodes that passed kube-scheduler's own filters. A thread of the leader

1. looks for the cheapest victims on one of these nodes (:mod:`placement.cluster.preemption`),
2. writes the nomination into the pod's status, before anybody is evicted, so that the next leader
   goes on with it, and every replica keeps the cards,
3. evicts the victims by the Eviction API, as long as the pod still needs their room,
4. ends the nomination once the pod is bound or gone, or its time is over.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from http import HTTPStatus
from typing import Any, Protocol

from common.apiserver.client import Json
from common.apiserver.errors import Gone, Rejected, TooManyRequests
from common.apiserver.events import EventSubject, Notice
from common.errors import Unavailable
from contract.text import format_count
from placement.cluster.fit import fits_surely
from placement.cluster.nodes import Problem
from placement.cluster.preemption import EvictablePod
from placement.pods import PodClass, PodId, PodInfo
from placement.scoring import Policy
from scheduler.budgets import DisruptionBudget, read_budgets
from scheduler.decisions import FilterResult
from scheduler.nominations import (
    ASK_AGAIN,
    CONDITION,
    Nomination,
    Nominations,
    read_nomination,
    read_standing,
)
from scheduler.state import State
from scheduler.victims import Preemptor, VictimSearch

REASON = "GPUPreemption"
"""The Events of pods for which others are evicted."""

VICTIM_REASON = "Preempted"
"""The Events of victims; kube-scheduler's have the same reason."""

_SETTLE_SECONDS = 0.3
# kube-scheduler asks first about a node that it expects to fit, and then about all.
_STEP_SECONDS = 1.0
_REFUSED_SECONDS = 30.0
"""How long a pod is no victim after the Eviction API has refused to evict it."""
_SHOWN_SECONDS = 10.0
"""How long an eviction counts before the watch shows it."""
_AGAIN_SECONDS = 5.0
_UNUSED_SECONDS = 600.0
"""How long nobody is evicted for a pod that did not use free cards while they were kept for it.

Its gang may never be complete, or its volume never provisioned.
"""
_STALE_SECONDS = 60.0
"""How long after kube-scheduler asked about a pod its nodes still count."""
_MOST_ASKED_AGAIN = 100
_MOST_WAITING = 1000
_MOST_TRIES = 3
"""Most plans for one pod, and writes, while node or pod change all the time."""

_GONE = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)
_FAILURES = (Gone, Rejected, Unavailable)

log = logging.getLogger(__name__)


class PreemptionApi(Protocol):
    """The part of the API that is needed to evict pods."""

    def find_pod(self, namespace: str, name: str) -> Json | None:
        """Get one pod; ``None`` if it does not exist."""
        ...

    def patch_pod_status(self, namespace: str, name: str, patch: Json) -> None:
        """Apply a merge patch to the status of a pod."""
        ...

    def evict(self, namespace: str, name: str, uid: str) -> None:
        """Evict a pod."""
        ...

    def list_budgets(self) -> list[Json]:
        """List all PodDisruptionBudgets."""
        ...

    def create_event(self, notice: Notice, at: float) -> None:
        """Create an Event."""
        ...


@dataclass(eq=False)
class Preemption:
    """Evicts pods. :meth:`consider` is thread-safe, :meth:`run` belongs to one thread.

    Attributes:
        state: the cluster.
        nominations: those of the state.
        api: the API server.
        not_leading: returns why this replica must evict nobody; empty if it may.
        policy: how a share's card is chosen; must be the agents'.
        on_result: called with what became of a pod, one word, for metrics.
        on_victim: called for each evicted pod.
        clock: monotonic seconds.
        is_writing: whether a write may be in progress.
    """

    state: State
    nominations: Nominations
    api: PreemptionApi
    _: KW_ONLY
    not_leading: Callable[[], str]
    policy: Policy = Policy.BINPACK
    on_result: Callable[[str], None] = lambda _result: None
    on_victim: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    is_writing: bool = field(default=False, init=False)
    _leads: bool = field(default=False, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _waiting: dict[str, Preemptor] = field(default_factory=dict, init=False)
    _since: dict[str, float] = field(default_factory=dict, init=False)
    _changed: threading.Event = field(default_factory=threading.Event, init=False)
    _nominated: dict[str, Preemptor] = field(default_factory=dict, init=False)
    _asked: dict[str, float] = field(default_factory=dict, init=False)
    _evicted: dict[str, float] = field(default_factory=dict, init=False)
    _refused: dict[str, float] = field(default_factory=dict, init=False)
    _unused: dict[str, float] = field(default_factory=dict, init=False)
    _search: VictimSearch = field(init=False)
    _to_clear: dict[str, PodId] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Make the search for victims."""
        self._search = VictimSearch(self.state, self.nominations, self.policy)

    def consider(self, obj: Mapping[str, Any], pod: PodInfo, found: FilterResult) -> bool:
        """Remember a pod that fits on no node; forget it if it fits on one.

        Args:
            obj: the pod object.
            pod: the pod.
            found: what filter has found for the nodes that passed kube-scheduler's filters.

        Returns:
            Whether victims are looked for, by the replica that leads.
        """
        standing = read_standing(obj)
        with self._lock:
            self._waiting.pop(pod.id.uid, None)
            if found.fitting:
                self._since.pop(pod.id.uid, None)
            if found.fitting or not found.failed or not standing.may_preempt:
                return False
            if len(self._waiting) >= _MOST_WAITING:
                del self._waiting[next(iter(self._waiting))]
            self._waiting[pod.id.uid] = self._preemptor(pod, standing.priority, found.failed)
        self._changed.set()
        return True

    def take_over(
        self, obj: Mapping[str, Any], pod: PodInfo, victims: Mapping[str, Sequence[str]]
    ) -> bool:
        """Look for better victims than kube-scheduler has found by the totals of nodes.

        Args:
            obj: the pod object.
            pod: the pod.
            victims: UIDs of kube-scheduler's victims, by node.

        Returns:
            Whether kube-scheduler must evict nobody: not if none of its nodes is one of ours, or
            all need the end of pods without cards.
        """
        uid = pod.id.uid
        with self.state.lock:
            if uid in self.nominations.by_pod:
                return True
            ours = {
                node: uids
                for node, uids in victims.items()
                if all(self.state.node_of(each) == node for each in uids)
            }
        if not ours:
            return False
        priority = read_standing(obj).priority
        with self._lock:
            waiting = self._waiting.get(uid) or self._preemptor(pod, priority, ())
            nodes = (*waiting.nodes, *(each for each in ours if each not in waiting.nodes))
            self._waiting[uid] = replace(waiting, nodes=nodes, victims=ours)
        self._changed.set()
        return True

    def _preemptor(self, pod: PodInfo, priority: int, nodes: Iterable[str]) -> Preemptor:
        now = self.clock()
        since = self._since.setdefault(pod.id.uid, now)
        return Preemptor(pod, priority, tuple(nodes), {}, since, now, now + _SETTLE_SECONDS)

    def run(self, stop: threading.Event) -> None:
        """Preempt until *stop*."""
        while not stop.is_set():
            self._changed.wait(_STEP_SECONDS)
            self._changed.clear()
            stop.wait(_SETTLE_SECONDS)
            self.step()

    def step(self) -> None:
        """Do what is due now."""
        self.is_writing = True
        try:
            if self.not_leading():
                self._leads = False
                self._to_clear.clear()
                with self.state.lock:
                    self.nominations.restore_withdrawn()
                with self._lock:
                    self._waiting.clear()
                return
            if not self._leads:
                self._leads = True
                self._ask_again()
            with self.state.lock:
                nominations = [*self.nominations.by_pod.items()]
            for uid, nomination in nominations:
                self._follow(uid, nomination)
            self._clear_conditions()
            self._look_for_victims()
        finally:
            self.is_writing = False

    def _ask_again(self) -> None:
        """Let kube-scheduler ask again about pods that may preempt: the leader before may not have.

        Otherwise it would ask about them only after some other change in the cluster.
        """
        with self.state.lock:
            nodes = sorted(self.state.node_names)
            pods = [
                (standing.priority, pod)
                for pod in self.state.unbound()
                if (standing := self.nominations.standing(pod.id.uid)) is not None
                and standing.may_preempt
                and pod.id.uid not in self.nominations.by_pod
            ]
        pods.sort(key=lambda each: (-each[0], each[1].rank))
        useful: dict[tuple[PodClass, int], bool] = {}
        for priority, pod in pods[:_MOST_ASKED_AGAIN]:
            key = pod.pod_class, priority
            if key not in useful:
                useful[key] = any(
                    room.fits(pod, room.candidates)
                    for room in self._search.rooms(pod.id.uid, nodes)
                )
            if useful[key] and self._touch(pod, "", dict(ASK_AGAIN)):
                self._to_clear[pod.id.uid] = pod.id

    # --- looking for victims --------------------------------------------------------------

    def _look_for_victims(self) -> None:
        """Preempt for the pods whose time has come, as far as there is time in this step."""
        began, hopeless = self.clock(), set[tuple[PodClass, Sequence[str]]]()
        for each in self._due():  # for whom nobody leaves, nobody leaves for a lower one
            alike = (each.pod.pod_class, each.nodes)
            if self.clock() - began > _STEP_SECONDS:
                with self._lock:
                    self._waiting.setdefault(each.pod.id.uid, each)
            elif alike in hopeless:
                self.on_result("none")
            elif self._preempt(each) == "none" and not each.victims:
                hopeless.add(alike)

    def _due(self) -> list[Preemptor]:
        """Take the pods whose time has come, the highest priority first."""
        now = self.clock()
        self._refused = {each: until for each, until in self._refused.items() if until > now}
        self._search.refused = self._refused.keys()
        self._evicted = {each: until for each, until in self._evicted.items() if until > now}
        self._unused = {each: until for each, until in self._unused.items() if until > now}
        with self.state.lock:
            nominated = self.nominations.by_pod.keys() & self._nominated.keys()
            self._nominated = {uid: self._nominated[uid] for uid in nominated}
            asked = self.nominations.by_pod.keys() & self._asked.keys()
            self._asked = {uid: self._asked[uid] for uid in asked}
        with self._lock:
            self._since = {
                uid: since
                for uid, since in self._since.items()
                if uid in self._waiting or self.state.find(uid) is not None
            }
            due = [each for each in self._waiting.values() if each.due <= now]
            for each in due:
                del self._waiting[each.pod.id.uid]
        return sorted(due, key=lambda each: (-each.priority, each.pod.rank))

    def _preempt(self, preemptor: Preemptor) -> str:
        try:
            result = self._nominate(preemptor)
        except _FAILURES as error:
            result = "unavailable"
            extra = {"pod": str(preemptor.pod), "reason": str(error)}
            log.warning("preemption not possible", extra=extra)
        if result:
            self.on_result(result)
        if result == "waits" and self._is_free(preemptor.pod, preemptor.nodes):
            # kube-scheduler tried the pod before the watch showed that there is room.
            if self._touch(preemptor.pod, "", dict(ASK_AGAIN)):
                self._to_clear[preemptor.pod.id.uid] = preemptor.pod.id
        elif result in {"budgets", "elsewhere", "unavailable", "waits"}:
            self._try_again(preemptor)
        return result

    def _try_again(self, preemptor: Preemptor) -> None:
        """Look again soon: kube-scheduler does not hear that a budget allows more by now.

        But not for long, because other filters of kube-scheduler may have changed meanwhile.
        """
        now = self.clock()
        with self._lock:
            if now - preemptor.asked < _STALE_SECONDS:
                again = replace(preemptor, due=now + _AGAIN_SECONDS)
                self._waiting.setdefault(preemptor.pod.id.uid, again)

    def _nominate(self, preemptor: Preemptor) -> str:
        """Choose victims and write the nomination; return a result, empty if nothing is due."""
        uid = preemptor.pod.id.uid
        for _ in range(_MOST_TRIES):
            with self.state.lock:
                pod, version = self.state.find(uid), self.state.version
                if pod is None or uid in self.nominations.by_pod or self.state.assumed_on(uid):
                    return ""
                if uid in self._unused:
                    return ""
            found = self._search.choose(pod, preemptor, self._read_budgets, now=self.clock())
            if isinstance(found, str):
                return found
            room, victims = found
            with self.state.lock:
                if room.node.name in self.state.changed_since(version):
                    continue
                nomination = self._search.plan(pod, room, victims)
            if nomination is not None and room.node.name in preemptor.victims:
                nomination = replace(nomination, all_leave=True)
            if nomination is None:
                return ""
            self._nominated[uid] = preemptor
            return self._write(pod, nomination)
        return ""

    def _read_budgets(self) -> list[DisruptionBudget]:
        return read_budgets(self.api.list_budgets())

    def _write(self, pod: PodInfo, nomination: Nomination) -> str:
        """Write a nomination into the status of its pod, and evict the first victims."""
        uid = pod.id.uid
        condition = nomination.as_condition(self.state.now())
        if not self._patch(pod.id, nomination.node, condition):
            return ""
        self._to_clear.pop(uid, None)
        with self.state.lock:
            if self.state.find(uid) is not None:
                self.nominations.add(uid, nomination)
            pods = self._pods_on(nomination.node)
            victims = [pods[each].id for each in nomination.victims if each in pods]
        extra = {"pod": str(pod), "node": nomination.node, "victims": len(victims)}
        log.info("nominated", extra=extra)
        names = ", ".join(_name_for(pod.id, each) for each in victims)
        self._notify(
            pod.id,
            REASON,
            f"it fits on no card, so {format_count(len(victims), 'pod')} of lower priority must "
            f"leave node {nomination.node}: {names}",
        )
        self._follow(uid, nomination)
        return "nominated"

    # --- nominations ------------------------------------------------------------------------

    def _follow(self, uid: str, nomination: Nomination) -> None:
        """Evict the victims that are still needed, or end a nomination that is over."""
        with self.state.lock:
            pod = self.state.find(uid)
            if pod is None or self.state.assumed_on(uid):
                return
            over, remaining = self._judge(pod, nomination)
            is_free = not remaining and self._is_free(pod, [nomination.node])
        if over:
            if over == "expired" and is_free:
                self._unused[uid] = self.clock() + _UNUSED_SECONDS
            self._withdraw(pod, over)
        elif is_free and self._asked.get(uid, 0.0) <= self.clock():
            # kube-scheduler may have tried the pod before the watch showed the victims' end.
            self._asked[uid] = self.clock() + _AGAIN_SECONDS
            self._touch(pod, nomination.node, nomination.as_condition(self.state.now()))
        for victim in remaining:
            if self.not_leading() or not self._evict(pod, nomination, victim):
                return

    def _judge(self, pod: PodInfo, nomination: Nomination) -> tuple[str, Sequence[PodInfo]]:
        """Return why a nomination is over, else the victims that must still be evicted."""
        room = self._search.room(pod.id.uid, nomination.node)
        allocations = self.state.allocations(nomination.node)
        if room is None or allocations is None:
            return "lost", ()
        if self.state.now() > nomination.until:
            return "expired", ()
        if room.node.problem is Problem.AGENT_DISCONNECTED:
            return "", ()  # it may come back in time
        leaving = self.nominations.leaving(allocations.pods, self.state.now())
        priority = self.nominations.priority(pod.id.uid)
        victims = [
            EvictablePod(each, 0, allocations.holding(each) or {})
            for each in nomination.victims
            if each in allocations.pods
            and each not in leaving
            # Who may write the status of one pod must not choose victims.
            and self.nominations.priority(each) < priority
        ]
        staying = [each for each in victims if self._stays(each.uid)]
        slow = [each for each in victims if each not in staying]
        if not room.fits(pod, victims):
            return "lost", ()
        if room.fits(pod, slow) and not nomination.all_leave:
            return "", ()
        return "", [allocations.pods[each.uid] for each in staying]

    def _is_free(self, pod: PodInfo, nodes: Sequence[str]) -> bool:
        """Return whether a pod fits on one of these nodes by now."""
        for name in nodes:
            with self.state.lock:
                allocations = self.state.allocations(name)
                if allocations is None:
                    continue
                free = self.state.snapshot_for(pod.id.uid, allocations).free
            if fits_surely(pod.pod_class, allocations.node, free):
                return True
        return False

    def _touch(self, pod: PodInfo, node: str, condition: Json) -> bool:
        """Write a condition, so that kube-scheduler tries the pod again; return whether it was."""
        try:
            return self._patch(pod.id, node, condition)
        except _FAILURES as error:
            log.warning("not asked again", extra={"pod": str(pod), "reason": str(error)})
            return False

    def _stays(self, uid: str) -> bool:
        """Return whether a victim has not been evicted yet."""
        standing = self.nominations.standing(uid)
        if standing is None or standing.ends_at is not None:
            return False
        return self._evicted.get(uid, 0.0) <= self.clock()

    def _evict(self, pod: PodInfo, nomination: Nomination, victim: PodInfo) -> bool:
        """Evict one pod; return whether it ends. If the first one stays, others are looked for."""
        uid, extra = victim.id.uid, {"pod": str(pod), "victim": str(victim)}
        try:
            self.api.evict(victim.id.namespace, victim.id.name, uid)
        except _FAILURES as error:
            if isinstance(error, Rejected) and error.status in _GONE:
                return True
            log.warning("not evicted", extra={**extra, "reason": str(error)})
            # Of any other error it is unknown whether the pod ends: the next step tries it again.
            if isinstance(error, Rejected | TooManyRequests):
                self._refused[uid] = self.clock() + _REFUSED_SECONDS
                with self.state.lock:
                    stay = [self._stays(each) for each in nomination.victims]
                if all(stay):
                    self._withdraw(pod, "refused")
            return False
        self._evicted[uid] = self.clock() + _SHOWN_SECONDS
        self.on_victim()
        log.info("evicted", extra={**extra, "node": nomination.node})
        self._notify(
            victim.id,
            VICTIM_REASON,
            f"by pod {_name_for(victim.id, pod.id)} of higher priority, which fits on no card "
            f"without leaving node {nomination.node} to it",
        )
        return True

    def _withdraw(self, pod: PodInfo, result: str) -> None:
        """End a nomination without success; the pod may then get another one."""
        with self.state.lock:
            self.nominations.withdraw(pod.id.uid)
        self._to_clear[pod.id.uid] = pod.id
        log.warning("nomination withdrawn", extra={"pod": str(pod), "reason": result})
        self.on_result(result)
        self._clear_conditions()
        preemptor = self._nominated.pop(pod.id.uid, None)
        if preemptor is not None:
            self._try_again(preemptor)

    def _clear_conditions(self) -> None:
        """Remove the condition of pods that are bound, or whose nomination was withdrawn."""
        with self.state.lock:
            bound = self.nominations.take_bound()
            nominated = self._to_clear.keys() & self.nominations.by_pod.keys()
        for _ in bound:
            self.on_result("bound")
        self._to_clear |= bound
        for uid in nominated:  # by a write that was not answered: until it is bound or withdrawn
            del self._to_clear[uid]
        for uid, pod in [*self._to_clear.items()]:
            try:
                self._patch(pod, "", None)
            except _FAILURES as error:
                log.warning("condition not removed", extra={"pod": str(pod), "reason": str(error)})
                if not isinstance(error, Rejected) or error.status == HTTPStatus.CONFLICT:
                    continue  # until the next step
            del self._to_clear[uid]

    def _patch(self, pod: PodId, node: str, condition: Json | None) -> bool:
        """Write or remove the condition, and with a nomination the nominated node.

        Returns:
            Whether it was done: not if the pod is gone, or to be nominated and bound, or if another
            replica leads by now.
        """
        for attempt in range(_MOST_TRIES):
            obj = self.api.find_pod(pod.namespace, pod.name)
            if obj is None or obj["metadata"].get("uid") != pod.uid:
                return False
            bound = obj["spec"].get("nodeName")
            if condition is not None and (bound or obj["metadata"].get("deletionTimestamp")):
                return False
            # Unless the pod has changed since it was read: a merge patch replaces lists.
            kept = {each: obj["metadata"].get(each) for each in ("uid", "resourceVersion")}
            conditions = [
                each
                for each in (obj.get("status") or {}).get("conditions") or ()
                if each.get("type") != CONDITION
            ]
            status: Json = {"conditions": [*conditions, *([condition] if condition else [])]}
            ours, nominated = read_nomination(obj), obj["status"].get("nominatedNodeName")
            if node:
                status["nominatedNodeName"] = node
            elif ours is not None and ours.node == nominated:  # else kube-scheduler has chosen it
                status["nominatedNodeName"] = None
            if self.not_leading():
                return False
            try:
                patch = {"metadata": kept, "status": status}
                self.api.patch_pod_status(pod.namespace, pod.name, patch)
            except Rejected as error:
                if error.status != HTTPStatus.CONFLICT or attempt == _MOST_TRIES - 1:
                    raise
            else:
                return True
        return False

    def _pods_on(self, node: str) -> Mapping[str, PodInfo]:
        allocations = self.state.allocations(node)
        return allocations.pods if allocations is not None else {}

    def _notify(self, pod: PodId, reason: str, message: str) -> None:
        subject = EventSubject("Pod", pod.namespace, pod.name, pod.uid)
        notice = Notice(subject, reason, message, warning=False)
        try:
            self.api.create_event(notice, self.state.now())
        except _FAILURES as error:  # such as by another replica already
            log.debug("event not written", extra={"reason": str(error)})


def _name_for(reader: PodId, pod: PodId) -> str:
    """Return how a pod is named to those who may read the Events of another one."""
    return pod.name if pod.namespace == reader.namespace else f"with UID {pod.uid}"
