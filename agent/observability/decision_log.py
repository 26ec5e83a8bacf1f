"""Reports of decisions: a structured log line for each, and the counters."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from agent.allocator.interfaces import Correction
from agent.allocator.slots import summarize
from agent.holdings.holding import ContainerRef
from agent.observability.metrics import Metrics
from contract.allocation import Evidence
from contract.resource import Resource

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_REPORTS = 5
"""So many equal reports pass one by one."""
SUMMARY_SECONDS = 10.0
"""Further equal reports are counted, and reported together after so many seconds."""
FORGET_SECONDS = 60.0
"""After so many seconds without such a report the counting starts again."""
MOST_KINDS = 64
"""So many kinds of reports are counted separately; all further kinds share one count."""


@dataclass(slots=True)
class _Kind(Generic[T]):
    reported: int = 0
    withheld: int = 0
    last: T | None = None
    reported_at: float = 0.0
    seen_at: float = 0.0


class RepeatFilter(Generic[T]):
    """Limits repeated reports: passes the first few, then only a count.

    A pod is refused if it fits the node's totals but none of its cards. If a controller creates a
    new pod at once, this repeats without end, and a log line and an Event for each would hide
    everything else. Not safe to share between threads: the caller locks.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start empty; *clock* returns seconds."""
        self._clock = clock
        self._kinds: dict[Hashable, _Kind[T]] = {}

    def add(self, kind: Hashable, item: T) -> int:
        """Count a report; return how many to report now, this one included; 0 for none."""
        now = self._clock()
        entry = self._entry(kind)
        entry.seen_at = now
        if entry.reported < FIRST_REPORTS:
            entry.reported += 1
            entry.reported_at = now
            return 1
        entry.withheld += 1
        entry.last = item
        return self._take_withheld(entry, now)

    def due(self) -> list[tuple[int, T]]:
        """Return the withheld reports that are due: for each kind the count and the last one."""
        now, found = self._clock(), list[tuple[int, T]]()
        for kind, entry in tuple(self._kinds.items()):
            last = entry.last
            count = self._take_withheld(entry, now)
            if count and last is not None:
                found.append((count, last))
            if not entry.withheld and now - entry.seen_at >= FORGET_SECONDS:
                del self._kinds[kind]
        return found

    def _entry(self, kind: Hashable) -> _Kind[T]:
        known = self._kinds.get(kind)
        if known is None:
            if len(self._kinds) >= MOST_KINDS:
                kind = None  # the shared kind
            known = self._kinds.setdefault(kind, _Kind())
        return known

    def _take_withheld(self, entry: _Kind[T], now: float) -> int:
        if not entry.withheld or now - entry.reported_at < SUMMARY_SECONDS:
            return 0
        count, entry.withheld, entry.last, entry.reported_at = entry.withheld, 0, None, now
        return count


class LoggedDecisions:
    """Logs and counts every decision; repeated refusals are summed up."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        on_refusal: Callable[[str, ContainerRef, str], None] = lambda _call, _ref, _reason: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Count in *metrics*; *on_refusal* is called with call, container and reason."""
        self._metrics = metrics
        self._on_refusal = on_refusal
        self._lock = threading.Lock()
        self._repeats: RepeatFilter[Callable[[int], None]] = RepeatFilter(clock)

    def decided(
        self,
        call: str,
        ref: ContainerRef,
        resource: Resource,
        evidence: Evidence,
        ids: Collection[str],
    ) -> None:
        """Report that a call was resolved."""
        self._metrics.decisions.labels(call, evidence.value).inc()
        log.info(
            call,
            extra={
                **named(ref),
                "resource": resource.value,
                "evidence": evidence.value,
                "count": len(ids),
                "ids": summarize(ids),
            },
        )

    def refused(
        self, call: str, ref: ContainerRef | None, resource: Resource, size: int, reason: str
    ) -> None:
        """Report that a call was refused."""
        self._metrics.refusals.labels(call, resource.value).inc()
        where = {"call": call, **named(ref), "resource": resource.value}
        line = {**where, "count": size, "reason": reason}
        write = partial(self._write, line, ref)
        # Equal except for the pod's name; the namespace counts, since authors see its Events only.
        kind = call, resource, size, reason, ref.pod.namespace if ref is not None else ""
        with self._lock:
            times = self._repeats.add(kind, write)
        if times:
            write(times)

    def tick(self) -> None:
        """Report the withheld refusals that are due; to be called every few seconds."""
        with self._lock:
            due = self._repeats.due()
        for times, write in due:
            write(times)

    def _write(self, line: dict[str, object], ref: ContainerRef | None, times: int) -> None:
        """Log a refusal, the last of *times* equal ones, and send an Event."""
        log.warning("refused", extra={**line, "times": times})
        if ref is not None and ref.pod.uid:
            more = f" (the last of {times} such refusals)" if times > 1 else ""
            self._on_refusal(str(line["call"]), ref, f"{line['reason']}{more}")

    def replaced(self, ref: ContainerRef, chosen: Sequence[str], cards: Sequence[str]) -> None:
        """Report that other cards were taken, because those that a scheduler chose did not fit."""
        log.warning(
            "replaced a scheduler's choice",
            extra={**named(ref), "chosen": ", ".join(chosen), "cards": ", ".join(cards)},
        )

    def corrected(self, correction: Correction) -> None:
        """Report that the kubelet's checkpoint or ``List`` contradicted a guess."""
        self._metrics.corrections.inc()
        log.warning(
            "corrected",
            extra={
                "resource": correction.resource.value,
                "guessed": str(correction.guessed),
                "proven": str(correction.proven),
                "ids": summarize(correction.ids),
            },
        )

    def unproven(self, ref: ContainerRef | None, ids: Collection[str], reason: str) -> None:
        """Report that a container starts without proof."""
        self._metrics.unproven.inc()
        log.info(
            "unproven",
            extra={**named(ref), "ids": summarize(ids), "reason": reason},
        )

    def without_wishes(self, ref: ContainerRef, resource: Resource, ids: Collection[str]) -> None:
        """Report that slots were chosen while the wishes of the pod's author were not known."""
        self._metrics.without_wishes.inc()
        log.warning(
            "chosen without wishes",
            extra={**named(ref), "resource": resource.value, "ids": summarize(ids)},
        )

    def podresources_unavailable(self, reason: str) -> None:
        """Report that the kubelet's ``List`` is unavailable."""
        self._metrics.list_failures.inc()
        log.warning("List unavailable", extra={"reason": reason})


def named(ref: ContainerRef | None) -> dict[str, str]:
    """Return the log fields that name a container; empty if it is not known."""
    if ref is None:
        return {"pod": "", "uid": "", "container": ""}
    return {"pod": str(ref.pod), "uid": ref.pod.uid, "container": ref.container}
