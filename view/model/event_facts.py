"""Events about GPU pods, and about workloads whose pods are denied, until these want no more."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from contract.names import Names
from view.model.reports import DeniedReport, EventReport
from view.model.words import clamp

CONTROLLERS = ("DaemonSet", "Job", "ReplicaSet", "ReplicationController", "StatefulSet")
"""The kinds of Kubernetes' own controllers of pods."""

SCALED = ("ReplicaSet", "ReplicationController", "StatefulSet")
"""Those that keep as many pods as their ``spec.replicas`` says."""

_OURS = "gpu-turnstile"


def _ids_of(obj: Mapping[str, Any]) -> tuple[str, str]:
    """Return the UIDs of an Event and of its object; the latter is empty if the Event has none."""
    metadata, about = obj["metadata"], obj.get("involvedObject") or {}
    own = metadata.get("uid") or f"{metadata.get('namespace')}/{metadata.get('name')}"
    return own, about.get("uid") or ""


class EventFacts:
    """Events about pods, and about workloads whose pods cannot be created."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._of_pods: dict[str, dict[str, EventReport]] = {}  # by UID of the pod
        self._denied: dict[
            str, tuple[str, DeniedReport]
        ] = {}  # by UID of the Event: UID of the owner

    def put(self, obj: Mapping[str, Any]) -> str:
        """Add an Event; return the UID of its object, which may be added later."""
        uid, about = _ids_of(obj)
        report = read_event(obj, self._names)
        if isinstance(report, DeniedReport):
            self._denied[uid] = about, report
        elif report is not None:
            self._of_pods.setdefault(about, {})[uid] = report
        return about

    def drop(self, obj: Mapping[str, Any]) -> str:
        """Remove an Event that has expired; return the UID of its object."""
        uid, about = _ids_of(obj)
        self._denied.pop(uid, None)
        if self._of_pods.get(about, {}).pop(uid, None) and not self._of_pods[about]:
            del self._of_pods[about]
        return about

    def of(self, pod: str) -> tuple[EventReport, ...]:
        """Return the Events of a pod, the newest first, then by reason and message."""
        by_text = sorted(
            self._of_pods.get(pod, {}).values(), key=lambda each: (each.reason, each.message)
        )
        return tuple(sorted(by_text, key=lambda each: each.at, reverse=True))

    def denied(self) -> Iterator[tuple[str, DeniedReport]]:
        """Return the UIDs of owners whose pods could not be created, each with its report.

        That is the newest Event of an owner, with the count of all: a quota's message names the
        pod, so each try has an Event of its own.
        """
        found: dict[tuple[str, ...], list[DeniedReport]] = {}
        for about, each in self._denied.values():
            found.setdefault((about, each.kind, each.namespace, each.name), []).append(each)
        for (about, *_), reports in found.items():
            newest = max(reports, key=lambda each: (each.at, each.message))
            yield about, replace(newest, count=sum(each.count for each in reports))


def read_event(obj: Mapping[str, Any], names: Names) -> EventReport | DeniedReport | None:
    """Read a ``v1`` Event about a pod, or about pods denied because of their GPU request.

    ``None`` for all other Events.
    """
    metadata, about = obj["metadata"], obj.get("involvedObject") or {}
    series, kind = obj.get("series") or {}, about.get("kind") or ""
    at = (
        obj.get("lastTimestamp")
        or series.get("lastObservedTime")
        or obj.get("eventTime")
        or metadata.get("creationTimestamp")
        or ""
    )
    at = str(at)[:19] + "Z" if at else ""
    reason, message = clamp(obj.get("reason")), clamp(obj.get("message"))
    count = int(obj.get("count") or series.get("count") or 1)
    if kind == "Pod":
        source = obj.get("reportingComponent") or (obj.get("source") or {}).get("component")
        warning = obj.get("type") == "Warning"
        return EventReport(reason, message, warning, clamp(source), count, at)
    ours = (_OURS, names.core, names.memory)  # a quota names resources, too
    if reason != "FailedCreate" or not any(each in message for each in ours):
        return None
    return DeniedReport(
        kind, about.get("namespace") or "", about.get("name") or "", message, count, at
    )


class PodCounts(NamedTuple):
    """How many pods a workload wants to have now, and how many it has of them."""

    wanted: int
    there: int

    @property
    def missing(self) -> int:
        """How many are to be created."""
        return max(self.wanted - self.there, 0)


def count_pods(kind: str, found: Mapping[str, Any]) -> PodCounts:
    """Return how many pods a workload wants; its *kind* is one of :data:`CONTROLLERS`.

    A Job that has ended or is suspended wants none, and of a running one only its next pods count.
    """
    spec, status = found.get("spec") or {}, found.get("status") or {}
    match kind:
        case "Job":
            conditions = status.get("conditions") or ()
            ended = {each.get("type") for each in conditions if each.get("status") == "True"}
            if spec.get("suspend") or not ended.isdisjoint(("Complete", "Failed")):
                return PodCounts(0, 0)
            wanted = _number(spec.get("parallelism"), 1)
            if spec.get("completions") is not None:
                left = int(spec["completions"]) - int(status.get("succeeded") or 0)
                wanted = min(wanted, max(left, 0))
            return PodCounts(wanted, int(status.get("active") or 0))
        case "DaemonSet":
            there = int(status.get("currentNumberScheduled") or 0)
            return PodCounts(int(status.get("desiredNumberScheduled") or 0), there)
    return PodCounts(_number(spec.get("replicas"), 1), int(status.get("replicas") or 0))


def _number(value: Any, default: int) -> int:
    return default if value is None else int(value)


def missing_pods(uid: str, kind: str, found: Mapping[str, Any] | None) -> PodCounts | None:
    """Return the counts of a workload that still wants more pods than it has; else ``None``.

    Its *uid* is from when its pods were denied; *found* is the object that has its name now.
    """
    if found is None or found["metadata"].get("uid") != uid:
        return None
    if found["metadata"].get("deletionTimestamp"):
        return None
    counts = count_pods(kind, found)
    return counts if counts.missing else None
