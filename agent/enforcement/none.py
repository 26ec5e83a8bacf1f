"""No enforcement: a container sees only its own cards, and may use all of them."""

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
        """Return the last one: the result makes no difference here."""
        return candidates[-1]

    def prune(self, pods: Collection[PodId]) -> None:
        """Do nothing: there are no files to remove."""
