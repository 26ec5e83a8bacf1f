"""Answers the admission checks of workloads, one after the other, and keeps their cards.

A workload without cards gets the state ``Retry``: Kueue takes its quota back, resets the state to
``Pending``, and would reserve the quota again at once. So it gets ``Retry`` once more: Kueue admits
no workload with a check in that state (``pkg/scheduler/scheduler.go``, ``nominate``). It waits so,
without quota, until its pods find cards, or a time is over: then the state becomes ``Pending``, and
``Requeued`` puts it into Kueue's queue again. If Kueue has evicted others for it, which freed the
wrong cards, no time ends that: it would evict the next ones.

``requeueAfterSeconds`` is not used: with it Kueue 0.19.2 lets the workload keep its quota for that
time (``pkg/controller/core/workload_controller.go``: the backoff is waited for before the check is
looked at).
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from http import HTTPStatus
from typing import Any

from common.apiserver.client import Json
from common.apiserver.errors import REQUEST_ERRORS, Rejected
from gates.cluster import GateApi
from gates.search import Answer, Room, Shortage, WorkloadSearch
from gates.state import GateState
from placement.cluster.nominations import CardPromise, timestamp
from placement.cluster.workloads import NO_ROOM, PodSet, Workload, write_promises
from placement.scoring import Policy

STEP_SECONDS = 1.0
SETTLE_SECONDS = 2.0
"""How long a workload without cards is looked at again before Kueue takes its quota back: our watch
may show the end of pods a moment after Kueue's."""

OFFER_SECONDS = 10.0
"""How long cards are kept for a workload that has waited for them, until it has quota again."""

_WRITERS = 8
"""Most writes at once: what is decided is kept already, so their order does not matter."""
_LONGEST_MESSAGE = 1024
_FORBIDDEN = "parameters: Forbidden: this check has none"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Write:
    """A state of a check to be written; *result* is one of :data:`gates.metrics.RESULTS`."""

    workload: Workload
    name: str
    changes: Json
    result: str


@dataclass(eq=False)
class Checker:
    """Answers. Belongs to one thread.

    Attributes:
        not_leading: returns why this replica must write nothing; empty if it may.
        node_policy: which node a pod prefers.
        keep: seconds for which cards are kept.
        retry: seconds until a workload is tried again although it finds no cards; doubled each
            time. Its priority may be such that Kueue evicts others for it, or it gets another
            flavor.
        longest_retry: the most of these seconds.
        on_result: called with each answer, one word, for metrics.
        is_writing: whether a write may be in progress.
    """

    state: GateState
    api: GateApi
    _: KW_ONLY
    not_leading: Callable[[], str]
    node_policy: Policy = Policy.BINPACK
    keep: float = 300.0
    retry: float = 5.0
    longest_retry: float = 120.0
    on_result: Callable[[str], None] = lambda _result: None
    is_writing: bool = field(default=False, init=False)
    _written: dict[str, str] = field(default_factory=dict, init=False)
    _first_seen: dict[str, float] = field(default_factory=dict, init=False)
    _refused: dict[str, tuple[Workload, str]] = field(default_factory=dict, init=False)
    """The workloads without cards, as they were with quota, and why; by UID."""
    _searched: int = field(default=-1, init=False)
    _writes: list[_Write] = field(default_factory=list, init=False)

    def run(self, stop: threading.Event) -> None:
        """Answer until *stop*."""
        with ThreadPoolExecutor(_WRITERS, "writer") as pool:
            while not stop.is_set():
                self.state.changed.wait(STEP_SECONDS)
                self.state.changed.clear()
                self.step(pool)

    def step(self, pool: Executor) -> None:
        """Answer all that wait."""
        self.state.end_expired_promises()
        self.is_writing = True
        try:
            if self.not_leading():
                self._written.clear()
                return
            for check in self.state.checks.values():
                self._activate(check)
            known = self.state.known_workloads()
            for kept in (self._written, self._first_seen, self._refused):
                for uid in kept.keys() - known:
                    del kept[uid]
            for workload, state in self.state.waiting():
                if self._written.get(workload.uid) != workload.version:
                    self._answer(workload, state)
            self._hold_refused()
            self._try_again()
            writes, self._writes = self._writes, []
            for each, result in zip(writes, pool.map(self._send, writes), strict=True):
                if result == each.result:
                    self._written[each.workload.uid] = each.workload.version
                if result:
                    self.on_result(result)
        finally:
            self.is_writing = False

    def _activate(self, check: Json) -> None:
        """Report to Kueue that an AdmissionCheck is served: else its queues admit nothing."""
        wanted = "False" if check["spec"].get("parameters") else "True"
        conditions = (check.get("status") or {}).get("conditions") or []
        found = next((each for each in conditions if each.get("type") == "Active"), None)
        if found is not None and found.get("status") == wanted:
            return
        condition = {
            "type": "Active",
            "status": wanted,
            "reason": "Active" if wanted == "True" else "BadParametersRef",
            "message": "the check is served" if wanted == "True" else _FORBIDDEN,
            "lastTransitionTime": timestamp(self.state.now()),
            "observedGeneration": check["metadata"].get("generation", 1),
        }
        others = [each for each in conditions if each.get("type") != "Active"]
        metadata = {"resourceVersion": check["metadata"].get("resourceVersion")}
        patch = {"metadata": metadata, "status": {"conditions": [*others, condition]}}
        name = check["metadata"]["name"]
        try:
            self.api.patch_check_status(name, patch)
        except REQUEST_ERRORS as error:
            log.warning("check not activated", extra={"check": name, "reason": str(error)})

    def _answer(self, workload: Workload, check: Mapping[str, Any]) -> None:
        now = self.state.now()
        until = now + self.keep
        kept_until, kept = workload.promises()
        found, waits = self.decide(workload, int(until))
        if isinstance(found, Shortage):
            first = self._first_seen.setdefault(workload.uid, now)
            if now - max(first, workload.since) >= SETTLE_SECONDS:
                self._refused[workload.uid] = workload, found.reason
                self._write(workload, check, _refusal(found.reason), "retry")
            return
        self._first_seen.pop(workload.uid, None)
        self._refused.pop(workload.uid, None)
        if waits and kept and kept_until - now > self.keep / 2:
            self.state.set_promises(workload, found, until)
            return  # it has been written that it waits for pods that end
        message = write_promises(found, until) if found else "its pods request no card"
        state: Json = {"state": "Pending" if waits else "Ready", "message": message}
        if not waits:
            state["podSetUpdates"] = [
                {
                    "name": each.name,
                    "annotations": {self.state.names.gpu_promise: workload.annotation(each.name)},
                }
                for each in workload.pod_sets
                if each.name in found
            ]
        with self.state.lock:
            self.state.set_promises(workload, found, until)
        self._write(workload, check, state, "waits" if waits else "ready")

    def _hold_refused(self) -> None:
        """Keep Kueue from reserving quota again for workloads without cards."""
        for workload, check in self.state.without_quota("Pending"):
            found = self._refused.get(workload.uid)
            if found is not None and self._written.get(workload.uid) != workload.version:
                self._write(workload, check, _refusal(found[1]), "held")

    def _try_again(self) -> None:
        """Let Kueue reserve quota for workloads that find cards now, or have waited for long."""
        now, version = self.state.now(), self.state.version
        changed, hopeless = version != self._searched, set[object]()
        for workload, check in self.state.without_quota("Retry"):
            if self._written.get(workload.uid) == workload.version:
                continue
            message = "it is tried again"
            if changed:
                refused, _ = self._refused.get(workload.uid, (workload, ""))
                as_refused = replace(workload, pod_sets=refused.pod_sets)
                shape = as_refused.shape(self.state.flavors)
                if shape not in hopeless and (found := self._find_now(as_refused)):
                    self.state.offer(workload, found, now + OFFER_SECONDS)
                    message = "cards are free"
                else:
                    hopeless.add(shape)
            if message == "cards are free" or (
                now >= self._tried_again_at(check) and not self.state.has_preempted(workload)
            ):
                self._refused.pop(workload.uid, None)
                self._write(workload, check, {"state": "Pending", "message": message}, "requeued")
        self._searched = version

    def _find_now(self, workload: Workload) -> Mapping[str, Sequence[CardPromise]]:
        """Return cards for all pods that are free already; none if some pod fits nowhere."""
        found, waits = self.decide(workload, int(self.state.now() + OFFER_SECONDS))
        return {} if isinstance(found, Shortage) or waits else found

    def _tried_again_at(self, check: Mapping[str, Any]) -> float:
        count = max((check.get("retryCount") or 0) - 1, 0)
        since = datetime.fromisoformat(check["lastTransitionTime"]).timestamp()
        return since + min(self.retry * 2.0 ** min(count, 10), self.longest_retry)

    def decide(self, workload: Workload, until: int) -> tuple[Answer, bool]:
        """Return the cards of all pods, and whether they are free only once other pods have ended.

        What is kept for the workload already counts as free.
        """
        with self.state.lock:
            before = workload.promises()
            self.state.set_promises(workload, {}, 0.0)
            flavors, policy = self.state.flavors, self.state.policy
            answer: Answer = Shortage("")
            for later in (False, True):
                search = WorkloadSearch(self._rooms(later=later), flavors, policy, self.node_policy)
                answer = search.place(workload, lambda each: self._needed(workload, each), until)
                if not isinstance(answer, Shortage):
                    return answer, later
                if not later:
                    reason = answer
            self.state.set_promises(workload, before[1], 0.0)
            return reason, False

    def _needed(self, workload: Workload, pod_set: PodSet) -> int:
        """Return how many pods of a pod set need cards: not those that have some, and stay."""
        nominations, live = self.state.nominations, 0
        for uid in nominations.members(workload.key(pod_set.name)):
            standing = nominations.standing(uid)
            live += standing is not None and standing.ends_at is None
        return max(pod_set.count - live, 0)

    def _rooms(self, *, later: bool) -> Sequence[Room]:
        """Return all nodes as new pods find them, now or once all have ended that are to end."""
        rooms = []
        for name in sorted(self.state.node_names):
            allocations = self.state.allocations(name)
            if allocations is None:
                continue
            if later:
                free = self.state.held_later("", allocations)[0].free
            else:
                free = self.state.snapshot_for("", allocations).free
            rooms.append(Room(allocations.node, free, self.state.terms(name)))
        return rooms

    def _write(
        self, workload: Workload, check: Mapping[str, Any], changes: Json, result: str
    ) -> None:
        self._writes.append(_Write(workload, check["name"], changes, result))

    def _send(self, write: _Write) -> str:
        """Write the state of a check, unless the workload has changed since it was read.

        Returns:
            What has become of it: its result if it was written; empty if nothing was sent.
        """
        workload, changes, text = write.workload, write.changes, timestamp(self.state.now())
        status: Json = {
            "admissionChecks": [
                {**each, **changes, "lastTransitionTime": text}
                if each["name"] == write.name
                else each
                for each in workload.checks
            ]
        }
        if write.result == "requeued":
            # A workload that Kueue has set aside comes back if this condition changes.
            others = [each for each in workload.conditions if each["type"] != "Requeued"]
            requeued = {"type": "Requeued", "status": "True", "reason": "AdmissionCheck"}
            more = {"message": changes["message"], "lastTransitionTime": text}
            status["conditions"] = [*others, requeued | more]
        patch = {"metadata": {"resourceVersion": workload.version}, "status": status}
        if self.not_leading():
            return ""
        try:
            self.api.patch_workload_status(workload.namespace, workload.name, patch)
        except REQUEST_ERRORS as error:
            # It may have been written: the cards are kept until the watch shows what has become.
            if isinstance(error, Rejected) and error.status in _CHANGED:
                return "conflict"
            log.warning("not answered", extra={"workload": str(workload), "reason": str(error)})
            return "unavailable"
        extra = {"workload": str(workload), "result": write.result}
        if changes["state"] == "Retry":
            extra["reason"] = changes["message"]
        log.info("answered", extra=extra)
        return write.result


def _refusal(reason: str) -> Json:
    return {
        "state": "Retry",
        "message": f"{NO_ROOM}{reason}"[:_LONGEST_MESSAGE],
        "requeueAfterSeconds": None,
        "podSetUpdates": None,
    }


_CHANGED = (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND)
