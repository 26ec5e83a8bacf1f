"""What slots stand for, whether that makes sense, and what comes of it for a container. Pure.

A grant is all slots of one resource that a container holds; an entitlement is what a container may
use by its grants; container edits are what it finds of them; an allocation is what its pod shows.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from agent.allocator.interfaces import ContainerRef, Containers, HeldSlots
from agent.allocator.slots import DeviceTable, Slot, per_card
from agent.errors import GrantError
from contract.allocation import Allocation, Evidence
from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind, Demand
from contract.resource import Resource, count_of
from placement.pods import PodInfo

_NOTHING: HeldSlots = {}


@dataclass(frozen=True, slots=True)
class CardGrant:
    """What a container gets of one card of one resource: how many slots."""

    card: str
    slots: int


@dataclass(frozen=True, slots=True)
class Grant:
    """What a set of device IDs stands for.

    Attributes:
        resource: which resource.
        by_card: slots of each card, cards by index, the order of every answer.
    """

    resource: Resource
    by_card: tuple[CardGrant, ...]

    @property
    def cards(self) -> tuple[str, ...]:
        """The cards, by index."""
        return tuple(each.card for each in self.by_card)

    @property
    def slots(self) -> int:
        """All slots together."""
        return sum(each.slots for each in self.by_card)


def translate(resource: Resource, slots: Sequence[Slot]) -> Grant:
    """Translate slots, by card index, to what they stand for.

    Raises:
        GrantError: there are none, one stands twice, a share is split over cards, or
            whole cards are not whole.
    """
    if not slots:
        raise GrantError(f"no places of {resource} were named")
    if len(set(slots)) < len(slots):
        raise GrantError(f"a place of {resource} is named twice")
    grant = Grant(resource, tuple(CardGrant(*each) for each in per_card(slots).items()))
    if resource is Resource.CORE:
        _check_cores(grant)
    return grant


def grant_of(table: DeviceTable, resource: Resource, held: frozenset[str] | None) -> Grant | None:
    """Translate what a container holds of *resource*; ``None`` when it holds none.

    Raises:
        GrantError: what it holds makes no sense.
    """
    return None if held is None else translate(resource, table.read(resource, held))


def _check_cores(grant: Grant) -> None:
    split = ", ".join(f"{each.slots} on {each.card}" for each in grant.by_card)
    if grant.slots < CORES_PER_CARD:
        if len(grant.by_card) > 1:
            raise GrantError(f"a share of {grant.slots} cores is split over cards: {split}")
    elif any(each.slots != CORES_PER_CARD for each in grant.by_card):
        raise GrantError(f"{grant.slots} cores are whole cards, but the places are not: {split}")


def check_together(grants: Iterable[Grant]) -> None:
    """Check the grants of one container against each other.

    Raises:
        GrantError: memory lies on a card where the container has no cores.
    """
    by_resource = {each.resource: each for each in grants}
    cores, memory = by_resource.get(Resource.CORE), by_resource.get(Resource.MEMORY)
    if cores is None or memory is None:
        return
    stray = [card for card in memory.cards if card not in cores.cards]
    if stray:
        raise GrantError(
            f"memory on {', '.join(stray)}, but the container's cores are on "
            f"{', '.join(cores.cards)}"
        )


def check_request(demand: Demand, grant: Grant) -> None:
    """Check a grant against what its container asks for.

    Raises:
        GrantError: the number of slots is not what was asked for.
    """
    asked = count_of(demand, grant.resource)
    if grant.slots != asked:
        raise GrantError(
            f"{grant.slots} places of {grant.resource}, but the container asks for {asked}"
        )


def check_free(resource: Resource, held_by_others: Collection[str]) -> None:
    """Refuse slots that another live container holds (fact K15).

    Raises:
        GrantError: naming some of the slots.
    """
    if held_by_others:
        some = ", ".join(sorted(held_by_others)[:3])
        raise GrantError(
            f"{len(held_by_others)} places of {resource} are held by another container: {some}"
        )


# --- what a container may use -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entitlement:
    """What one container may use of its cards: what enforcement enforces.

    Attributes:
        ref: which container.
        core_ids: the core slots that it holds.
        cores: these, card by card.
        memory: its memory blocks, card by card; ``None`` is no limit: whole cards have all of
            theirs, as with gpu-manager.
        core_limit: percent of a card up to which a share may use idle cores beyond its own
            (``vcuda-core-limit``); ``None`` holds it to its own.
        runtime_uid: the UID by which the container runtime knows the pod, where that is known.
    """

    ref: ContainerRef
    core_ids: frozenset[str]
    cores: Grant
    memory: Grant | None
    core_limit: int | None = None
    runtime_uid: str = ""

    @property
    def uid(self) -> str:
        """The UID by which the container runtime knows the pod; empty while it is not known."""
        return self.runtime_uid or self.ref.pod.uid


def entitlement(
    held: HeldSlots, table: DeviceTable, ref: ContainerRef, info: PodInfo | None
) -> Entitlement | None:
    """Return what a container may use; ``None`` when it holds no cores.

    Args:
        held: what it holds.
        table: the node's device IDs.
        ref: which container.
        info: its pod, where the API has shown it.
    """
    core_ids = held.get(Resource.CORE)
    if core_ids is None:
        return None
    try:
        cores = translate(Resource.CORE, table.read(Resource.CORE, core_ids))
        memory = grant_of(table, Resource.MEMORY, held.get(Resource.MEMORY))
    except GrantError:  # of a card that this node no longer has
        return None
    if cores.slots >= CORES_PER_CARD:
        memory = None
    limit = info.wishes.core_limit if info is not None else None
    runtime_uid = info.runtime_uid if info is not None else ""
    return Entitlement(ref, core_ids, cores, memory, limit, runtime_uid)


# --- what a container finds -------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class Mount:
    """A file or directory of the host that a container finds.

    Attributes:
        container: absolute path in the container.
        host: absolute path on the host.
        read_only: whether the container may only read it.
    """

    container: str
    host: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """What an ``Allocate`` response carries, before it is put on the wire.

    Attributes:
        envs: environment variables.
        devices: paths of device nodes, the same on the host and in the container.
        mounts: what of the host is mounted.
        cdi: fully qualified CDI device names.
    """

    envs: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    cdi: tuple[str, ...] = ()

    def merged_with(self, other: "ContainerEdits") -> "ContainerEdits":
        """Return both together; where both set a variable or a mount point, *other* has it."""
        at = {each.container: each for each in (*self.mounts, *other.mounts)}
        return ContainerEdits(
            {**self.envs, **other.envs},
            tuple(dict.fromkeys((*self.devices, *other.devices))),
            tuple(at.values()),
            tuple(dict.fromkeys((*self.cdi, *other.cdi))),
        )


# --- what a pod shows -------------------------------------------------------------------

EvidenceOf: TypeAlias = Callable[[str, Resource], Evidence]
"""How it was resolved that a container, by name, holds what it holds of a resource."""


def allocations_of(
    held: Containers, table: DeviceTable, info: PodInfo, *, evidence: EvidenceOf
) -> dict[str, Allocation] | None:
    """Return what each container of a pod got, once all of them have all they ask for.

    An ordinary init container of which nothing is known does not keep a pod waiting when a later
    container has been served: without the checkpoint nobody can tell what it got (K4).

    Args:
        held: what the containers of the pod hold.
        table: the node's device IDs.
        info: the pod.
        evidence: how that was resolved.

    Returns:
        Container name -> allocation; ``None`` while something is missing.

    Raises:
        GrantError: a container holds slots of a card that this node does not have.
    """
    found: dict[str, Allocation] = {}
    for at, container in enumerate(info.demand.containers):
        slots = held.get(container.name, _NOTHING)
        allocation = _allocation(slots, table, container, evidence)
        if allocation is not None:
            found[container.name] = allocation
        elif container.kind is not ContainerKind.INIT or not any(
            held.get(each.name) for each in info.demand.containers[at + 1 :]
        ):
            return None
    return found


def _allocation(
    slots: HeldSlots, table: DeviceTable, container: ContainerDemand, evidence: EvidenceOf
) -> Allocation | None:
    wanted = {each for each in Resource if count_of(container.demand, each)}
    if not wanted or set(slots) != wanted:
        return None
    cards = {each.card for resource, ids in slots.items() for each in table.read(resource, ids)}
    weakest = max((evidence(container.name, each) for each in slots), key=list(Evidence).index)
    return Allocation(
        table.in_order(cards), container.demand.cores, container.demand.memory, weakest
    )


def is_news(found: Mapping[str, Allocation], annotated: Mapping[str, Allocation]) -> bool:
    """Return whether *found* says something that the pod's allocation annotation does not.

    Evidence that is only newer is no news: an agent that was restarted has everything from the
    kubelet. A guess by order that was proven is.
    """
    for name, new in found.items():
        old = annotated.get(name)
        if old is None or replace(old, evidence=new.evidence) != new:
            return True
        if old.evidence is Evidence.ORDER and new.evidence is not Evidence.ORDER:
            return True
    return False
