"""The share of each card that each container holds, as numbers: for gauges and overuse. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.allocator.interfaces import ContainerRef, HeldSlots
from agent.allocator.search_input import free_slots
from agent.allocator.slots import DeviceTable
from agent.allocator.snapshot import AllocationSnapshot
from agent.allocator.snapshot_pod import SnapshotPod
from contract.demand import CORES_PER_CARD
from contract.resource import Resource


@dataclass(frozen=True, slots=True)
class HeldShare:
    """What one container holds of one card.

    Attributes:
        cores: hundredths of the card.
        memory: bytes; all of a whole card.
    """

    cores: int
    memory: int


@dataclass(frozen=True, slots=True)
class CardHolder:
    """A container that holds cards.

    Attributes:
        ref: which container.
        runtime_uid: the UID by which the container runtime knows its pod.
        shares: what it holds, by card UUID.
        core_limit: hundredths of a card that it may use while others leave them idle
            (``vcuda-core-limit``); ``None`` where its pod does not say.
    """

    ref: ContainerRef
    runtime_uid: str
    shares: Mapping[str, HeldShare]
    core_limit: int | None = None


@dataclass(frozen=True, slots=True)
class CardTotals:
    """What is held and free of one card.

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
        cards: held and free, by card UUID, in the order of the cards' index.
    """

    holders: tuple[CardHolder, ...] = ()
    cards: Mapping[str, CardTotals] = field(default_factory=dict)


def count_holdings(record: AllocationSnapshot, table: DeviceTable) -> Holdings:
    """Count what *record* says; a record does not change, so nothing needs to be locked."""
    holders = [
        _holder(pod, name, places, table)
        for pod in record.pods
        for name, places in pod.held.items()
        # What an init container took its pod keeps, by its later containers (K7).
        if not (pod.info is not None and pod.info.running and pod.is_init(name))
    ]
    holders.sort(key=lambda each: each.ref)
    free = {each: free_slots(record, table, each) for each in Resource}
    rooms = {}
    for card in table.inventory.cards:
        blocks, cores_free = table.places(Resource.MEMORY, card), free[Resource.CORE][card.uuid]
        shares = (each.shares.get(card.uuid) for each in holders)
        # The kubelet may count fewer blocks of a whole card, and yet nobody else can have one.
        filled = any(share is not None and share.memory == card.memory for share in shares)
        blocks_free = 0 if filled else free[Resource.MEMORY][card.uuid]
        rooms[card.uuid] = CardTotals(
            CORES_PER_CARD - cores_free,
            cores_free,
            (blocks - blocks_free) * table.block,
            blocks_free * table.block,
        )
    return Holdings(tuple(holders), rooms)


def _holder(pod: SnapshotPod, name: str, places: HeldSlots, table: DeviceTable) -> CardHolder:
    """Count what one container holds, of the cards that this node still has."""
    cores = table.count(Resource.CORE, places.get(Resource.CORE, frozenset()))
    blocks = table.count(Resource.MEMORY, places.get(Resource.MEMORY, frozenset()))
    shares = {}
    for card in table.inventory.cards:
        core, memory = cores.get(card.uuid, 0), blocks.get(card.uuid, 0) * table.block
        if core == CORES_PER_CARD:
            memory = card.memory
        if core or memory:
            shares[card.uuid] = HeldShare(core, memory)
    info = pod.info
    return CardHolder(
        ContainerRef(pod.id, name),
        (info.runtime_uid if info is not None else "") or pod.uid,
        shares,
        info.wishes.core_limit if info is not None else None,
    )
