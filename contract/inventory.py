"""A node's cards, and the inventory of them that an agent writes to its node (``gpu-cards``).

JSON: ``{"memoryBlock": bytes, "cards": [{"uuid", "index", "model", "memory", "numa",
"health", "reason", "freeCores", "freeBlocks"}], "links": [{"cards": [i, j], "kind"}]}``.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from sys import intern
from typing import Any, NamedTuple

from contract.cordon import REASON
from contract.demand import CORES_PER_CARD
from contract.errors import InvalidRecord, quote
from contract.text import is_text, is_whole, read_json

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
"""A card's health, in the words of the device plugin API."""

_MOST_CARDS = 128
"""More than any machine has; what is made of their links grows with the square."""

_LARGEST = 2**63 - 1
"""A larger number cannot be meant, and may be none that can be divided."""


class Amounts(NamedTuple):
    """What there is of one card, what is free of it, or what is held.

    Attributes:
        cores: hundredths of it.
        memory: memory blocks of it.
    """

    cores: int
    memory: int

    def covers(self, wanted: "Amounts") -> bool:
        """Return whether there is enough of both."""
        return self[0] >= wanted[0] and self[1] >= wanted[1]

    def plus(self, more: "Amounts") -> "Amounts":
        """Return the sum."""
        return Amounts(self[0] + more[0], self[1] + more[1])

    def minus(self, taken: "Amounts") -> "Amounts":
        """Return what is left, nothing where more is taken than there was."""
        return Amounts(max(self[0] - taken[0], 0), max(self[1] - taken[1], 0))


NOTHING = Amounts(0, 0)


@dataclass(frozen=True, slots=True)
class Card:
    """One card.

    Attributes:
        uuid: its UUID as NVML gives it.
        index: its index in NVML's order, unique on the node.
        model: the product name.
        memory: total memory, bytes.
        numa: NUMA node, ``None`` when unknown.
        unhealthy: why it is given to no new container; empty while it is healthy.
        cordoned: whether an admin keeps new containers from it.
        minor: the number of its device node; known on its own node alone.
        bus_id: PCI bus id, empty when unknown; known on its own node alone.
        device: path of its device node on the host; known on its own node alone.
    """

    uuid: str
    index: int
    model: str
    memory: int
    numa: int | None = None
    unhealthy: str = ""
    cordoned: bool = False
    minor: int = field(default=0, kw_only=True)
    bus_id: str = field(default="", kw_only=True)
    device: str = field(default="", kw_only=True)

    @property
    def withheld(self) -> str:
        """Why new containers do not get it; empty while they may."""
        return self.unhealthy or (REASON if self.cordoned else "")

    def size(self, block: int) -> Amounts:
        """Return all that it has, in memory blocks of so many bytes."""
        return Amounts(CORES_PER_CARD, self.memory // block)


@dataclass(frozen=True, slots=True)
class Link:
    """One way between two cards, in the words of ``nvidia-smi topo -m``.

    Attributes:
        cards: the two indices, ascending.
        kind: ``NV<n>`` (n NVLinks), ``PIX``, ``PXB``, ``PHB``, ``NODE`` or ``SYS``.
    """

    cards: tuple[int, int]
    kind: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """All cards of a node, by index, and the links between them.

    Two cards with NVLinks have two links: their way over PCIe, then the NVLinks. A reader that
    knows of one takes the last. A pair that is missing is not known.
    """

    cards: tuple[Card, ...]
    links: tuple[Link, ...] = ()

    def card(self, uuid: str) -> Card | None:
        """Find a card by UUID."""
        return next((card for card in self.cards if card.uuid == uuid), None)

    def positions(self, uuids: Iterable[str]) -> tuple[int, ...]:
        """Return the positions of cards, ascending and without repeats."""
        among = {*uuids}
        return tuple(at for at, card in enumerate(self.cards) if card.uuid in among)

    def unlinked(self) -> tuple[tuple[int, int], ...]:
        """Return the pairs of indices, ascending, whose link is not known."""
        known = {link.cards for link in self.links}
        pairs = combinations((card.index for card in self.cards), 2)
        return tuple(pair for pair in pairs if pair not in known)


@dataclass(frozen=True, slots=True)
class PublishedInventory:
    """Every card of a node that is served, as the node shows it.

    Attributes:
        memory_block: bytes that one ``vcuda-memory`` stands for on this node.
        cards: by index; none while the agent knows of none. Cordons are an annotation of their own.
        links: as :class:`Inventory` has them; before 0.3.0 a pair had the last one alone.
        free: of each card what nobody holds.
    """

    memory_block: int
    cards: tuple[Card, ...] = ()
    links: tuple[Link, ...] = ()
    free: tuple[Amounts, ...] = ()


def encode_inventory(node: PublishedInventory) -> str:
    """Write the inventory as compact JSON; equal inventories are equal text."""
    return json.dumps(
        {
            "memoryBlock": node.memory_block,
            "cards": [
                {
                    "uuid": card.uuid,
                    "index": card.index,
                    "model": card.model,
                    "memory": card.memory,
                    "numa": card.numa,
                    "health": UNHEALTHY if card.unhealthy else HEALTHY,
                    "reason": card.unhealthy,
                    "freeCores": free.cores,
                    "freeBlocks": free.memory,
                }
                for card, free in zip(node.cards, node.free, strict=True)
            ],
            "links": [{"cards": list(link.cards), "kind": link.kind} for link in node.links],
        },
        separators=(",", ":"),
    )


@lru_cache(maxsize=4)  # of one node, several readers ask one after the other
def decode_inventory(text: str) -> PublishedInventory:
    """Read an inventory, strictly.

    Raises:
        InvalidRecord: *text* is not what :func:`encode_inventory` writes.
    """
    entry = _mapping(read_json(text, "gpu-cards"), ("memoryBlock", "cards", "links"), "gpu-cards")
    listed = _items(entry, "cards")
    if len(listed) > _MOST_CARDS:
        raise InvalidRecord(f"gpu-cards.cards: must be at most {_MOST_CARDS} cards")
    block = _whole(entry, "memoryBlock", "gpu-cards")
    cards = [_card(each, path) for path, each in listed]
    return PublishedInventory(
        block,
        tuple(card for card, _ in cards),
        tuple(_link(each, path) for path, each in _items(entry, "links")),
        tuple(free for _, free in cards),
    )


def _card(value: object, path: str) -> tuple[Card, Amounts]:
    """Read a card, and what is free of it."""
    fields = (
        "uuid",
        "index",
        "model",
        "memory",
        "numa",
        "health",
        "reason",
        "freeCores",
        "freeBlocks",
    )
    entry = _mapping(value, fields, path)
    reason = _text(entry, "reason", path)
    if entry["health"] != (UNHEALTHY if reason else HEALTHY):
        raise InvalidRecord(
            f"{path}.health: Invalid value: {quote(entry['health'])}: must be {UNHEALTHY} with a "
            f"reason, or {HEALTHY} without one"
        )
    card = Card(
        intern(_text(entry, "uuid", path)),
        _whole(entry, "index", path),
        intern(_text(entry, "model", path)),
        _whole(entry, "memory", path),
        None if entry["numa"] is None else _whole(entry, "numa", path),
        reason,
    )
    return card, Amounts(_whole(entry, "freeCores", path), _whole(entry, "freeBlocks", path))


def _link(value: object, path: str) -> Link:
    entry = _mapping(value, ("cards", "kind"), path)
    pair = entry["cards"]
    if not isinstance(pair, list) or len(pair) != 2 or not all(map(is_whole, pair)):
        raise InvalidRecord(
            f"{path}.cards: Invalid value: {quote(pair)}: must be the indices of two cards"
        )
    return Link((pair[0], pair[1]), _text(entry, "kind", path))


def _mapping(value: object, fields: tuple[str, ...], path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or set(value) != set(fields):
        raise InvalidRecord(f"{path}: must have exactly {', '.join(fields)}")
    return value


def _items(entry: Mapping[str, Any], field: str) -> list[tuple[str, object]]:
    listed = entry[field]
    if not isinstance(listed, list):
        raise InvalidRecord(f"gpu-cards.{field}: Invalid value: {quote(listed)}: must be a list")
    return [(f"gpu-cards.{field}[{place}]", each) for place, each in enumerate(listed)]


def _text(entry: Mapping[str, Any], field: str, path: str) -> str:
    value = entry[field]
    if not is_text(value):
        raise InvalidRecord(f"{path}.{field}: Invalid value: {quote(value)}: must be text")
    return value


def _whole(entry: Mapping[str, Any], field: str, path: str) -> int:
    value = entry[field]
    if not is_whole(value):
        raise InvalidRecord(
            f"{path}.{field}: Invalid value: {quote(value)}: must be a whole number, 0 or more"
        )
    if value > _LARGEST:
        raise InvalidRecord(f"{path}.{field}: must be at most {_LARGEST}")
    return value
