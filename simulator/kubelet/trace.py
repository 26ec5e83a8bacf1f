"""What happened, in order: every call to a plugin, and what became of pods and containers.

The truth that benchmarks and tests compare with: only the kubelet knows for which
container it makes a call.
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
        ms: since the trace began; of a call, when it was made.
        unix_ms: the same as unix time, for comparing with what other processes saw.
        event: ``rpc``, ``start`` (a container starts, with what it received), ``reject``,
            ``end`` (a pod ended, its devices are free), ``kubelet`` (it started), ``plugin`` (one
            registered), ``devices`` (its list came), ``lost`` (its stream broke).
        available: how many were offered in a preferred call, or are healthy in a list.
        must_include: the IDs that had to be in the answer.
        ids: the IDs sent to the plugin, or the IDs it preferred.
        pod_uid, namespace, pod, container: for whom, truly.
        error: what the plugin answered instead, or why a pod was refused.
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
    """Collects events, and appends each to a file as it happens. Safe between threads.

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
        """Append an event with fields of :class:`TraceEvent`; *at* is when it began, else now."""
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
        """Everything since this process began."""
        with self._lock:
            return tuple(self._events)

    def __len__(self) -> int:
        return len(self._events)

    def containers(self, event: str) -> set[tuple[str, str]]:
        """Return UID and name of the containers of which there was an *event*."""
        with self._lock:
            return set(self._seen[event])

    def pods(self, event: str) -> set[str]:
        """Return the UIDs of the pods of which there was an *event*."""
        return {uid for uid, _ in self.containers(event)}

    def rpcs(self, method: str = "") -> tuple[TraceEvent, ...]:
        """Return the calls to plugins, of one method or of all."""
        return tuple(
            each for each in self.events if each.event == "rpc" and method in ("", each.rpc)
        )
