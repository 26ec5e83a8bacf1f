"""A pod as the allocator sees it: parsed once at the border, frozen, without the rest."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from contract.allocation import Allocation
from contract.demand import PodDemand
from contract.wishes import NO_WISHES, Wishes

Key: TypeAlias = tuple[str, str]
"""Namespace and name."""


class PodId(NamedTuple):
    """Which pod: a name can come back, a UID cannot.

    The UID is empty only for a pod that the kubelet's record shows and the API has not.
    A tuple, because pods are looked up and compared by the thousand in every call.
    """

    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> Key:
        """Namespace and name, which is all that PodResources tells."""
        return self.namespace, self.name

    def __str__(self) -> str:
        """Write as ``kubectl`` users do."""
        return f"{self.namespace}/{self.name}"


class QueuePosition(NamedTuple):
    """Order in which pods of a node are expected to be admitted; ties end with the UID.

    Attributes:
        time_ns: predicate time, else the best other time known, Unix nanoseconds.
        bound: order stamp of the binding, empty if there is none.
        admitted: order stamp of the creation, empty if there is none.
        created_ns: creation time, Unix nanoseconds.
        uid: the pod's UID.
    """

    time_ns: int
    bound: str
    admitted: str
    created_ns: int
    uid: str


@dataclass(frozen=True, slots=True)
class PodView:
    """What the agent knows of a pod on its node.

    Attributes:
        id: which pod.
        demand: its GPU containers in the kubelet's order of admission.
        position: where it stands in the kubelet's queue, as far as can be told.
        terminal: it has succeeded or failed; the kubelet will not admit it any more.
        running: the kubelet has said that it runs.
        annotated: what its allocation annotation says, by container name; of containers that ask
            for just that. Compared with what is to be written, never read as knowledge of who
            holds what.
        wishes: what its author wishes of the cards.
        chosen: card indices that a scheduler chose, by container name; what the
            agent itself wrote there, with the allocation, is no choice.
        runtime_uid: the UID by which the container runtime knows it; the API shows a static pod
            under another.
        mains: names of all its containers, those that ask for no GPU too; empty if not known.
        sidecars: names of all its restartable init containers.
        faults: what did not parse (stamps, allocations), for the log; never read as a zero.
    """

    id: PodId
    demand: PodDemand
    position: QueuePosition
    terminal: bool = False
    running: bool = False
    annotated: Mapping[str, Allocation] = field(default_factory=dict)
    wishes: Wishes = NO_WISHES
    chosen: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    runtime_uid: str = ""
    mains: frozenset[str] = frozenset()
    sidecars: frozenset[str] = frozenset()
    faults: tuple[str, ...] = ()
