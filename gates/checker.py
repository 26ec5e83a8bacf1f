"""Answers the admission checks of workloads, one after the other, and keeps their cards."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from http import HTTPStatus
from typing import Any

from common.apiserver.client import Json
from common.apiserver.errors import REQUEST_ERRORS, Rejected
from gates.cluster import GateApi
from gates.search import Answer, Room, Shortage, WorkloadSearch
from gates.state import GateState
from placement.cluster.nominations import timestamp
from placement.cluster.workloads import PodSet, Workload, write_promises
from placement.scoring import Policy

STEP_SECONDS = 1.0
SETTLE_SECONDS = 2.0
"""How long a workload without cards is looked at again before Kueue takes its quota back: our watch
may show the end of pods a moment after Kueue's."""

_LONGEST_MESSAGE = 1024
_FORBIDDEN = "parameters: Forbidden: this check has none"

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Checker:
    """Answers. Belongs to one thread.

    Attributes:
        not_leading: returns why this replica must write nothing; empty if it may.
        node_policy: which node a pod prefers.
        keep: seconds for which cards are kept.
        retry: seconds until Kueue tries a workload without cards again; doubled each time.
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

    def run(self, stop: threading.Event) -> None:
        """Answer until *stop*."""
        while not stop.is_set():
            self.state.changed.wait(STEP_SECONDS)
            self.state.changed.clear()
            self.step()

    def step(self) -> None:
        """Answer all that wait."""
        self.state.end_expired_promises()
        self.is_writing = True
        try:
            if self.not_leading():
                self._written.clear()
                return
            for check in self.state.checks.values():
                self._activate(check)
            waiting = self.state.waiting()
            uids = {each.uid for each, _ in waiting}
            self._written = {uid: at for uid, at in self._written.items() if uid in uids}
            self._first_seen = {uid: at for uid, at in self._first_seen.items() if uid in uids}
            for workload, state in waiting:
                if self._written.get(workload.uid) != workload.version:
                    self._answer(workload, state)
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
            if now - max(first, workload.since) < SETTLE_SECONDS:
                return
            self._write(workload, check, self._refusal(check, found.reason))
            return
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
        self._write(workload, check, state)

    def _refusal(self, check: Mapping[str, Any], reason: str) -> Json:
        count = check.get("retryCount") or 0
        seconds = min(self.retry * 2 ** min(count, 10), self.longest_retry)
        return {
            "state": "Retry",
            "message": f"no room on cards: {reason}"[:_LONGEST_MESSAGE],
            "requeueAfterSeconds": int(seconds),
            "retryCount": count + 1,
            "podSetUpdates": None,
        }

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

    def _write(self, workload: Workload, check: Mapping[str, Any], changes: Json) -> None:
        """Write the state of a check, unless the workload has changed since it was read."""
        name, text = check["name"], timestamp(self.state.now())
        states = [
            {**each, **changes, "lastTransitionTime": text} if each["name"] == name else each
            for each in workload.checks
        ]
        patch = {
            "metadata": {"resourceVersion": workload.version},
            "status": {"admissionChecks": states},
        }
        result = {"Ready": "ready", "Retry": "retry"}.get(changes["state"], "waits")
        if self.not_leading():
            return
        try:
            self.api.patch_workload_status(workload.namespace, workload.name, patch)
        except REQUEST_ERRORS as error:
            conflict = isinstance(error, Rejected) and error.status in _CHANGED
            result = "conflict" if conflict else "unavailable"
            if not conflict:
                log.warning("not answered", extra={"workload": str(workload), "reason": str(error)})
            # It may have been written: the cards are kept until the watch shows what has become.
        else:
            self._written[workload.uid] = workload.version
            extra = {"workload": str(workload), "state": changes["state"]}
            if changes["state"] == "Retry":
                extra["reason"] = changes["message"]
            log.info("answered", extra=extra)
        self.on_result(result)


_CHANGED = (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND)
