"""What Kueue has decided about the Workload of a pod or of a Job, in words. Pure.

Kueue reserves quota for a Workload, asks the AdmissionChecks of its queue, and admits it once all
are ``Ready``. Before that, a pod has Kueue's scheduling gate, and a Job is suspended.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from contract.names import Names
from placement.cluster.workloads import NO_ROOM, Workload, read_workload
from view.model.node_facts import find_condition
from view.model.words import clamp, name_some, rfc3339

GATES = ("kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology")
"""Scheduling gates that Kueue removes from a pod that it admits."""

_PREFIX = "kueue.x-k8s.io/"
JOB_UID = f"{_PREFIX}job-uid"
"""Label of a Workload: the UID of the Job, or of the pod, that owns it."""

_NAMING = tuple(f"{_PREFIX}{each}" for each in ("workload", "pod-group-name"))
_PREBUILT = f"{_PREFIX}prebuilt-workload-name"
_RETRIED = re.compile(r'Evicted due to AdmissionCheck in Retry state: "(\S+)" \((.*)\)', re.DOTALL)
"""Kueue's message after a check has answered ``Retry``; the state of the check itself is reset."""

_RESET = "Reset to Pending after eviction"
_NO_CONTROLLER = "If this lasts, its controller does not run: kubectl gpu doctor"
_INACTIVE_CHECK = "inactive AdmissionCheck"
Json = Mapping[str, Any]
PodsEnding = Callable[[str, AbstractSet[int]], Iterable[str]]
"""Returns the pods, such as ``team/a``, that end on some cards of a node, by their indices."""


class QueueState(StrEnum):
    """How far Kueue has come with a Workload."""

    PENDING = "pending"
    """Without quota."""
    CHECKING = "checking"
    """With quota; not all AdmissionChecks are ``Ready``."""
    ADMITTED = "admitted"
    INACTIVE = "inactive"
    """Deactivated: Kueue does not try it again."""
    FINISHED = "finished"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class QueueReport:
    """What Kueue has decided about the Workload of a pod or of a Job."""

    workload: Annotated[str, "its name; empty if there is none, or it could not be read."]
    queue: Annotated[str, "its LocalQueue; empty if unknown."]
    cluster_queue: Annotated[str, "the ClusterQueue of that; empty if unknown."]
    state: Annotated[QueueState, "how far Kueue has come."]
    text: Annotated[str, "the same in a sentence, with the reason."]
    at: Annotated[str, "since when; empty if unknown."] = ""
    kept_until: Annotated[str, "until when cards are kept for its pods; empty if none are."] = ""
    retry_at: Annotated[str, "when Kueue tries again; empty if it has set no time."] = ""

    @property
    def waits(self) -> bool:
        """Whether its pods do not exist yet, or wait for Kueue's scheduling gate."""
        return self.state in (QueueState.PENDING, QueueState.CHECKING, QueueState.INACTIVE)


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """What could be read of Kueue.

    Attributes:
        obj: the Workload; ``None`` if there is none.
        cluster_queue: the ClusterQueue of its LocalQueue.
        inactive: why that admits nothing, as Kueue words it; empty if it does.
        unread: why the Workload could not be read; else empty.
    """

    obj: Json | None
    cluster_queue: str = ""
    inactive: str = ""
    unread: str = ""


@dataclass(frozen=True, slots=True)
class QueueKey:
    """By what the Workload of a pod or of a Job is found.

    Attributes:
        names: names that it may have.
        uids: of its owner, which is the pod itself, its controller or the Job.
    """

    names: tuple[str, ...]
    uids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkloadExplanation:
    """A Job without pods, and what Kueue has decided about it."""

    kind: Annotated[str, "``Job``."]
    namespace: Annotated[str, "its namespace."]
    name: Annotated[str, "its name."]
    created: Annotated[str, "time of its creation."]
    queue: Annotated[QueueReport, "what Kueue has decided."]


def find_key(metadata: Json, uids: Iterable[str], names: Names) -> QueueKey | None:
    """Return by what the Workload of an object is found; ``None`` without a mark of Kueue."""
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    marks = {**labels, **annotations}
    promise = annotations.get(names.gpu_promise)
    if promise is None and not any(str(each).startswith(_PREFIX) for each in marks):
        return None
    found = [marks.get(each) for each in (*_NAMING, _PREBUILT)]
    found.append(str(promise).partition("/")[0] if promise else None)
    own = dict.fromkeys(each for each in found if isinstance(each, str) and each)
    return QueueKey(tuple(own), tuple(filter(None, uids)))


def newest(workloads: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the newest of several Workloads, such as slices of an elastic Job, that goes on."""
    return max(
        workloads,
        key=lambda each: (
            not _holds(each, "Finished"),
            each["metadata"].get("creationTimestamp") or "",
        ),
    )


def report_queue(facts: QueueFacts, names: Names, ending: PodsEnding) -> QueueReport:
    """Return what Kueue has decided; *ending* is asked about the cards that are kept."""
    if facts.unread or facts.obj is None:
        text = f"what Kueue has decided about it is unknown ({clamp(facts.unread)})"
        if not facts.unread:
            text = "Kueue has not made a Workload for it yet"
        state = QueueState.UNKNOWN if facts.unread else QueueState.PENDING
        return QueueReport("", "", "", state, text)
    obj, workload = facts.obj, read_workload(facts.obj, names)
    status = obj.get("status") or {}
    state = _state(obj)
    queue = clamp((obj.get("spec") or {}).get("queueName"))
    of = facts.cluster_queue or clamp((status.get("admission") or {}).get("clusterQueue"))
    where = f"queue {queue}" + f" (ClusterQueue {of})" * bool(of)
    retry_at = clamp((status.get("requeueState") or {}).get("requeueAt"))
    until = workload.promises()[0]
    kept_until = rfc3339(datetime.fromtimestamp(until, UTC)) if until else ""
    match state:
        case QueueState.FINISHED:
            text = f"its Workload has finished{_quoted(_message(obj, 'Finished'))}"
        case QueueState.INACTIVE:
            text = f"Workload {workload.name} is deactivated (spec.active: false), so Kueue does "
            text += f"not try it again{_quoted(_message(obj, 'Evicted'))}"
        case QueueState.ADMITTED:
            text = f"it is admitted in {where}"
            text += f"; its cards are kept until {kept_until}" if kept_until else ""
        case QueueState.CHECKING:
            checks = _checks(workload, kept_until, ending)
            text = f"it has quota in {where}; {'; '.join(checks) or 'Kueue admits it next'}"
        case _:
            text = f"it waits in {where}{_why_pending(obj, workload, facts.inactive)}"
            text += f". Kueue tries again at {retry_at}" if retry_at else ""
    return QueueReport(
        workload.name, queue, of, state, text, _since(obj, state), kept_until, retry_at
    )


def _state(obj: Json) -> QueueState:
    if _holds(obj, "Finished"):
        return QueueState.FINISHED
    if (obj.get("spec") or {}).get("active") is False:
        return QueueState.INACTIVE
    if _holds(obj, "Evicted") or not _holds(obj, "QuotaReserved"):
        return QueueState.PENDING
    return QueueState.ADMITTED if _holds(obj, "Admitted") else QueueState.CHECKING


_DECIDES = {
    QueueState.PENDING: "QuotaReserved",
    QueueState.CHECKING: "QuotaReserved",
    QueueState.ADMITTED: "Admitted",
    QueueState.INACTIVE: "Evicted",
    QueueState.FINISHED: "Finished",
}


def _since(obj: Json, state: QueueState) -> str:
    found = find_condition(obj.get("status") or {}, _DECIDES[state])
    return clamp(found.get("lastTransitionTime"))


def _why_pending(obj: Json, workload: Workload, inactive: str) -> str:
    """Return why a Workload has no quota: its queue, the answer of a check, or Kueue's reason."""
    if inactive:
        hint = " (its controller does not run: kubectl gpu doctor)"
        return _quoted(inactive) + hint * (_INACTIVE_CHECK in inactive)
    for each in workload.checks:
        if each.get("state") == "Retry":  # Kueue reserves no quota as long as that lasts
            message = clamp(each.get("message"))
            until = ". It gets quota again once it finds cards" * message.startswith(NO_ROOM)
            return f": check {clamp(each.get('name'))}{_quoted(message)}{until}"
    quota = "" if _holds(obj, "QuotaReserved") else _message(obj, "QuotaReserved")
    evicted = _message(obj, "Evicted") if _holds(obj, "Evicted") else ""
    retried = _RETRIED.fullmatch(evicted)
    before = f": check {retried[1]}{_quoted(retried[2])}" if retried else _quoted(evicted)
    if not quota or quota == evicted:
        return before or ": Kueue has not decided about it yet"
    return f" for quota{_quoted(quota)}" + (f", after it was evicted{before}" if before else "")


def _checks(workload: Workload, kept_until: str, ending: PodsEnding) -> Iterator[str]:
    """Describe the checks that are not Ready."""
    for each in workload.checks:
        name, state = clamp(each.get("name")), each.get("state")
        message = clamp(each.get("message"))
        if state == "Ready":
            continue
        if state == "Pending" and message.startswith("{"):
            until = f" until {kept_until}" if kept_until else ""
            pods = name_some(_ending(workload, ending)) or "pods that hold them"
            yield f"check {name} keeps cards for it{until}, and waits for the end of {pods}"
        elif state == "Pending" and (not message or message.startswith(_RESET)):
            since = clamp(each.get("lastTransitionTime"))
            yield f"check {name} has not answered since {since}. {_NO_CONTROLLER}"
        else:
            yield f"check {name} is {state}{_quoted(message)}"


def _ending(workload: Workload, ending: PodsEnding) -> Sequence[str]:
    """Return the pods that end on the cards that are kept for a workload."""
    cards: dict[str, set[int]] = {}
    for promises in workload.promises()[1].values():
        for each in promises:
            for indices in each.nomination.cards.values():
                cards.setdefault(each.nomination.node, set()).update(indices)
    return sorted({pod for node, indices in cards.items() for pod in ending(node, indices)})


def _holds(obj: Json, kind: str) -> bool:
    return find_condition(obj.get("status") or {}, kind).get("status") == "True"


def _message(obj: Json, kind: str) -> str:
    return clamp(find_condition(obj.get("status") or {}, kind).get("message"))


def _quoted(message: str) -> str:
    return f': "{message}"' if message else ""
