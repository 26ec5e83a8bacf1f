"""What one container may use of its cards, by the record: what enforcement enforces."""

from dataclasses import dataclass

from agent.allocator.model.allocations import grant_of
from agent.allocator.model.containers import ContainerRef, Places
from agent.allocator.model.grant import Grant
from agent.allocator.model.tickets import DeviceTable
from agent.errors import GrantError
from contract.demand import CORES_PER_CARD
from contract.resource import Resource
from placement.pods import PodInfo


@dataclass(frozen=True, slots=True)
class Entitlement:
    """What one container may use.

    Attributes:
        ref: which container.
        core_ids: the core places it holds: its tickets.
        cores: these, card by card.
        memory: its memory blocks, card by card; ``None`` is no limit: whole cards have all of
            theirs, as with gpu-manager.
        core_limit: percent of a card up to which a share may use idle cores beyond its own
            (``vcuda-core-limit``); ``None`` holds it to its own.
        runtime_uid: the UID by which the container runtime knows the pod, where that is told.
    """

    ref: ContainerRef
    core_ids: frozenset[str]
    cores: Grant
    memory: Grant | None
    core_limit: int | None = None
    runtime_uid: str = ""

    @property
    def uid(self) -> str:
        """The UID by which the container runtime knows the pod; empty while nobody knows any."""
        return self.runtime_uid or self.ref.pod.uid


def entitlement(
    places: Places, table: DeviceTable, ref: ContainerRef, view: PodInfo | None
) -> Entitlement | None:
    """Return what a container may use; ``None`` when it holds no cores.

    Args:
        places: what it holds.
        table: the node's device IDs.
        ref: which container.
        view: its pod, where the API has shown it.
    """
    held = places.get(Resource.CORE)
    if held is None:
        return None
    try:
        cores = grant_of(table, Resource.CORE, held)
        memory = grant_of(table, Resource.MEMORY, places.get(Resource.MEMORY))
    except GrantError:  # of a card that this node no longer has
        return None
    if cores is None:
        return None
    if cores.places >= CORES_PER_CARD:
        memory = None
    limit = view.wishes.core_limit if view is not None else None
    runtime_uid = view.runtime_uid if view is not None else ""
    return Entitlement(ref, held, cores, memory, limit, runtime_uid)
