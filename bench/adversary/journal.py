"""What the agent says, kept for the judge."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from agent.allocator.model.containers import ContainerRef, Correction
from contract.allocation import Evidence
from contract.resource import Resource


@dataclass(frozen=True, slots=True)
class Said:
    """One thing that the agent said.

    Attributes:
        word: ``decided``, ``refused``, ``replaced``, ``corrected``, ``unproven`` or ``blind``.
        ref: which container it named.
        evidence: by what, where it decided.
        text: the rest, for people.
    """

    word: str
    ref: ContainerRef | None
    evidence: Evidence | None = None
    text: str = ""

    def __str__(self) -> str:
        """Write on one line."""
        return " ".join(filter(None, (self.word, str(self.ref), self.evidence, self.text)))


@dataclass
class Memory:
    """A ``DecisionLog`` that keeps what was said since it was last asked."""

    said: list[Said] = field(default_factory=list)

    def take(self) -> list[Said]:
        """Return what was said, and forget it."""
        said, self.said = self.said, []
        return said

    def decided(
        self,
        call: str,
        ref: ContainerRef,
        resource: Resource,
        evidence: Evidence,
        ids: Collection[str],
    ) -> None:
        """Keep a decision."""
        self.said.append(Said("decided", ref, evidence, f"{call} {len(ids)} {resource}"))

    def refused(
        self, call: str, ref: ContainerRef | None, resource: Resource, size: int, reason: str
    ) -> None:
        """Keep a refusal."""
        self.said.append(Said("refused", ref, None, f"{call} {size} {resource}: {reason}"))

    def replaced(self, ref: ContainerRef, chosen: Sequence[str], cards: Sequence[str]) -> None:
        """Keep that other cards were taken than chosen."""
        self.said.append(Said("replaced", ref, None, f"{chosen} by {cards}"))

    def corrected(self, correction: Correction) -> None:
        """Keep a correction."""
        text = f"it was {correction.proven}, {len(correction.ids)} {correction.resource}"
        self.said.append(Said("corrected", correction.guessed, None, text))

    def unproven(self, ref: ContainerRef | None, ids: Collection[str], reason: str) -> None:
        """Keep that a container starts without proof."""
        self.said.append(Said("unproven", ref, None, f"{len(ids)}: {reason}"))

    def unadvised(self, ref: ContainerRef, resource: Resource, ids: Collection[str]) -> None:
        """Keep that places were chosen without the author's wishes."""
        self.said.append(Said("unadvised", ref, None, f"{resource}: {len(ids)}"))

    def podresources_unavailable(self, reason: str) -> None:
        """Keep that there was no record to be had."""
        self.said.append(Said("blind", None, None, reason))
