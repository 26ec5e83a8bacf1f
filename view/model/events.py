"""Events of the API server: which of them concern GPU pods, and what they say."""

from collections.abc import Iterable, Mapping
from typing import Any

from contract.names import Names
from view.model.reports import DeniedReport, EventReport
from view.model.words import clamp

_OURS = "gpu-turnstile"


def ids_of(obj: Mapping[str, Any]) -> tuple[str, str]:
    """Return the UID of an Event, and of what it is about; empty where it does not say."""
    metadata, about = obj["metadata"], obj.get("involvedObject") or {}
    own = metadata.get("uid") or f"{metadata.get('namespace')}/{metadata.get('name')}"
    return own, about.get("uid") or ""


def read_event(obj: Mapping[str, Any], names: Names) -> EventReport | DeniedReport | None:
    """Read an Event of ``v1``: what it says of a pod, or of pods that cannot be created.

    By their controller, and because of their GPU request; ``None`` for all other Events.
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
    ours = (_OURS, f"[{names.core}]", f"[{names.memory}]")
    if reason != "FailedCreate" or not any(each in message for each in ours):
        return None
    return DeniedReport(
        kind, about.get("namespace") or "", about.get("name") or "", message, count, at
    )


def newest_first(events: Iterable[EventReport]) -> tuple[EventReport, ...]:
    """Sort Events, the newest first; of equal age by what they say."""
    by_text = sorted(events, key=lambda each: (each.reason, each.message))
    return tuple(sorted(by_text, key=lambda each: each.at, reverse=True))
