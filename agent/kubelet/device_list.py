"""What ``ListAndWatch`` sends, and when: all places as devices, in one message of bounded size."""

import threading
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from agent.allocator.slots import DeviceTable, Slot
from agent.errors import SettingsError
from common.kubelet_api import deviceplugin_pb2 as api
from contract.inventory import HEALTHY, UNHEALTHY, Card
from contract.resource import Resource

MOST_BYTES = 4 * 1024 * 1024
"""What the kubelet reads in one message: gRPC-Go's default, which it does not raise."""

_MIB = 1 << 20


class HealthFeed:
    """The cards that are not to be given out, for the threads that wait for others of them.

    Safe to share between threads.
    """

    def __init__(self, unhealthy: Callable[[], frozenset[str]] = frozenset) -> None:
        """Prepare; *unhealthy* gives the cards' UUIDs as they are now."""
        self.unhealthy = unhealthy
        self._changed = threading.Condition()

    def wake(self) -> None:
        """Make all that wait look again."""
        with self._changed:
            self._changed.notify_all()

    def after(self, shown: frozenset[str], *, leave: Callable[[], bool]) -> frozenset[str] | None:
        """Wait for others than *shown* and return them; ``None`` as soon as *leave* says so."""
        with self._changed:
            self._changed.wait_for(lambda: leave() or self.unhealthy() != shown)
            return None if leave() else self.unhealthy()


def devices(
    table: DeviceTable, resource: Resource, unhealthy: AbstractSet[str], *, numa: bool
) -> list[api.Device]:
    """List every place of *resource*; *unhealthy* has the UUIDs of cards not to be given out."""
    topology = {card.uuid: _topology(card, numa=numa) for card in table.inventory.cards}
    return [
        api.Device(
            ID=device_id,
            health=UNHEALTHY if ticket.card in unhealthy else HEALTHY,
            topology=topology[ticket.card],
        )
        for device_id, ticket in table.slots(resource).items()
    ]


def size_of(table: DeviceTable, resource: Resource, *, numa: bool) -> int:
    """Return the bytes of the longest message: that of a node all of whose cards are ill."""
    total = 0
    for card in table.inventory.cards:
        places, low = table.places(resource, card), 0
        while low < places:  # IDs of as many digits have the same length
            high = min(places, max(low * 10, 10))
            device = api.Device(
                ID=str(Slot(card.uuid, low)),
                health=UNHEALTHY,
                topology=_topology(card, numa=numa),
            )
            total += (high - low) * api.ListAndWatchResponse(devices=[device]).ByteSize()
            low = high
    return total


def check_size(table: DeviceTable, *, numa: bool) -> None:
    """Refuse more places than the kubelet can be told of.

    Raises:
        SettingsError: the message is too long; names the smallest block that works.
    """
    cards = len(table.inventory.cards)
    if size_of(table, Resource.CORE, numa=numa) > MOST_BYTES:
        raise SettingsError(
            f"cards: Invalid value: {cards} cards: the kubelet reads at most {MOST_BYTES} bytes of "
            "devices in one message"
        )
    size = size_of(table, Resource.MEMORY, numa=numa)
    if size <= MOST_BYTES:
        return
    places = sum(table.places(Resource.MEMORY, card) for card in table.inventory.cards)
    smallest = _smallest_block(table, numa=numa)
    what_to_do = f"use {smallest}Mi or more" if smallest else "no block of this node's cards works"
    raise SettingsError(
        f"memory-block: Invalid value: {table.block // _MIB}Mi: {places} blocks on {cards} cards "
        f"are {size} bytes of devices, and the kubelet reads at most {MOST_BYTES} in one "
        f"message: {what_to_do}"
    )


def _smallest_block(table: DeviceTable, *, numa: bool) -> int:
    """Return the smallest block that works, in MiB; 0 where none does."""
    low = table.block // _MIB
    high = min(card.memory for card in table.inventory.cards) // _MIB
    while low < high:
        middle = (low + high) // 2
        if _fits(table, middle, numa=numa):
            high = middle
        else:
            low = middle + 1
    return high if _fits(table, high, numa=numa) else 0


def _fits(table: DeviceTable, mebibytes: int, *, numa: bool) -> bool:
    tried = DeviceTable(table.inventory, mebibytes * _MIB)
    return size_of(tried, Resource.MEMORY, numa=numa) <= MOST_BYTES


def _topology(card: Card, *, numa: bool) -> api.TopologyInfo | None:
    if not numa or card.numa is None:
        return None
    return api.TopologyInfo(nodes=[api.NUMANode(ID=card.numa)])
