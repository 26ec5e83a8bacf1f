"""Events of the API server: which of them concern GPU pods, and what they say."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from contract.names import Names
from view.model.reports import DeniedReport, EventReport
from view.model.words import clamp

_OURS = "gpu-turnstile"


@dataclass(frozen=True, slots=True)
class Told:
    """One Event and what it is about."""

    uid: str
    kind: str
    namespace: str
    name: str
    about: str  # UID of that object; empty where the Event does not say
    report: EventReport


def read_event(obj: Mapping[str, Any]) -> Told:
    """Read an Event of ``v1``."""
    metadata, about = obj["metadata"], obj.get("involvedObject") or {}
    series = obj.get("series") or {}
    at = (
        obj.get("lastTimestamp")
        or series.get("lastObservedTime")
        or obj.get("eventTime")
        or metadata.get("creationTimestamp")
        or ""
    )
    source = obj.get("reportingComponent") or (obj.get("source") or {}).get("component") or ""
    return Told(
        metadata.get("uid") or f"{metadata.get('namespace')}/{metadata.get('name')}",
        about.get("kind") or "",
        about.get("namespace") or "",
        about.get("name") or "",
        about.get("uid") or "",
        EventReport(
            clamp(obj.get("reason")),
            clamp(obj.get("message")),
            obj.get("type") == "Warning",
            clamp(source),
            int(obj.get("count") or series.get("count") or 1),
            str(at)[:19] + "Z" if at else "",
        ),
    )


def denied_by_us(told: Told, names: Names) -> DeniedReport | None:
    """Return what a controller says of pods that it cannot create because of their GPU request.

    ``None`` for all other Events.
    """
    text = told.report.message
    if told.kind == "Pod" or told.report.reason != "FailedCreate":
        return None
    if not any(each in text for each in (_OURS, f"[{names.core}]", f"[{names.memory}]")):
        return None
    report = told.report
    return DeniedReport(told.kind, told.namespace, told.name, text, report.count, report.at)


def newest_first(events: Iterable[EventReport]) -> tuple[EventReport, ...]:
    """Sort Events, the newest first; of equal age by what they say."""
    by_text = sorted(events, key=lambda each: (each.reason, each.message))
    return tuple(sorted(by_text, key=lambda each: each.at, reverse=True))
