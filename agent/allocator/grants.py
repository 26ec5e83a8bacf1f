"""Grants: translates and checks device IDs, and derives entitlements and allocations. Pure.

A grant is all slots of one resource that a container holds. An entitlement is what the container
may use by its grants. Container edits make its cards available in the container. An allocation is
the part of the pod's annotation for the container.
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
    """The number of slots of one resource on one card."""

    card: str
    slots: int


@dataclass(frozen=True, slots=True)
class Grant:
    """A set of device IDs, summed up by card.

    Attributes:
        resource: the resource.
        by_card: the slots on each card; cards by index, as in every response.
    """

    resource: Resource
    by_card: tuple[CardGrant, ...]

    @property
    def cards(self) -> tuple[str, ...]:
        """The cards, by index."""
        return tuple(each.card for each in self.by_card)

    @property
    def slots(self) -> int:
        """The number of slots on all cards."""
        return sum(each.slots for each in self.by_card)

    @property
    def most_per_card(self) -> int:
        """The number of slots on the card with most."""
        return max(each.slots for each in self.by_card)

    @property
    def is_even(self) -> bool:
        """Whether it has the same number of slots on each card, as whole cards have of cores."""
        return len({each.slots for each in self.by_card}) == 1

    @property
    def is_whole(self) -> bool:
        """Whether these cores are whole cards, not shares of cards."""
        return self.is_even and self.most_per_card == CORES_PER_CARD

    @property
    def by_card_text(self) -> str:
        """The slots on each card, for messages."""
        return ", ".join(f"{each.slots} on {each.card}" for each in self.by_card)


def translate(resource: Resource, slots: Sequence[Slot]) -> Grant:
    """Sum up slots, which are sorted by card index, to a grant.

    Raises:
        GrantError: there are none, or one is repeated.
    """
    if not slots:
        raise GrantError(f"no {resource.unit} were named")
    if len(set(slots)) < len(slots):
        raise GrantError(f"{resource.unit} are named twice")
    return Grant(resource, tuple(CardGrant(*each) for each in per_card(slots).items()))


def grant_of(table: DeviceTable, resource: Resource, held: frozenset[str] | None) -> Grant | None:
    """Return the grant of a container's device IDs; ``None`` if it has none.

    Raises:
        GrantError: they are not IDs of this node's cards.
    """
    return None if held is None else translate(resource, table.read(resource, held))


def check_together(grants: Iterable[Grant]) -> None:
    """Check the grants of one container against each other.

    Raises:
        GrantError: the memory is on a card on which the container has no cores.
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
    """Check the number of a grant's slots against the container's request.

    Raises:
        GrantError: it is not the requested one.
    """
    requested = count_of(demand, grant.resource)
    if grant.slots != requested:
        raise GrantError(
            f"{grant.resource.format_count(grant.slots)}, but the container requests {requested}"
        )


def check_parts(demand: Demand | None, grant: Grant) -> None:
    """Check the number of a grant's cards, and its part of each.

    Args:
        demand: the container's request; ``None`` if it is not known: cores must then be whole cards
            or the same part of each card.
        grant: as many slots as requested. The memory of whole cards may be on fewer of them.

    Raises:
        GrantError: cores that must be whole cards are not, or a share is not divided evenly over
            the requested number of cards.
    """
    if demand is None:
        right = grant.is_even or grant.resource is not Resource.CORE
        rule = f"{grant.slots} cores must be whole cards or the same part of each, but they are not"
    elif not demand.is_share:
        right = grant.is_whole or grant.resource is not Resource.CORE
        rule = f"{grant.slots} cores must be whole cards, but they are not"
    else:
        part = count_of(demand, grant.resource) // demand.split
        right = [each.slots for each in grant.by_card] == [part] * demand.split
        share = f"a share of {grant.resource.format_count(grant.slots)}"
        rule = f"{share} must be {part} on each of {demand.split} cards, but is not"
        if demand.split == 1:
            rule = f"{share} is split over cards"
    if not right:
        raise GrantError(f"{rule}: {grant.by_card_text}")


def check_free(resource: Resource, held_by_others: Collection[str]) -> None:
    """Refuse slots that another container still holds (fact K15).

    Raises:
        GrantError: there are some; the message names up to three.
    """
    if held_by_others:
        some = ", ".join(sorted(held_by_others)[:3])
        count = len(held_by_others)
        are = "is" if count == 1 else "are"
        raise GrantError(f"{resource.format_count(count)} {are} held by another container: {some}")


# --- entitlements -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entitlement:
    """The limits of one container on its cards, which enforcement applies.

    Attributes:
        ref: the container.
        core_ids: the core slots that it holds.
        cores: the same, by card.
        memory: its memory blocks, by card; ``None`` for no limit: whole cards include all their
            memory, as with gpu-manager.
        core_limit: percent of each card up to which a share may use idle cores beyond its own
            (``vcuda-core-limit``); ``None`` for only its own.
        runtime_uid: the pod's UID in the container runtime; empty while it is not known.
    """

    ref: ContainerRef
    core_ids: frozenset[str]
    cores: Grant
    memory: Grant | None
    core_limit: int | None = None
    runtime_uid: str = ""

    @property
    def uid(self) -> str:
        """The pod's UID in the container runtime, or else in the API; empty if neither is known."""
        return self.runtime_uid or self.ref.pod.uid


def entitlement(
    held: HeldSlots, table: DeviceTable, ref: ContainerRef, info: PodInfo | None
) -> Entitlement | None:
    """Return the entitlement of a container; ``None`` if it holds no cores.

    Args:
        held: the slots that it holds.
        table: the node's device IDs.
        ref: the container.
        info: its pod, if the API has shown it.
    """
    core_ids = held.get(Resource.CORE)
    if core_ids is None:
        return None
    try:
        cores = translate(Resource.CORE, table.read(Resource.CORE, core_ids))
        memory = grant_of(table, Resource.MEMORY, held.get(Resource.MEMORY))
        check_parts(None, cores)
    except GrantError:  # of a card that this node no longer has
        return None
    if cores.is_whole:
        memory = None
    limit = info.wishes.core_limit if info is not None else None
    runtime_uid = info.runtime_uid if info is not None else ""
    return Entitlement(ref, core_ids, cores, memory, limit, runtime_uid)


# --- container edits --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class Mount:
    """A file or directory of the host that is mounted into a container.

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
    """The content of an ``Allocate`` response.

    Attributes:
        envs: environment variables.
        devices: paths of device nodes, the same on the host and in the container.
        mounts: files and directories of the host.
        cdi: fully qualified CDI device names.
    """

    envs: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    cdi: tuple[str, ...] = ()

    def merged_with(self, other: "ContainerEdits") -> "ContainerEdits":
        """Return both together; *other* overrides equal variables and mount points."""
        at = {each.container: each for each in (*self.mounts, *other.mounts)}
        return ContainerEdits(
            {**self.envs, **other.envs},
            tuple(dict.fromkeys((*self.devices, *other.devices))),
            tuple(at.values()),
            tuple(dict.fromkeys((*self.cdi, *other.cdi))),
        )


# --- allocation annotations -------------------------------------------------------------

EvidenceOf: TypeAlias = Callable[[str, Resource], Evidence]
"""Returns the evidence for a container's slots, by the container's name and the resource."""


def allocations_of(
    held: Containers, table: DeviceTable, info: PodInfo, *, evidence: EvidenceOf
) -> dict[str, Allocation] | None:
    """Return the allocation of each container of a pod, once all have their whole request.

    An ordinary init container may be missing if a later container has been served: without the
    checkpoint its slots cannot be known (K4).

    Args:
        held: the slots that the containers of the pod hold.
        table: the node's device IDs.
        info: the pod.
        evidence: the evidence for these slots.

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


def needs_annotation(found: Mapping[str, Allocation], annotated: Mapping[str, Allocation]) -> bool:
    """Return whether *found* must be written to the pod's allocation annotation.

    Other evidence alone is no reason, since a restarted agent has everything from the kubelet. An
    exception is a guess by ``order`` that has been proven.
    """
    for name, new in found.items():
        old = annotated.get(name)
        if old is None or replace(old, evidence=new.evidence) != new:
            return True
        if old.evidence is Evidence.ORDER and new.evidence is not Evidence.ORDER:
            return True
    return False
