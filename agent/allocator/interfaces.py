"""The allocator's interfaces: data of kubelet and API server, and the Protocols of its adapters.

The adapters use gRPC, files, HTTP and the log.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol, TypeAlias

from agent.holdings.holding import ContainerRef
from agent.holdings.interfaces import NodePods
from contract.allocation import Evidence
from contract.demand import ContainerKind
from contract.resource import Resource
from placement.pods import Key, PodInfo

HeldSlots: TypeAlias = Mapping[Resource, frozenset[str]]
"""Device IDs, by resource."""

Containers: TypeAlias = Mapping[str, HeldSlots]
"""The slots that the containers of one pod hold, by name."""


@dataclass(frozen=True, slots=True)
class Correction:
    """A wrong guess that checkpoint or ``List`` corrected."""

    resource: Resource
    ids: frozenset[str]
    guessed: ContainerRef
    proven: ContainerRef


# --- data of the kubelet ----------------------------------------------------------------


class CheckpointOwner(NamedTuple):
    """A container, with its pod's UID in the kubelet, which differs for a static pod (K34)."""

    pod_uid: str
    container: str


def entry_hash(owner: tuple[str, str], resource: Resource, ids: frozenset[str]) -> int:
    """Return a number for an entry of the checkpoint: entries themselves are too large to keep."""
    return hash((*owner, resource, ids))


@dataclass(frozen=True)
class Checkpoint:
    """One state of the kubelet's checkpoint: which container holds which device IDs (K28).

    It has containers of any kind, ordinary init containers included, and pods that have ended since
    the file was written (K29).

    Attributes:
        pods: the device IDs of our resources that the containers of each pod hold, by the
            kubelet's UID.
        unreadable: why entries were left out: their device IDs are not an agent's.
    """

    pods: Mapping[str, Containers] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()

    @cached_property
    def entries(self) -> frozenset[int]:
        """The :func:`entry_hash` of each of its entries."""
        return frozenset(
            entry_hash((uid, name), resource, ids)
            for uid, containers in self.pods.items()
            for name, slots in containers.items()
            for resource, ids in slots.items()
        )

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

        Several containers of one pod may hold them (K7), and an ended pod's entry may stay (K29).
        """
        return [CheckpointOwner(*each) for each in self._owners[resource].get(ids, ())]


@dataclass(frozen=True, slots=True)
class ListedContainer:
    """One container of a listed pod, with all device IDs that it holds (fact K16)."""

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
        object.__setattr__(self, "names", frozenset([each.name for each in self.containers]))

    @property
    def key(self) -> Key:
        """Namespace and name; ``List`` has no UID."""
        return self.namespace, self.name

    def may_be(self, info: PodInfo) -> bool:
        """Return whether the entry has exactly the containers that an entry of *info* must have.

        Only newer kubelets list restartable init containers.
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
        """Return whether a container holds another amount of a resource than it requests."""
        held = {each.name: each.held for each in self.containers}
        return any(
            ids and len(ids) != resource.count_in(each.demand)
            for each in info.demand.containers
            for resource, ids in held.get(each.name, {}).items()
        )


# --- Protocols --------------------------------------------------------------------------


class PodSource(NodePods, Protocol):
    """The pods of this node in the API, with what resolving a call needs of them."""

    def is_synced(self) -> bool:
        """Return whether the API has shown all pods of the node once."""

    def uids_seen(self, key: Key) -> Sequence[str]:
        """Return the UIDs that pods with a name had, in the watch's order, deleted ones included.

        An empty UID stands for unknown earlier pods.
        """

    def fetch(self, namespace: str, name: str, *, within: float = 1.0) -> PodInfo | None:
        """Get one pod *within* so many seconds; ``None`` if it is not on this node.

        Raises:
            Unavailable: no response in time.
        """

    def refresh(self, *, within: float) -> None:
        """List the pods once, beside the watch, and add those that it has not reported yet.

        Raises:
            Unavailable: no response in time.
        """


class CheckpointSource(Protocol):
    """The kubelet's checkpoint file."""

    def read(self) -> Checkpoint:
        """Return its content; the same object if it has not changed.

        Raises:
            Unavailable: it cannot be read, or has an unknown format.
        """


class PodResourcesSource(Protocol):
    """The kubelet's ``List``."""

    def list(self, *, within: float) -> Sequence[ListedPod]:
        """Return the listed pods *within* so many seconds.

        Raises:
            Unavailable: no response in time.
        """


class Store(Protocol):
    """One text that outlives the agent."""

    def load(self) -> str:
        """Return the text; empty if there is none."""

    def save(self, text: str) -> None:
        """Replace the whole text; if that fails, remove it."""


class DecisionLog(Protocol):
    """Reports decisions to log and metrics."""

    def decided(
        self,
        call: str,
        ref: ContainerRef,
        resource: Resource,
        evidence: Evidence,
        ids: Collection[str],
    ) -> None:
        """Report that the target of a call was found."""

    def refused(
        self, call: str, ref: ContainerRef | None, resource: Resource, size: int, reason: str
    ) -> None:
        """Report that a call was refused; *ref* is ``None`` if its target is not known."""

    def replaced(self, ref: ContainerRef, chosen: Sequence[str], cards: Sequence[str]) -> None:
        """Report that other cards were taken, because those that a scheduler chose did not fit."""

    def corrected(self, correction: Correction) -> None:
        """Report that checkpoint or ``List`` contradicted a guess."""

    def unproven(self, ref: ContainerRef | None, ids: Collection[str], reason: str) -> None:
        """Report that a container starts without proof."""

    def without_wishes(self, ref: ContainerRef, resource: Resource, ids: Collection[str]) -> None:
        """Report that slots were chosen while the wishes of the pod's author were not known."""

    def podresources_unavailable(self, reason: str) -> None:
        """Report that ``List`` is unavailable."""
