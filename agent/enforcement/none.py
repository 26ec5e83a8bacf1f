"""No enforcement: a container sees only its own cards, and may use all of them."""

from collections.abc import Collection, Sequence

from agent.holdings.edits import ContainerEdits
from agent.holdings.holding import Holding
from placement.pods import PodId


class NoEnforcement:
    """Sets no limits."""

    limits = False

    def prepare_allocation(self, holding: Holding) -> ContainerEdits:  # noqa: ARG002 -- Enforcer's
        """Add nothing."""
        return ContainerEdits()

    def prepare_start(self, holding: Holding) -> None:
        """Do nothing: no container needs preparing."""

    def identify_starting(self, candidates: Sequence[Holding]) -> Holding:
        """Return the last one: the result makes no difference here."""
        return candidates[-1]

    def prune(self, pods: Collection[PodId]) -> None:
        """Do nothing: there are no files to remove."""
