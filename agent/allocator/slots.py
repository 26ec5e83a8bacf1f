"""Slots: a device ID ``<card uuid>::<number>`` stands for one slot of a resource on one card."""

import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property

from agent.errors import GrantError, SettingsError
from contract.errors import quote
from contract.inventory import Card, Inventory
from contract.resource import Resource

_PLACE = re.compile(r"(0|[1-9][0-9]{0,8})\Z", re.ASCII)
_SEPARATOR = "::"


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """One slot on one card."""

    card: str
    number: int

    def __str__(self) -> str:
        """Write the device ID."""
        return f"{self.card}{_SEPARATOR}{self.number}"

    @classmethod
    def parse(cls, device_id: str) -> "Slot":
        """Read a device ID, strictly.

        Raises:
            GrantError: it is not ``<card uuid>::<place>``.
        """
        card, separator, place = device_id.rpartition(_SEPARATOR)
        if not separator or not card or not _PLACE.match(place):
            raise GrantError(
                f"device ID {quote(device_id)} is not <card uuid>{_SEPARATOR}<place>: "
                "it was not given out by this agent"
            )
        return cls(card, int(place))


@dataclass(frozen=True)
class DeviceTable:
    """Every slot of a node.

    Attributes:
        inventory: the node's cards.
        block: size of a memory block, bytes.

    Raises:
        SettingsError: *block* is larger than a card.
    """

    inventory: Inventory
    block: int

    def __post_init__(self) -> None:
        """Refuse a block no card could hold."""
        for card in self.inventory.cards:
            if self.places(Resource.MEMORY, card) < 1:
                raise SettingsError(
                    f"memory-block: Invalid value: {self.block}: larger than card {card.uuid} "
                    f"({card.memory} bytes)"
                )

    def places(self, resource: Resource, card: Card) -> int:
        """Count the places of *resource* on *card*."""
        return resource.slots(card.memory // self.block)

    @cached_property
    def _slots(self) -> Mapping[Resource, Mapping[str, Slot]]:
        # Parsing thousands of IDs in every call would cost milliseconds; looking them up does not.
        return {
            resource: {
                sys.intern(str(slot)): slot
                for card in self.inventory.cards
                for slot in (Slot(card.uuid, place) for place in range(self.places(resource, card)))
            }
            for resource in Resource
        }

    def slots(self, resource: Resource) -> Mapping[str, Slot]:
        """Map every device ID of *resource* to its slot, cards by index, places ascending."""
        return self._slots[resource]

    @cached_property
    def _by_card(self) -> Mapping[Resource, Mapping[str, frozenset[str]]]:
        return {
            resource: {
                uuid: frozenset(name for name, _ in places) for uuid, places in cards.items()
            }
            for resource, cards in self._on_card.items()
        }

    @cached_property
    def _on_card(self) -> Mapping[Resource, Mapping[str, Sequence[tuple[str, Slot]]]]:
        found: dict[Resource, dict[str, list[tuple[str, Slot]]]] = {
            resource: {card.uuid: [] for card in self.inventory.cards} for resource in Resource
        }
        for resource, slots in self._slots.items():
            for name, slot in slots.items():
                found[resource][slot.card].append((name, slot))
        return found

    def among(self, resource: Resource, card: str, device_ids: AbstractSet[str]) -> Iterator[Slot]:
        """Walk the slots of *card* that are among *device_ids*, by place."""
        return (each for name, each in self._on_card[resource][card] if name in device_ids)

    def by_card(self, resource: Resource) -> Mapping[str, frozenset[str]]:
        """Map every card's UUID to its device IDs of *resource*."""
        return self._by_card[resource]

    def count(self, resource: Resource, device_ids: AbstractSet[str]) -> dict[str, int]:
        """Count device IDs by card, of the cards that have any: in sets, there are thousands."""
        cards = self._by_card[resource].items()
        return {card: count for card, mine in cards if (count := len(mine & device_ids))}

    def read(self, resource: Resource, device_ids: Iterable[str]) -> list[Slot]:
        """Look device IDs up.

        Returns:
            The slots, by card index and place.

        Raises:
            GrantError: an ID is malformed, names an unknown card, or a place the card lacks.
        """
        known, order = self._slots[resource], self._order
        slots = [known.get(each) or self._explain(resource, each) for each in device_ids]
        return sorted(slots, key=lambda slot: (order[slot.card], slot.number))

    @cached_property
    def _order(self) -> Mapping[str, int]:
        return {card.uuid: card.index for card in self.inventory.cards}

    def in_order(self, uuids: Iterable[str]) -> tuple[str, ...]:
        """Sort card UUIDs by card index, without repeats: the order a container sees them in."""
        return tuple(sorted(set(uuids), key=lambda uuid: self._order[uuid]))

    def _explain(self, resource: Resource, device_id: str) -> Slot:
        slot = Slot.parse(device_id)
        card = self.inventory.card(slot.card)
        if card is None:
            raise GrantError(f"device ID {quote(device_id)} names a card this node does not have")
        raise GrantError(
            f"device ID {quote(device_id)} names a {resource} place beyond the "
            f"{self.places(resource, card)} of its card"
        )


def per_card(slots: Iterable[Slot]) -> Counter[str]:
    """Count places by card UUID."""
    return Counter(slot.card for slot in slots)


def summarize(device_ids: Collection[str]) -> str:
    """Write many device IDs shortly, for logs: ``GPU-a::0-9,12; GPU-b::0-99``."""
    by_card: dict[str, list[int]] = {}
    for device_id in device_ids:
        card, _, place = device_id.rpartition(_SEPARATOR)
        by_card.setdefault(card, []).append(int(place) if _PLACE.match(place) else -1)
    return "; ".join(
        f"{card}{_SEPARATOR}{_ranges(sorted(places))}" for card, places in sorted(by_card.items())
    )


def _ranges(places: list[int]) -> str:
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][1] + 1:
            runs[-1][1] = place
        else:
            runs.append([place, place])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
