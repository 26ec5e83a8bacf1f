"""Slots: a device ID ``<card uuid>::<number>`` is one slot of a resource on one card."""

import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property

from agent.errors import GrantError, SettingsError
from contract.demand import CORES_PER_CARD
from contract.errors import quote
from contract.inventory import Amounts, Card, Inventory
from contract.resource import RESOURCES, Resource

_NUMBER = re.compile(r"(0|[1-9][0-9]{0,8})\Z", re.ASCII)
_SEPARATOR = "::"


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """One slot on one card."""

    card: str
    number: int

    def __str__(self) -> str:
        return f"{self.card}{_SEPARATOR}{self.number}"

    @classmethod
    def parse(cls, device_id: str) -> "Slot":
        """Parse a device ID, strictly.

        Raises:
            GrantError: it is not ``<card uuid>::<number>``.
        """
        card, separator, number = device_id.rpartition(_SEPARATOR)
        if not separator or not card or not _NUMBER.match(number):
            raise GrantError(
                f"device ID {quote(device_id)} is not <card uuid>{_SEPARATOR}<number>: "
                "it does not come from this agent"
            )
        return cls(card, int(number))


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
        for card in self.inventory.cards:
            if self.slot_count(Resource.MEMORY, card) < 1:
                raise SettingsError(
                    f"memory-block: Invalid value: {self.block}: larger than card {card.uuid}, "
                    f"which offers {card.memory} bytes"
                )

    def slot_count(self, resource: Resource, card: Card) -> int:
        """Return the number of slots of *resource* on *card*."""
        return resource.slots(card.memory // self.block)

    @cached_property
    def _slots(self) -> Mapping[Resource, Mapping[str, Slot]]:
        # Parsing thousands of IDs in every call would take milliseconds; a look-up does not.
        return {
            resource: {
                sys.intern(str(slot)): slot
                for card in self.inventory.cards
                for slot in (
                    Slot(card.uuid, number) for number in range(self.slot_count(resource, card))
                )
            }
            for resource in Resource
        }

    def slots(self, resource: Resource) -> Mapping[str, Slot]:
        """Map every device ID of *resource* to its slot, cards by index, numbers ascending."""
        return self._slots[resource]

    @cached_property
    def _by_card(self) -> Mapping[Resource, Mapping[str, frozenset[str]]]:
        return {
            resource: {uuid: frozenset(name for name, _ in slots) for uuid, slots in cards.items()}
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
        """Yield the slots of *card* that are among *device_ids*, by number."""
        return (each for name, each in self._on_card[resource][card] if name in device_ids)

    def by_card(self, resource: Resource) -> Mapping[str, frozenset[str]]:
        """Map every card's UUID to its device IDs of *resource*."""
        return self._by_card[resource]

    def count(self, resource: Resource, device_ids: AbstractSet[str]) -> dict[str, int]:
        """Count device IDs by card; cards without any are left out.

        It works on sets, since there are thousands of IDs.
        """
        cards = self._by_card[resource].items()
        return {card: count for card, on_card in cards if (count := len(on_card & device_ids))}

    def amounts(self, held: Mapping[Resource, AbstractSet[str]]) -> dict[str, Amounts]:
        """Sum up device IDs by card: the node's cards by index, then those that it has no more.

        IDs of other device plugins, and those beyond the end of a card, are left out.
        """
        counts: dict[str, list[int]] = {}
        for column, resource in enumerate(RESOURCES):
            for each in held.get(resource, ()):
                card = self._card_of(resource, each)
                if card:
                    counts.setdefault(card, [0, 0])[column] += 1
        here = self.in_order(counts.keys() & self.order.keys())
        gone = sorted(counts.keys() - self.order.keys())
        return {card: Amounts(*counts[card]) for card in (*here, *gone)}

    def _card_of(self, resource: Resource, device_id: str) -> str:
        """Return the card of a device ID; empty for one that :meth:`amounts` leaves out."""
        known = self._slots[resource].get(device_id)
        if known is not None:
            return known.card
        try:
            card = Slot.parse(device_id).card
            return card if card not in self.order else self._explain(resource, device_id).card
        except GrantError:
            return ""

    def read(self, resource: Resource, device_ids: Iterable[str]) -> list[Slot]:
        """Return the slots of device IDs, sorted by card index and number.

        Raises:
            GrantError: an ID is malformed, or has an unknown card or too high a number. Blocks that
                are reserved now may have been allocated before.
        """
        known, order = self._slots[resource], self.order
        slots = [known.get(each) or self._explain(resource, each) for each in device_ids]
        return sorted(slots, key=lambda slot: (order[slot.card], slot.number))

    @cached_property
    def order(self) -> Mapping[str, int]:
        """The index of each card, by UUID."""
        return {card.uuid: card.index for card in self.inventory.cards}

    @cached_property
    def has_instances(self) -> bool:
        """Whether a card is a MIG instance."""
        return any(each.is_instance for each in self.inventory.cards)

    def in_order(self, uuids: Iterable[str]) -> tuple[str, ...]:
        """Return card UUIDs without repeats, by card index: the order in containers."""
        return tuple(sorted(set(uuids), key=lambda uuid: self.order[uuid]))

    def _explain(self, resource: Resource, device_id: str) -> Slot:
        slot = Slot.parse(device_id)
        card = self.inventory.card(slot.card)
        if card is None:
            raise GrantError(f"device ID {quote(device_id)} names a card this node does not have")
        memory = (card.memory + card.reserved) // self.block
        if slot.number < resource.slots(memory):
            return slot
        raise GrantError(
            f"device ID {quote(device_id)} is beyond the "
            f"{resource.format_count(self.slot_count(resource, card))} of its card"
        )


def count_cards(device_ids: Iterable[str]) -> int:
    """Count the cards of device IDs, by the IDs alone."""
    return len({each.rpartition(_SEPARATOR)[0] for each in device_ids})


def are_whole_cards(core_ids: Collection[str]) -> bool:
    """Return whether core slots are all cores of their cards; otherwise they are shares."""
    return 0 < len(core_ids) == CORES_PER_CARD * count_cards(core_ids)


def per_card(slots: Iterable[Slot]) -> Counter[str]:
    """Count slots by card UUID."""
    return Counter(slot.card for slot in slots)


def summarize(device_ids: Collection[str]) -> str:
    """Format many device IDs in short, for logs: ``GPU-a::0-9,12; GPU-b::0-99``."""
    by_card: dict[str, list[int]] = {}
    for device_id in device_ids:
        card, _, number = device_id.rpartition(_SEPARATOR)
        by_card.setdefault(card, []).append(int(number) if _NUMBER.match(number) else -1)
    return "; ".join(
        f"{card}{_SEPARATOR}{_ranges(sorted(numbers))}" for card, numbers in sorted(by_card.items())
    )


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
