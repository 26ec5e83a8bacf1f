"""What the allocator reads from kubelet and API server, as plain values, and its Protocols.

Adapters implement the Protocols: gRPC, files, HTTP and the log are behind them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol, TypeAlias

from contract.allocation import Allocation, Evidence
from contract.demand import ContainerKind
from contract.resource import Resource, count_of
from placement.pods import Key, PodId, PodInfo

HeldSlots: TypeAlias = Mapping[Resource, frozenset[str]]
"""Device IDs, by resource."""

Containers: TypeAlias = Mapping[str, HeldSlots]
"""What the containers of one pod hold, by name."""


class ContainerRef(NamedTuple):
    """A container of a pod; a tuple for the reason that :class:`PodId` is one."""

    pod: PodId
    container: str

    def __str__(self) -> str:
        """Write pod and container on one line."""
        return f"{self.pod} container {self.container}"


@dataclass(frozen=True, slots=True)
class Correction:
    """A wrong guess that checkpoint or ``List`` corrected."""

    resource: Resource
    ids: frozenset[str]
    guessed: ContainerRef
    proven: ContainerRef


# --- what the kubelet shows -------------------------------------------------------------


class CheckpointOwner(NamedTuple):
    """A container by the UID that the kubelet knows its pod by: a static pod's is its own (K34)."""

    pod_uid: str
    container: str


@dataclass(frozen=True)
class Checkpoint:
    """One state of the kubelet's checkpoint: which container holds which device IDs (K28).

    Entries are of containers of any kind, ordinary init containers too, and of pods that have ended
    since the file was written (K29).

    Attributes:
        pods: what the containers of each pod hold of our resources, by the kubelet's UID.
        unreadable: entries that were left out: their device IDs are none that an agent makes.
    """

    pods: Mapping[str, Containers] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()

    @cached_property
    def _owners(self) -> Mapping[Resource, Mapping[frozenset[str], list[tuple[str, str]]]]:
        found: dict[Resource, dict[frozenset[str], list[tuple[str, str]]]]
        found = {each: {} for each in Resource}
        for uid, containers in self.pods.items():
            for name, slots in containers.items():
                for resource, ids in slots.items():
                    found[resource].setdefault(ids, []).append((uid, name))
        return found

    def owners(self, resource: Resource, ids: frozenset[str]) -> list[CheckpointOwner]:
        """Return the containers that hold exactly *ids*.

        Containers of one pod may hold the same (K7), and an ended pod's entry may stay (K29).
        """
        return [CheckpointOwner(*each) for each in self._owners[resource].get(ids, ())]


@dataclass(frozen=True, slots=True)
class ListedContainer:
    """One container of a listed pod, with the device IDs it holds (added up, fact K16)."""

    name: str
    held: HeldSlots


@dataclass(frozen=True, slots=True)
class ListedPod:
    """One entry of ``List``; ordinary init containers are missing from it (fact K4).

    Attributes:
        names: the names of its containers.
    """

    namespace: str
    name: str
    containers: tuple[ListedContainer, ...]
    names: frozenset[str] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Collect the names."""
        object.__setattr__(self, "names", frozenset([each.name for each in self.containers]))

    @property
    def key(self) -> Key:
        """Namespace and name; ``List`` has no UID."""
        return self.namespace, self.name

    def may_be(self, info: PodInfo) -> bool:
        """Return whether the entry has just the containers that it must have if it is *info*.

        Restartable init containers are listed by newer kubelets only.
        """
        names = self.names
        if info.mains and not info.mains <= names <= info.mains | info.sidecars:
            return False
        return all(
            each.name in names
            for each in info.demand.containers
            if each.kind is not ContainerKind.INIT
        )

    def contradicts(self, info: PodInfo) -> bool:
        """Return whether a container holds another count of a resource than it asks for."""
        held = {each.name: each.held for each in self.containers}
        return any(
            ids and len(ids) != count_of(each.demand, resource)
            for each in info.demand.containers
            for resource, ids in held.get(each.name, {}).items()
        )


# --- sources, and where decisions go ----------------------------------------------------


class PodSource(Protocol):
    """The pods of this node, as the API shows them."""

    def pods(self) -> Sequence[PodInfo]:
        """Return all known pods, without asking anybody; the same object until one changes."""
        ...

    def is_synced(self) -> bool:
        """Return whether the API has shown all pods of the node once."""
        ...

    def uids_seen(self, key: Key) -> Sequence[str]:
        """Return the UIDs of the pods of a name, as they came, gone ones too, by the watch.

        An empty one stands for others that there may be.
        """
        ...

    def fetch(self, namespace: str, name: str, *, within: float = 1.0) -> PodInfo | None:
        """Ask for one pod, within so many seconds; ``None`` when there is none on this node.

        Raises:
            Unavailable: no response in time.
        """
        ...

    def refresh(self, *, within: float) -> None:
        """List the pods once, beside the watch, and learn those that it has not shown.

        Raises:
            Unavailable: no response in time.
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


class PodResourcesSource(Protocol):
    """The kubelet's ``List``."""

    def list(self, *, within: float) -> Sequence[ListedPod]:
        """Ask who holds what, within so many seconds.

        Raises:
            Unavailable: no response in time.
        """
        ...


class Store(Protocol):
    """One text that survives the agent."""

    def load(self) -> str:
        """Return the text; empty where there is none."""
        ...

    def save(self, text: str) -> None:
        """Replace the text as a whole; where it cannot be written there is none."""
        ...


class AnnotationWriter(Protocol):
    """Writes finished allocations, later and elsewhere."""

    def put(self, info: PodInfo, allocations: dict[str, Allocation]) -> None:
        """Write what a pod's containers got into its allocation annotation."""
        ...


class DecisionLog(Protocol):
    """Where decisions are reported: log and metrics."""

    def decided(
        self,
        call: str,
        ref: ContainerRef,
        resource: Resource,
        evidence: Evidence,
        ids: Collection[str],
    ) -> None:
        """Report that the target of a call was found."""
        ...

    def refused(
        self, call: str, ref: ContainerRef | None, resource: Resource, size: int, reason: str
    ) -> None:
        """Report that a call was refused; *ref* is ``None`` when no container asks for that."""
        ...

    def replaced(self, ref: ContainerRef, chosen: Sequence[str], cards: Sequence[str]) -> None:
        """Report that the cards that a scheduler chose did not fit; others were taken."""
        ...

    def corrected(self, correction: Correction) -> None:
        """Report that checkpoint or ``List`` showed a guess to be wrong."""
        ...

    def unproven(self, ref: ContainerRef | None, ids: Collection[str], reason: str) -> None:
        """Report that a container starts without proof."""
        ...

    def unadvised(self, ref: ContainerRef, resource: Resource, ids: Collection[str]) -> None:
        """Report that slots were chosen while the wishes of the pod's author were not known."""
        ...

    def podresources_unavailable(self, reason: str) -> None:
        """Report that ``List`` could not be had."""
        ...
