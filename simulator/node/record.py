"""A node whose kubelet cannot be asked who holds what."""

from agent.allocator.interfaces import ListedPod
from agent.errors import Unavailable


class NoRecord:
    """A node whose PodResources socket nobody mounted."""

    def list(self, *, within: float) -> tuple[ListedPod, ...]:  # noqa: ARG002 -- the Protocol's
        """Start empty."""
        raise Unavailable("PodResources: switched off")
