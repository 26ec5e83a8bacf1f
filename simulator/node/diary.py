"""What the agent of a node in this process says: a decision log that remembers."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from agent.allocator.model.containers import ContainerRef, Correction
from contract.allocation import Evidence
from contract.resource import Resource


@dataclass(frozen=True, slots=True)
class Said:
    """One decision of the agent."""

    at_ms: float
    ref: ContainerRef
    resource: Resource
    evidence: Evidence
    ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Refused:
    """One refusal of the agent; *ref* is ``None`` where it found nobody asking."""

    at_ms: float
    call: str
    ref: ContainerRef | None
    resource: Resource
    size: int
    reason: str


class Diary:
    """A :class:`agent.allocator.model.ports.DecisionLog` that remembers and counts."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.said: list[Said] = []
        self.refusals: list[Refused] = []
        self.counts: Counter[str] = Counter()

    def decided(
        self,
        call: str,
        ref: ContainerRef,
        resource: Resource,
        evidence: Evidence,
        ids: Collection[str],
    ) -> None:
        """Report that a call was settled."""
        self.counts[f"{call} by {evidence.value}"] += 1
        if call == "allocate":
            self.said.append(Said(self._clock(), ref, resource, evidence, frozenset(ids)))

    def refused(
        self, call: str, ref: ContainerRef | None, resource: Resource, size: int, reason: str
    ) -> None:
        """Report that a call was refused."""
        self.counts[f"{call} refused"] += 1
        self.refusals.append(Refused(self._clock(), call, ref, resource, size, reason))

    def replaced(self, ref: ContainerRef, chosen: Sequence[str], cards: Sequence[str]) -> None:  # noqa: ARG002 -- the Protocol's
        """Report that a scheduler's choice did not fit."""
        self.counts["replaced"] += 1

    def corrected(self, correction: Correction) -> None:  # noqa: ARG002 -- the Protocol's
        """Report that a guess was wrong."""
        self.counts["corrected"] += 1

    def unproven(self, ref: ContainerRef | None, ids: Collection[str], reason: str) -> None:  # noqa: ARG002 -- the Protocol's
        """Report that a container started without proof."""
        self.counts["unproven"] += 1

    def unadvised(self, ref: ContainerRef, resource: Resource, ids: Collection[str]) -> None:  # noqa: ARG002 -- the Protocol's
        """Places were chosen while the wishes of the pod's author were not known."""
        self.counts["unadvised"] += 1

    def podresources_unavailable(self, reason: str) -> None:  # noqa: ARG002 -- the Protocol's
        """Report that the record could not be had."""
        self.counts["blind"] += 1
