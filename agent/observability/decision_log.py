"""Telling decisions: one structured log line each, and the counters."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial

from agent.allocator.interfaces import ContainerRef, Correction
from agent.allocator.slots import summarize
from agent.observability.folding import Folding
from agent.observability.metrics import Metrics
from contract.allocation import Evidence
from contract.resource import Resource

log = logging.getLogger(__name__)


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
        self._folding: Folding[Callable[[int], None]] = Folding(clock)

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
                **_named(ref),
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
        where = {"call": call, **_named(ref), "resource": resource.value}
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
            extra={**_named(ref), "chosen": ", ".join(chosen), "cards": ", ".join(cards)},
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
            extra={**_named(ref), "ids": summarize(ids), "reason": reason},
        )

    def unadvised(self, ref: ContainerRef, resource: Resource, ids: Collection[str]) -> None:
        """Report that places were chosen while the wishes of the pod's author were not known."""
        self._metrics.unadvised.inc()
        log.warning(
            "chosen without wishes",
            extra={**_named(ref), "resource": resource.value, "ids": summarize(ids)},
        )

    def podresources_unavailable(self, reason: str) -> None:
        """Report that the kubelet's record could not be had."""
        self._metrics.blind.inc()
        log.warning("no witness", extra={"reason": reason})


def _named(ref: ContainerRef | None) -> dict[str, str]:
    """Return the fields that name a container; empty where it is not known."""
    if ref is None:
        return {"pod": "", "uid": "", "container": ""}
    return {"pod": str(ref.pod), "uid": ref.pod.uid, "container": ref.container}
