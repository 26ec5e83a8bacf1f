"""What the core needs of the node: its pods, the writer of annotations, the enforcer of limits."""

from collections.abc import Collection, Sequence
from typing import Protocol

from agent.holdings.edits import ContainerEdits
from agent.holdings.holding import Holding
from contract.allocation import Allocation
from placement.pods import PodId, PodInfo


class AnnotationWriter(Protocol):
    """Writes finished allocations to pods, later and in another thread."""

    def put(self, info: PodInfo, allocations: dict[str, Allocation]) -> None:
        """Queue a pod's allocations, to be written to its allocation annotation."""


class NodePods(Protocol):
    """The pods of this node in the API."""

    def pods(self) -> Sequence[PodInfo]:
        """Return all known pods, without a request; the same object until one changes."""


class Enforcer(Protocol):
    """Enforces the limits of containers; each module of :mod:`agent.enforcement` has one.

    Attributes:
        limits: whether it limits containers at all; if not, no start is prepared.
    """

    limits: bool

    def prepare_allocation(self, holding: Holding) -> ContainerEdits:
        """Return the edits that limit a container, and make the files that they mount.

        A device plugin calls it for cores and for memory, each without the other; a claim once,
        with both: return the edits for what the holding has. They depend only on key and amounts;
        the container is given as far as it is known. Never called twice at the same time.

        Raises:
            EnforcementError: the files cannot be made; nothing is assigned, the pod is refused.
        """

    def prepare_start(self, holding: Holding) -> None:
        """Prepare the container that is about to start with a holding.

        Missing files of ``prepare_allocation`` are made again (after a wiped disk). A device plugin
        calls it before every start, restarts included, and possibly several times at once; a claim
        once, when it is prepared: a restarted container is not announced. If the container is
        :data:`~agent.holdings.holding.UNKNOWN`, only its key and its cores are known.

        Raises:
            EnforcementError: the files cannot be made; the start is vetoed and retried.
        """

    def identify_starting(self, candidates: Sequence[Holding]) -> Holding:
        """Return the container that is about to start, of several with the same key.

        The slots of ordinary init containers are reusable (fact K7), and ``PreStartContainer`` has
        only the slots.

        Args:
            candidates: containers of one pod in the order in which they start; not empty.
        """

    def prune(self, pods: Collection[PodId]) -> None:
        """Remove the files of all pods except *pods*; failures are logged and retried."""
