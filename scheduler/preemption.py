"""Preemption by card: evicts pods of lower priority for a pod that fits on no card.

The same thread lets kube-scheduler ask again about pods that it asked about a moment too early
(:mod:`scheduler.refused`), also if nobody is evicted.

kube-scheduler evicts nobody where the totals of a node suffice. Here filter reports each pod that
fits nowhere, with the nodes that passed kube-scheduler's own filters. A thread of the leader

1. takes these pods (:mod:`scheduler.preemptors`) and looks for the cheapest victims on one of their
   nodes (:mod:`placement.cluster.preemption`),
2. writes the nomination into the pod's status (:mod:`scheduler.writer`), before anybody is
   evicted, so that the next leader goes on with it, and every replica keeps the cards,
3. evicts the victims by the Eviction API, as long as the pod still needs their room
   (:mod:`scheduler.evictor`),
4. ends the nomination once the pod is bound or gone, or its time is over.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field

from common.apiserver.errors import REQUEST_ERRORS
from placement.cluster.nominations import Nomination
from placement.pods import PodClass, PodId, PodInfo
from scheduler.budgets import read_budgets
from scheduler.cluster import SchedulerApi
from scheduler.evictor import Evictor
from scheduler.preemptors import SETTLE_SECONDS, Preemptor, Preemptors
from scheduler.refused import RefusedPods
from scheduler.state import State
from scheduler.victims import VictimSearch
from scheduler.writer import MOST_TRIES, PreemptionWriter

_STEP_SECONDS = 1.0
_MOST_ASKED_AGAIN = 100

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Preemption:
    """Evicts pods. Belongs to one thread.

    Attributes:
        not_leading: returns why this replica must evict nobody; empty if it may.
        on_result: called with what became of a pod, one word, for metrics.
        on_victim: called for each evicted pod.
        clock: monotonic seconds.
        preemptors: the pods that fit nowhere, and for which others are evicted.
        refused: the pods that were refused just now.
        is_writing: whether a write may be in progress.
    """

    state: State
    api: SchedulerApi
    _: KW_ONLY
    not_leading: Callable[[], str]
    on_result: Callable[[str], None] = lambda _result: None
    on_victim: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    preemptors: Preemptors = field(init=False)
    refused: RefusedPods = field(init=False)
    is_writing: bool = field(default=False, init=False)
    _leads: bool = field(default=False, init=False)
    _nominated: dict[str, Preemptor] = field(default_factory=dict, init=False)
    _search: VictimSearch = field(init=False)
    _writer: PreemptionWriter = field(init=False)
    _evictor: Evictor = field(init=False)

    def __post_init__(self) -> None:
        self.preemptors = Preemptors(self.state, self.clock)
        self.refused = RefusedPods(self.state, self.clock)
        self._search = VictimSearch(self.state)
        self._writer = PreemptionWriter(self.api, self.not_leading, self.on_victim, self.state.now)
        self._evictor = Evictor(self.state, self._search, self._writer, self.clock)

    def run(self, stop: threading.Event) -> None:
        """Preempt until *stop*."""
        while not stop.is_set():
            self.preemptors.changed.wait(_STEP_SECONDS)
            self.preemptors.changed.clear()
            stop.wait(SETTLE_SECONDS)
            self.step()

    def step(self) -> None:
        """Do what is due now."""
        self.refused.pass_over(self.state.end_expired_promises())
        self.is_writing = True
        try:
            if self.not_leading():
                self._leads = False
                self._writer.forget()
                with self.state.lock:
                    self.state.nominations.restore_withdrawn()
                self.preemptors.clear()
                self.refused.clear()
                return
            if not self._leads:
                self._leads = True
                self._ask_again()
            with self.state.lock:
                nominations = [*self.state.nominations.by_pod.items()]
            for uid, nomination in nominations:
                self._follow(uid, nomination)
            self._remove_conditions()
            self._look_for_victims()
            for pod in self.refused.take_released(self._search):
                self._writer.ask_again(pod.id)
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
                if (standing := self.state.nominations.standing(pod.id.uid)) is not None
                and standing.may_preempt
                and pod.id.uid not in self.state.nominations.by_pod
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
            if useful[key]:
                self._writer.ask_again(pod.id)

    # --- looking for victims --------------------------------------------------------------

    def _look_for_victims(self) -> None:
        """Preempt for the pods whose time has come, as far as there is time in this step."""
        self._evictor.forget_past()
        with self.state.lock:
            nominated = self.state.nominations.by_pod.keys() & self._nominated.keys()
        self._nominated = {uid: self._nominated[uid] for uid in nominated}
        began, hopeless = self.clock(), set[tuple[PodClass, Sequence[str]]]()
        for each in self.preemptors.take_due():
            alike = (each.pod.pod_class, each.nodes)
            if self.clock() - began > _STEP_SECONDS:
                self.preemptors.put_back(each)
            elif alike in hopeless:  # for whom nobody leaves, nobody leaves for a lower one
                self.on_result("none")
            elif self._preempt(each) == "none" and not each.victims:
                hopeless.add(alike)

    def _preempt(self, preemptor: Preemptor) -> str:
        try:
            result = self._nominate(preemptor)
        except REQUEST_ERRORS as error:
            result = "unavailable"
            extra = {"pod": str(preemptor.pod), "reason": str(error)}
            log.warning("preemption not possible", extra=extra)
        if result:
            self.on_result(result)
        if result in {"budgets", "elsewhere", "unavailable", "waits"}:
            self.preemptors.try_again(preemptor)
        return result

    def _nominate(self, preemptor: Preemptor) -> str:
        """Choose victims and write the nomination; return a result, empty if nothing is due."""
        uid, nominations = preemptor.pod.id.uid, self.state.nominations
        if uid in self._evictor.unused:
            return ""
        for _ in range(MOST_TRIES):
            with self.state.lock:
                pod, version = self.state.find(uid), self.state.version
                if pod is None or uid in nominations.by_pod or self.state.assumed_on(uid):
                    return ""
            found = self._search.choose(
                pod, preemptor, lambda: read_budgets(self.api.list_budgets()), now=self.clock()
            )
            if isinstance(found, str):
                return found
            room, victims = found
            with self.state.lock:
                if room.node.name in self.state.changed_since(version):
                    continue
                all_leave = room.node.name in preemptor.victims
                nomination = self._search.plan(pod, room, victims, all_leave=all_leave)
            if nomination is None:
                return ""
            self._nominated[uid] = preemptor
            return self._write(pod, nomination)
        return ""

    def _write(self, pod: PodInfo, nomination: Nomination) -> str:
        """Write a nomination into the status of its pod, and evict the first victims."""
        if not self._writer.nominate(pod.id, nomination):
            return ""
        with self.state.lock:
            if self.state.find(pod.id.uid) is not None:
                self.state.nominations.add(pod.id.uid, nomination)
            allocations = self.state.allocations(nomination.node)
            pods = allocations.pods if allocations is not None else {}
            victims = [pods[each].id for each in nomination.victims if each in pods]
        self._writer.report(pod.id, nomination.node, victims)
        self._follow(pod.id.uid, nomination)
        return "nominated"

    # --- nominations ------------------------------------------------------------------------

    def _follow(self, uid: str, nomination: Nomination) -> None:
        """Evict the victims that are still needed, or withdraw a nomination that is over.

        After that the pod may get another one.
        """
        pod = self.state.find(uid)
        over = self._evictor.follow(pod, nomination) if pod is not None else ""
        if pod is None or not over:
            return
        with self.state.lock:
            self.state.nominations.withdraw(uid)
        log.warning("nomination withdrawn", extra={"pod": str(pod), "reason": over})
        self.on_result(over)
        self._remove_conditions(pod.id)
        preemptor = self._nominated.pop(uid, None)
        if preemptor is not None:
            self.preemptors.try_again(preemptor)

    def _remove_conditions(self, *withdrawn: PodId) -> None:
        """Remove the condition of pods that are bound, or whose nomination was withdrawn."""
        with self.state.lock:
            bound = self.state.nominations.take_bound()
            nominated = {*self.state.nominations.by_pod}
        for _ in bound:
            self.on_result("bound")
        self._writer.remove([*withdrawn, *bound.values()], nominated)
