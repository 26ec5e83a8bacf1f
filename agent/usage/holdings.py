"""The amounts that each container holds of each card, for gauges and overuse. Pure."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from agent.allocator.interfaces import ContainerRef, HeldSlots
from agent.allocator.search_input import free_slots
from agent.allocator.slots import DeviceTable, Slot
from agent.allocator.snapshot import AllocationSnapshot
from agent.allocator.snapshot_pod import SnapshotPod
from agent.errors import GrantError
from contract.demand import CORES_PER_CARD
from contract.inventory import Amounts, Card
from contract.resource import RESOURCES, Resource


@dataclass(frozen=True, slots=True)
class HeldShare:
    """The amounts that one container holds of one card.

    Attributes:
        cores: hundredths of the card.
        memory: bytes; of a whole card all its memory.
    """

    cores: int
    memory: int


@dataclass(frozen=True, slots=True)
class CardHolder:
    """A container that holds cards.

    Attributes:
        ref: the container.
        runtime_uid: the UID of its pod in the container runtime.
        shares: the amounts that it holds, by card UUID.
        core_limit: hundredths of a card that it may use while they are idle
            (``vcuda-core-limit``); ``None`` if its pod does not set it.
    """

    ref: ContainerRef
    runtime_uid: str
    shares: Mapping[str, HeldShare]
    core_limit: int | None = None


@dataclass(frozen=True, slots=True)
class CardTotals:
    """The held and free amounts of one card.

    Attributes:
        cores_held: hundredths of the card.
        cores_free: hundredths of the card.
        memory_held: bytes.
        memory_free: bytes, in whole blocks.
    """

    cores_held: int
    cores_free: int
    memory_held: int
    memory_free: int


@dataclass(frozen=True, slots=True)
class Holdings:
    """The shares of a node's cards at one moment.

    Attributes:
        holders: containers that hold cards, sorted.
        cards: held and free amounts, by card UUID, in the order of the cards' index.
    """

    holders: tuple[CardHolder, ...] = ()
    cards: Mapping[str, CardTotals] = field(default_factory=dict)


def count_holdings(snapshot: AllocationSnapshot, table: DeviceTable) -> Holdings:
    """Sum up a snapshot; it is immutable, so no lock is needed."""
    holders = [
        _holder(pod, name, slots, table)
        for pod in snapshot.pods
        for name, slots in pod.held.items()
        # The slots of an init container are reusable: count them for the later containers (K7).
        if not (pod.info is not None and pod.info.running and pod.is_init(name))
    ]
    holders.sort(key=lambda each: each.ref)
    free = {each: dict(free_slots(snapshot, table, each)) for each in Resource}
    for card in table.inventory.cards:
        shares = (each.shares.get(card.uuid) for each in holders)
        # A container with a whole card may hold fewer of its blocks, but the others are not free.
        if any(share is not None and share.memory == card.memory for share in shares):
            free[Resource.MEMORY][card.uuid] = 0
    return Holdings(tuple(holders), count_totals(free, table))


def count_totals(
    free: Mapping[Resource, Mapping[str, int]], table: DeviceTable
) -> dict[str, CardTotals]:
    """Return the totals of each card, by what is free of it."""
    totals = {}
    for card in table.inventory.cards:
        cores, blocks = (free[each][card.uuid] for each in RESOURCES)
        held = table.slot_count(Resource.MEMORY, card) - blocks
        totals[card.uuid] = CardTotals(
            CORES_PER_CARD - cores, cores, held * table.block, blocks * table.block
        )
    return totals


def held_share(card: Card | None, held: Amounts, block: int) -> HeldShare:
    """Return what a container holds of a card, ``None`` if the node does not have it any more."""
    if held.cores == CORES_PER_CARD and card is not None:
        return HeldShare(held.cores, card.memory)
    return HeldShare(held.cores, held.memory * block)


def count_missing(slots: HeldSlots, table: DeviceTable) -> Mapping[str, Mapping[Resource, int]]:
    """Count the slots of cards that the node does not have any more, by card UUID."""
    found: dict[str, Counter[Resource]] = {}
    for resource, ids in slots.items():
        known = table.slots(resource)
        for each in ids:
            with suppress(GrantError):  # the ID of another device plugin
                if (
                    each not in known
                    and table.inventory.card(card := Slot.parse(each).card) is None
                ):
                    found.setdefault(card, Counter())[resource] += 1
    return found


def _holder(pod: SnapshotPod, name: str, slots: HeldSlots, table: DeviceTable) -> CardHolder:
    """Sum up what one container holds, missing cards included."""
    cores = table.count(Resource.CORE, slots.get(Resource.CORE, frozenset()))
    blocks = table.count(Resource.MEMORY, slots.get(Resource.MEMORY, frozenset()))
    shares = {}
    for card in table.inventory.cards:
        held = Amounts(cores.get(card.uuid, 0), blocks.get(card.uuid, 0))
        if any(held):
            shares[card.uuid] = held_share(card, held, table.block)
    for uuid, count in sorted(count_missing(slots, table).items()):
        missing = Amounts(*(count[each] for each in RESOURCES))
        shares[uuid] = held_share(None, missing, table.block)
    info = pod.info
    return CardHolder(
        ContainerRef(pod.id, name),
        (info.runtime_uid if info is not None else "") or pod.uid,
        shares,
        info.wishes.core_limit if info is not None else None,
    )
