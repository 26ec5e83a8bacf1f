"""The trace: every call to a plugin and the events of pods and containers, in order.

Benchmarks and tests compare with it: only the kubelet knows for which container a call is.
"""

import json
import threading
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from simulator.kubelet.pods import Pod


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One line of the trace.

    Attributes:
        ms: milliseconds since the trace began; for a call, when it began.
        unix_ms: the same as unix time, to compare with other processes.
        event: ``rpc``, ``start`` (of a container, with its edits), ``reject``, ``end`` (of a pod;
            its devices are free), ``kubelet`` (started), ``plugin`` (registered), ``devices`` (a
            plugin's list arrived), ``lost`` (a plugin's stream broke).
        size: the number of devices requested, or in a list.
        available: the devices offered in a preferred call, or healthy in a list.
        must_include: the IDs that the response had to contain.
        ids: the IDs sent to the plugin, or the IDs that it preferred.
        pod_uid, namespace, pod, container: the true target of the call.
        error: the plugin's error, or why a pod was rejected.
    """

    ms: float
    unix_ms: float
    event: str
    rpc: str = ""
    resource: str = ""
    size: int = 0
    available: int = 0
    must_include: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    pod_uid: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    took_ms: float = 0.0
    error: str = ""
    detail: dict[str, Any] = field(default_factory=dict)


class Trace:
    """Collects events and appends each to a file at once. Safe between threads.

    Args:
        path: JSON lines; an existing file is continued.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._began = time.monotonic()
        self._began_unix_ms = time.time() * 1000
        self._lock = threading.Lock()
        self._events: list[TraceEvent] = []
        self._seen: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)

    def now(self) -> float:
        """Milliseconds since the trace began."""
        return round((time.monotonic() - self._began) * 1000, 3)

    def add(
        self, event: str, pod: Pod | None = None, *, at: float | None = None, **fields: Any
    ) -> None:
        """Append an event with fields of :class:`TraceEvent`; it began *at*, by default now."""
        if pod is not None:
            fields |= {"pod_uid": pod.uid, "namespace": pod.namespace, "pod": pod.name}
        with self._lock:
            ms = self.now() if at is None else at
            written = TraceEvent(ms, round(self._began_unix_ms + ms, 3), event, **fields)
            self._events.append(written)
            self._seen[event].add((written.pod_uid, written.container))
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(written), separators=(",", ":")) + "\n")

    @property
    def events(self) -> tuple[TraceEvent, ...]:
        """All events since this process began."""
        with self._lock:
            return tuple(self._events)

    def __len__(self) -> int:
        return len(self._events)

    def containers(self, event: str) -> set[tuple[str, str]]:
        """Return (pod UID, name) of the containers that have had an *event*."""
        with self._lock:
            return set(self._seen[event])

    def pods(self, event: str) -> set[str]:
        """Return the UIDs of the pods that have had an *event*."""
        return {uid for uid, _ in self.containers(event)}

    def rpcs(self, method: str = "") -> tuple[TraceEvent, ...]:
        """Return the calls to plugins, of one method or of all."""
        return tuple(
            each for each in self.events if each.event == "rpc" and method in ("", each.rpc)
        )
