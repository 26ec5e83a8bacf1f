"""Telling decisions: one structured log line each, and the counters."""

import logging
from collections.abc import Callable, Collection, Sequence

from agent.ledger import Claim, Correction
from agent.metrics import Metrics
from agent.tickets import Resource, summarize
from contract.allocation import Evidence

log = logging.getLogger(__name__)


class LogJournal:
    """Writes every decision to the log and counts it."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        tell: Callable[[str, Claim, str], None] = lambda _call, _claim, _reason: None,
    ) -> None:
        """Count in *metrics*.

        Args:
            metrics: the counters.
            tell: tells a pod's author of a refusal: call, container, reason.
        """
        self._metrics = metrics
        self._tell = tell

    def decided(
        self,
        call: str,
        claim: Claim,
        resource: Resource,
        evidence: Evidence,
        ids: Collection[str],
    ) -> None:
        """A call was settled."""
        self._metrics.decisions.labels(call, evidence.value).inc()
        log.info(
            call,
            extra={
                **_named(claim),
                "resource": resource.value,
                "evidence": evidence.value,
                "count": len(ids),
                "ids": summarize(ids),
            },
        )

    def refused(
        self, call: str, claim: Claim | None, resource: Resource, size: int, reason: str
    ) -> None:
        """A call was refused."""
        self._metrics.refusals.labels(call, resource.value).inc()
        log.warning(
            "refused",
            extra={
                "call": call,
                **_named(claim),
                "resource": resource.value,
                "count": size,
                "reason": reason,
            },
        )
        if claim is not None and claim.pod.uid:
            self._tell(call, claim, reason)

    def replaced(self, claim: Claim, chosen: Sequence[str], cards: Sequence[str]) -> None:
        """The cards that a scheduler chose did not fit; others were taken."""
        log.warning(
            "replaced a scheduler's choice",
            extra={**_named(claim), "chosen": ", ".join(chosen), "cards": ", ".join(cards)},
        )

    def corrected(self, correction: Correction) -> None:
        """The kubelet's record showed a guess to be wrong."""
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

    def unproven(self, claim: Claim | None, ids: Collection[str], reason: str) -> None:
        """A container starts without proof."""
        self._metrics.unproven.inc()
        log.info(
            "unproven",
            extra={**_named(claim), "ids": summarize(ids), "reason": reason},
        )

    def unadvised(self, claim: Claim, resource: Resource, ids: Collection[str]) -> None:
        """Places were chosen while the wishes of the pod's author were not known."""
        self._metrics.unadvised.inc()
        log.warning(
            "chosen without wishes",
            extra={
                "pod": str(claim.pod),
                "container": claim.container,
                "resource": resource.value,
                "ids": summarize(ids),
            },
        )

    def blind(self, reason: str) -> None:
        """The kubelet's record could not be had."""
        self._metrics.blind.inc()
        log.warning("no witness", extra={"reason": reason})


def _named(claim: Claim | None) -> dict[str, str]:
    """Return the fields that name a container; empty where it is not known."""
    if claim is None:
        return {"pod": "", "uid": "", "container": ""}
    return {"pod": str(claim.pod), "uid": claim.pod.uid, "container": claim.container}
