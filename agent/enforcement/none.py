"""No enforcement: a container sees its cards and nobody else's, and may use all of them."""

from collections.abc import Collection, Sequence

from agent.allocator.grants import ContainerEdits, Entitlement, Grant
from agent.allocator.interfaces import ContainerRef
from placement.pods import PodId


class NoEnforcement:
    """Sets no limits."""

    def prepare_allocation(
        self,
        ref: ContainerRef,  # noqa: ARG002 -- Enforcer's
        ids: frozenset[str],  # noqa: ARG002
        grant: Grant,  # noqa: ARG002
    ) -> ContainerEdits:
        """Add nothing."""
        return ContainerEdits()

    def prepare_start(self, ids: frozenset[str], entitlement: Entitlement | None) -> None:
        """Do nothing: no container needs preparing."""

    def identify_starting(self, candidates: Sequence[Entitlement]) -> Entitlement:
        """Take the last: what is answered is the same for all."""
        return candidates[-1]

    def prune(self, pods: Collection[PodId]) -> None:
        """Do nothing: nothing was made."""
