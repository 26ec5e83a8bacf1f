"""Telling decisions: one structured log line each, and the counters."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from agent.allocator.interfaces import ContainerRef, Correction
from agent.allocator.slots import summarize
from agent.observability.metrics import Metrics
from contract.allocation import Evidence
from contract.resource import Resource

log = logging.getLogger(__name__)

T = TypeVar("T")

ALONE = 5
"""So many equal news are told one by one."""
EVERY_SECONDS = 10.0
"""Over so long further ones are told together."""
QUIET_SECONDS = 60.0
"""After so long without any they are news again."""
MOST_KINDS = 64
"""Kinds of news that are told apart; any further are told together."""


@dataclass(slots=True)
class _Kind(Generic[T]):
    told: int = 0
    folded: int = 0
    last: T | None = None
    told_at: float = 0.0
    seen_at: float = 0.0


class RepeatFilter(Generic[T]):
    """Decides what is told of equal news: the first few alone, then only how many there were.

    A pod that fits a node by count and none of its cards is refused. Where a controller makes a new
    one at once, that goes on for as long as nobody stops it. A log line and an Event for each would
    bury everything else. Not safe to share between threads: its owner locks.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Know nothing yet; *clock* gives seconds."""
        self._clock = clock
        self._kinds: dict[Hashable, _Kind[T]] = {}

    def add(self, kind: Hashable, news: T) -> int:
        """Apply news, and return how many are to be told of now with these: 0 is none."""
        now = self._clock()
        entry = self._entry(kind)
        entry.seen_at = now
        if entry.told < ALONE:
            entry.told += 1
            entry.told_at = now
            return 1
        entry.folded += 1
        entry.last = news
        return self._unfold(entry, now)

    def due(self) -> list[tuple[int, T]]:
        """Return what is to be told now though nothing came: how many, and the last of them."""
        now, found = self._clock(), list[tuple[int, T]]()
        for kind, entry in tuple(self._kinds.items()):
            last = entry.last
            count = self._unfold(entry, now)
            if count and last is not None:
                found.append((count, last))
            if not entry.folded and now - entry.seen_at >= QUIET_SECONDS:
                del self._kinds[kind]
        return found

    def _entry(self, kind: Hashable) -> _Kind[T]:
        known = self._kinds.get(kind)
        if known is None:
            if len(self._kinds) >= MOST_KINDS:
                kind = None  # of its own, and never forgotten for another
            known = self._kinds.setdefault(kind, _Kind())
        return known

    def _unfold(self, entry: _Kind[T], now: float) -> int:
        if not entry.folded or now - entry.told_at < EVERY_SECONDS:
            return 0
        count, entry.folded, entry.last, entry.told_at = entry.folded, 0, None, now
        return count


class LoggedDecisions:
    """Writes every decision to the log and counts it; equal refusals are told together."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        tell: Callable[[str, ContainerRef, str], None] = lambda _call, _claim, _reason: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Count in *metrics*; *tell* tells a pod's author of a refusal: call, container, reason."""
        self._metrics = metrics
        self._tell = tell
        self._lock = threading.Lock()
        self._folding: RepeatFilter[Callable[[int], None]] = RepeatFilter(clock)

    def decided(
        self,
        call: str,
        ref: ContainerRef,
        resource: Resource,
        evidence: Evidence,
        ids: Collection[str],
    ) -> None:
        """Report that a call was settled."""
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
        # Equal but for the pod; authors see the Events of their namespace.
        kind = call, resource, size, reason, ref.pod.namespace if ref is not None else ""
        with self._lock:
            times = self._folding.add(kind, write)
        if times:
            write(times)

    def tick(self) -> None:
        """Report the refusals that were kept back; to be called every few seconds."""
        with self._lock:
            due = self._folding.due()
        for times, write in due:
            write(times)

    def _write(self, line: dict[str, object], ref: ContainerRef | None, times: int) -> None:
        """Write a refusal down, or so many equal ones, of which it is the last."""
        log.warning("refused", extra={**line, "times": times})
        if ref is not None and ref.pod.uid:
            more = f" (the last of {times} such refusals)" if times > 1 else ""
            self._tell(str(line["call"]), ref, f"{line['reason']}{more}")

    def replaced(self, ref: ContainerRef, chosen: Sequence[str], cards: Sequence[str]) -> None:
        """Report that the cards that a scheduler chose did not fit; others were taken."""
        log.warning(
            "replaced a scheduler's choice",
            extra={**named(ref), "chosen": ", ".join(chosen), "cards": ", ".join(cards)},
        )

    def corrected(self, correction: Correction) -> None:
        """Report that the kubelet's record showed a guess to be wrong."""
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

    def unadvised(self, ref: ContainerRef, resource: Resource, ids: Collection[str]) -> None:
        """Report that places were chosen while the wishes of the pod's author were not known."""
        self._metrics.unadvised.inc()
        log.warning(
            "chosen without wishes",
            extra={**named(ref), "resource": resource.value, "ids": summarize(ids)},
        )

    def podresources_unavailable(self, reason: str) -> None:
        """Report that the kubelet's record could not be had."""
        self._metrics.blind.inc()
        log.warning("no witness", extra={"reason": reason})


def named(ref: ContainerRef | None) -> dict[str, str]:
    """Return the fields that name a container; empty where it is not known."""
    if ref is None:
        return {"pod": "", "uid": "", "container": ""}
    return {"pod": str(ref.pod), "uid": ref.pod.uid, "container": ref.container}
