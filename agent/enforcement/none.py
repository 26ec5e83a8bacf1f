"""No enforcement: a container sees its cards and nobody else's, and may use all of them."""

from collections.abc import Collection, Sequence

from agent.allocator.model.answer import Answer
from agent.allocator.model.containers import ContainerRef
from agent.allocator.model.entitlement import Entitlement
from agent.allocator.model.grant import Grant
from placement.pods import PodId


class NoEnforcement:
    """Sets no limits."""

    def answer(self, ref: ContainerRef, ids: frozenset[str], grant: Grant) -> Answer:  # noqa: ARG002 -- Enforcer's
        """Add nothing."""
        return Answer()

    def start(self, ids: frozenset[str], entitlement: Entitlement | None) -> None:
        """Do nothing: no container needs preparing."""

    def which(self, candidates: Sequence[Entitlement]) -> Entitlement:
        """Take the last: what is answered is the same for all."""
        return candidates[-1]

    def keep(self, pods: Collection[PodId]) -> None:
        """Do nothing: nothing was made."""
