"""What each container holds of each card, as numbers: for gauges and for what use is compared with.

Read off the record at one moment. Counting is done outside of the lock, on immutable values.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.allocator.free_places import free_places
from agent.allocator.model.containers import ContainerRef, Places
from agent.allocator.model.pod_view import PodView
from agent.allocator.model.tickets import DeviceTable, card_of
from agent.allocator.node_state import NodeState
from contract.demand import CORES_PER_CARD
from contract.resource import Resource

_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class HeldShare:
    """What one container holds of one card.

    Attributes:
        cores: hundredths of the card.
        memory: bytes; all of a whole card that was asked for without memory.
    """

    cores: int
    memory: int


@dataclass(frozen=True, slots=True)
class Holder:
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
class CardRoom:
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
    """Who holds what of a node, at one moment.

    Attributes:
        holders: containers that hold cards, sorted.
        cards: held and free, by card UUID, in the order of the cards' index.
    """

    holders: tuple[Holder, ...] = ()
    cards: Mapping[str, CardRoom] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Held:
    """One container's places and its pod, as they were under the lock."""

    ref: ContainerRef
    places: Places
    view: PodView | None


@dataclass(frozen=True, slots=True)
class Moment:
    """What was taken from the record; nothing of it changes any more."""

    held: tuple[_Held, ...]
    free: Mapping[Resource, Mapping[str, int]]
    table: DeviceTable

    def count(self) -> Holdings:
        """Count what was taken; needs no lock."""
        holders = tuple(sorted(map(self._holder, self.held), key=lambda each: each.ref))
        rooms = {}
        for card in self.table.inventory.cards:
            blocks = self.table.places(Resource.MEMORY, card)
            cores_free = self.free[Resource.CORE][card.uuid]
            shares = (each.shares.get(card.uuid) for each in holders)
            # A whole card without a memory request: the kubelet counts no block of it, and yet
            # nobody else can have one.
            filled = any(share is not None and share.memory == card.memory for share in shares)
            blocks_free = 0 if filled else self.free[Resource.MEMORY][card.uuid]
            rooms[card.uuid] = CardRoom(
                CORES_PER_CARD - cores_free,
                cores_free,
                (blocks - blocks_free) * self.table.block,
                blocks_free * self.table.block,
            )
        return Holdings(holders, rooms)

    def _holder(self, held: _Held) -> Holder:
        cores = Counter(map(card_of, held.places.get(Resource.CORE, _NOTHING)))
        blocks = Counter(map(card_of, held.places.get(Resource.MEMORY, _NOTHING)))
        shares = {}
        for uuid in sorted(cores.keys() | blocks.keys()):
            card = self.table.inventory.card(uuid)
            if card is None:
                continue  # of a card that this node no longer has
            whole = not blocks and cores[uuid] == CORES_PER_CARD
            memory = card.memory if whole else blocks[uuid] * self.table.block
            shares[uuid] = HeldShare(cores[uuid], memory)
        view = held.view
        return Holder(
            held.ref,
            (view.runtime_uid if view is not None else "") or held.ref.pod.uid,
            shares,
            view.wishes.core_limit if view is not None else None,
        )


def read_holdings(state: NodeState, table: DeviceTable) -> Moment:
    """Take from *state*, whose lock is held, what :meth:`Moment.count` counts later."""
    held = []
    for ref, places in state.record.walk():
        found, view = state.record.pod(ref.pod), state.pods.view(ref.pod)
        over = found is not None and found.is_init(ref.container)
        if not (over and view is not None and view.running):
            held.append(_Held(ref, places, view))
    free = {each: free_places(state.record, table, each) for each in Resource}
    return Moment(tuple(held), free, table)
