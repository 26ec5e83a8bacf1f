"""A decision log that keeps all decisions of an agent in this process."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from agent.allocator.interfaces import Correction
from agent.holdings.holding import ContainerRef
from contract.allocation import Evidence
from contract.resource import Resource


@dataclass(frozen=True, slots=True)
class LoggedDecision:
    """One entry of the decision log.

    Attributes:
        word: ``decided``, ``refused``, ``replaced``, ``corrected``, ``unproven``,
            ``without_wishes`` or ``blind``.
        ref: the container named, if any.
        call: the call, for ``decided`` and ``refused``.
        resource: the resource, if any.
        evidence: for ``decided``.
        size: the number of devices requested, for ``refused``.
        reason: the reason, or what differed.
    """

    at_ms: float
    word: str
    ref: ContainerRef | None = None
    call: str = ""
    resource: Resource | None = None
    evidence: Evidence | None = None
    ids: frozenset[str] = frozenset()
    size: int = 0
    reason: str = ""

    @property
    def target(self) -> str:
        """``pod/container`` of the container named; empty if there is none."""
        return f"{self.ref.pod.name}/{self.ref.container}" if self.ref else ""

    def __str__(self) -> str:
        amount = f"{len(self.ids) or self.size} {self.resource or 'places'}"
        parts = (self.word, str(self.ref), self.evidence, self.call, amount, self.reason)
        return " ".join(filter(None, parts))


class RecordingLog:
    """A :class:`agent.allocator.interfaces.DecisionLog` that keeps and counts its entries."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.everything: list[LoggedDecision] = []
        self.counts: Counter[str] = Counter()

    @property
    def allocated(self) -> list[LoggedDecision]:
        """Return the decisions in ``Allocate``."""
        return [each for each in self.everything if each.evidence and each.call == "allocate"]

    @property
    def refusals(self) -> list[LoggedDecision]:
        """Return the refusals; *ref* is ``None`` if no target was found."""
        return self.of("refused")

    def evidence(self, call: str) -> list[Evidence]:
        """Return the evidence of every decision of one kind of call, in order."""
        return [each.evidence for each in self.everything if each.evidence and each.call == call]

    def refs(self, call: str) -> list[str]:
        """Return ``pod/container`` of every decision of one kind of call, in order."""
        return [each.target for each in self.everything if each.evidence and each.call == call]

    @property
    def last(self) -> LoggedDecision:
        """The last decision that found a target."""
        return [each for each in self.everything if each.evidence][-1]

    def of(self, word: str) -> list[LoggedDecision]:
        """Return the entries with this *word*."""
        return [each for each in self.everything if each.word == word]

    def take(self) -> list[LoggedDecision]:
        """Return the entries since the last call, and forget them."""
        entries, self.everything = self.everything, []
        return entries

    def decided(
        self,
        call: str,
        ref: ContainerRef,
        resource: Resource,
        evidence: Evidence,
        ids: Collection[str],
    ) -> None:
        """Report that a call was decided."""
        self.counts[f"{call} by {evidence.value}"] += 1
        self._keep("decided", ref, call, resource, evidence, frozenset(ids))

    def refused(
        self, call: str, ref: ContainerRef | None, resource: Resource, size: int, reason: str
    ) -> None:
        """Report that a call was refused."""
        self.counts[f"{call} refused"] += 1
        self._keep("refused", ref, call, resource, size=size, reason=reason)

    def replaced(self, ref: ContainerRef, chosen: Sequence[str], cards: Sequence[str]) -> None:
        """Report that a scheduler's choice did not fit."""
        self._count("replaced", ref, reason=f"{', '.join(chosen)} by {', '.join(cards)}")

    def corrected(self, correction: Correction) -> None:
        """Report that a guess was wrong."""
        guessed, resource = correction.guessed, correction.resource
        self._count("corrected", guessed, resource=resource, reason=f"it was {correction.proven}")

    def unproven(self, ref: ContainerRef | None, ids: Collection[str], reason: str) -> None:
        """Report that a container started without proof."""
        self._count("unproven", ref, ids=frozenset(ids), reason=reason)

    def without_wishes(self, ref: ContainerRef, resource: Resource, ids: Collection[str]) -> None:
        """Report that devices were chosen while the pod's wishes were unknown."""
        self._count("without_wishes", ref, resource=resource, ids=frozenset(ids))

    def podresources_unavailable(self, reason: str) -> None:
        """Report that ``List`` was not available."""
        self._count("blind", reason=reason)

    def _count(self, word: str, *args: Any, **fields: Any) -> None:
        self.counts[word] += 1
        self._keep(word, *args, **fields)

    def _keep(self, word: str, *args: Any, **fields: Any) -> None:
        self.everything.append(LoggedDecision(self._clock(), word, *args, **fields))
