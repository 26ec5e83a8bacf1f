"""What the allocator needs from outside, as Protocols: adapters and test fakes implement them."""

from collections.abc import Collection, Sequence
from typing import Protocol

from agent.allocator.model.answer import Answer
from agent.allocator.model.checkpoint import Checkpoint
from agent.allocator.model.containers import ContainerRef, Correction
from agent.allocator.model.entitlement import Entitlement
from agent.allocator.model.grant import Grant
from agent.allocator.model.podresources import ListedPod
from contract.allocation import Allocation, Evidence
from contract.resource import Resource
from placement.pods import Key, PodId, PodInfo


class PodSource(Protocol):
    """The pods of this node, as the API knows them."""

    def views(self) -> Sequence[PodInfo]:
        """Return all known pods, without asking anybody."""
        ...

    def is_synced(self) -> bool:
        """Return whether the API has told all pods of the node once."""
        ...

    def told(self, key: Key) -> Sequence[str]:
        """Return the UIDs of the pods of a name, as they came, gone ones too, by the watch.

        An empty one stands for others that there may be.
        """
        ...

    def fetch(self, namespace: str, name: str, *, within: float = 1.0) -> PodInfo | None:
        """Ask for one pod, within so many seconds; ``None`` when there is none on this node.

        Raises:
            Unavailable: no answer in time.
        """
        ...

    def refresh(self, *, within: float) -> None:
        """List the pods once, beside the watch, and learn those that it has not told of.

        Raises:
            Unavailable: no answer in time.
        """
        ...


class CheckpointSource(Protocol):
    """The kubelet's checkpoint file."""

    def read(self) -> Checkpoint:
        """Read it, unless it has not changed since.

        Raises:
            Unavailable: it cannot be read, or is of another form than is known.
        """
        ...


class RecordSource(Protocol):
    """The kubelet's own record."""

    def list(self, *, within: float) -> Sequence[ListedPod]:
        """Ask who holds what, within so many seconds.

        Raises:
            Unavailable: no answer in time.
        """
        ...


class AnnotationWriter(Protocol):
    """Where finished allocations are written to, later and elsewhere."""

    def put(self, view: PodInfo, allocations: dict[str, Allocation]) -> None:
        """Write what a pod's containers got into its allocation annotation."""
        ...


class DecisionLog(Protocol):
    """Where decisions are told: log and metrics."""

    def decided(
        self,
        call: str,
        ref: ContainerRef,
        resource: Resource,
        evidence: Evidence,
        ids: Collection[str],
    ) -> None:
        """Report that a call was settled."""
        ...

    def refused(
        self, call: str, ref: ContainerRef | None, resource: Resource, size: int, reason: str
    ) -> None:
        """Report that a call was refused; *ref* is ``None`` when nobody asks for that."""
        ...

    def replaced(self, ref: ContainerRef, chosen: Sequence[str], cards: Sequence[str]) -> None:
        """Report that the cards that a scheduler chose did not fit; others were taken."""
        ...

    def corrected(self, correction: Correction) -> None:
        """Report that the kubelet's record showed a guess to be wrong."""
        ...

    def unproven(self, ref: ContainerRef | None, ids: Collection[str], reason: str) -> None:
        """Report that a container starts without proof."""
        ...

    def unadvised(self, ref: ContainerRef, resource: Resource, ids: Collection[str]) -> None:
        """Report that places were chosen while the wishes of the pod's author were not known."""
        ...

    def podresources_unavailable(self, reason: str) -> None:
        """Report that the kubelet's record could not be had."""
        ...


class Enforcer(Protocol):
    """What holds containers to their limits; one module of :mod:`agent.enforcement` each."""

    def answer(self, ref: ContainerRef, ids: frozenset[str], grant: Grant) -> Answer:
        """Return what an ``Allocate`` answer must carry, and make on disk what it names.

        The answer follows from the IDs alone; *ref* is for whom it is made as far as is
        known yet. Called before anything is assigned, and never twice at once.

        Raises:
            EnforcementError: it cannot be made; nothing is assigned, the pod is refused.
        """
        ...

    def start(self, ids: frozenset[str], entitlement: Entitlement | None) -> None:
        """Make ready for the container that is about to start with the core places *ids*.

        What ``answer`` made is made again where it is missing (a wiped disk). Comes before
        every start, restarts included; several may come at once.

        Args:
            ids: core places.
            entitlement: who starts, and what it may use; ``None`` while nobody knows.

        Raises:
            EnforcementError: it cannot be made; the start is vetoed and tried again.
        """
        ...

    def which(self, candidates: Sequence[Entitlement]) -> Entitlement:
        """Of several containers that hold the same core places, return the one about to start.

        Ordinary init containers hand on theirs (fact K7), and ``PreStartContainer`` says no more
        than the places.

        Args:
            candidates: containers of one pod in the order in which they start; not empty.
        """
        ...

    def keep(self, pods: Collection[PodId]) -> None:
        """Remove what was made for pods other than these: they are gone."""
        ...
