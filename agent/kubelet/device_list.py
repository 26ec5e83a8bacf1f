"""The device lists that ``ListAndWatch`` sends: all slots as devices, in one bounded message."""

import threading
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from agent.allocator.slots import DeviceTable, Slot
from agent.errors import SettingsError
from common.kubelet_api import deviceplugin_pb2 as api
from contract.inventory import HEALTHY, UNHEALTHY, Card
from contract.resource import Resource

MOST_BYTES = 4 * 1024 * 1024
"""The longest message that the kubelet reads: gRPC-Go's default, which it does not raise."""

_MIB = 1 << 20


class HealthFeed:
    """The unhealthy cards, for the threads that wait until they change.

    Safe to share between threads.
    """

    def __init__(self, unhealthy: Callable[[], frozenset[str]] = frozenset) -> None:
        """Prepare; *unhealthy* returns the UUIDs of the cards that are unhealthy now."""
        self.unhealthy = unhealthy
        self._changed = threading.Condition()

    def wake(self) -> None:
        """Make all waiting threads check again."""
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until *condition* holds; it is checked after every ``wake``."""
        with self._changed:
            self._changed.wait_for(condition)


def devices(
    table: DeviceTable, resource: Resource, unhealthy: AbstractSet[str], *, numa: bool
) -> list[api.Device]:
    """List every slot of *resource* as a device; *unhealthy* has the UUIDs of unhealthy cards."""
    topology = {card.uuid: _topology(card, numa=numa) for card in table.inventory.cards}
    return [
        api.Device(
            ID=device_id,
            health=UNHEALTHY if slot.card in unhealthy else HEALTHY,
            topology=topology[slot.card],
        )
        for device_id, slot in table.slots(resource).items()
    ]


def size_of(table: DeviceTable, resource: Resource, *, numa: bool) -> int:
    """Return the bytes of the longest message: the one in which all cards are unhealthy."""
    total = 0
    for card in table.inventory.cards:
        slots, low = table.slot_count(resource, card), 0
        while low < slots:  # IDs of as many digits have the same length
            high = min(slots, max(low * 10, 10))
            device = api.Device(
                ID=str(Slot(card.uuid, low)),
                health=UNHEALTHY,
                topology=_topology(card, numa=numa),
            )
            total += (high - low) * api.ListAndWatchResponse(devices=[device]).ByteSize()
            low = high
    return total


def check_size(table: DeviceTable, *, numa: bool) -> None:
    """Check that the kubelet can read the list of all slots.

    Raises:
        SettingsError: the message is too long; the text names the smallest block that works.
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
    slots = sum(table.slot_count(Resource.MEMORY, card) for card in table.inventory.cards)
    smallest = _smallest_block(table, numa=numa)
    what_to_do = f"use {smallest}Mi or more" if smallest else "no block of this node's cards works"
    raise SettingsError(
        f"memory-block: Invalid value: {table.block // _MIB}Mi: {slots} blocks on {cards} cards "
        f"are {size} bytes of devices, and the kubelet reads at most {MOST_BYTES} in one "
        f"message: {what_to_do}"
    )


def _smallest_block(table: DeviceTable, *, numa: bool) -> int:
    """Return the smallest block that works, in MiB; 0 if none does."""
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
