"""A node whose kubelet cannot be asked who holds what."""

from agent.errors import Unavailable
from agent.witness import Snapshot


class NoRecord:
    """A node whose PodResources socket nobody mounted."""

    def list(self, *, within: float) -> Snapshot:  # noqa: ARG002 -- the Protocol's
        """Have nothing."""
        raise Unavailable("PodResources: switched off")
