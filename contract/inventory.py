"""A node's cards, and their inventory, which an agent writes to its node (``gpu-cards``).

JSON: ``{"memoryBlock": bytes, "cards": [{"uuid", "index", "model", "memory", "numa",
"health", "reason", "freeCores", "freeBlocks"}], "links": [{"cards": [i, j], "kind"}]}``.
"""

import json
import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from sys import intern
from typing import NamedTuple

from contract.cordon import REASON
from contract.demand import CORES_PER_CARD
from contract.errors import InvalidRecord
from contract.fields import Fields
from contract.text import fold_uuid, is_whole, read_json

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
"""A card's health, in the words of the device plugin API."""

MOST_CARDS = 128
"""More than any machine has; computations over their links grow with the square."""

# A device ID has at most 63 characters (device plugin API): the UUID, "::" and a slot number of up
# to 5 digits.
_UUID = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9._]{0,54}[A-Za-z0-9])?\Z", re.ASCII)


class Amounts(NamedTuple):
    """Amounts of both resources on one card: its size, what is free, or what is held.

    Attributes:
        cores: hundredths of the card.
        memory: memory blocks of the card.
    """

    cores: int
    memory: int

    def covers(self, other: "Amounts") -> bool:
        """Return whether neither amount is smaller than *other*'s."""
        return self[0] >= other[0] and self[1] >= other[1]

    def plus(self, other: "Amounts") -> "Amounts":
        """Return the sum."""
        return Amounts(self[0] + other[0], self[1] + other[1])

    def minus(self, other: "Amounts") -> "Amounts":
        """Return the difference, 0 instead of a negative amount."""
        return Amounts(max(self[0] - other[0], 0), max(self[1] - other[1], 0))


NOTHING = Amounts(0, 0)


def is_card_uuid(text: str) -> bool:
    """Return whether a card may have this UUID: NVIDIA's, or another name in a cards file."""
    return _UUID.match(text) is not None


def is_instance_uuid(uuid: str) -> bool:
    """Return whether a UUID is that of a MIG instance.

    NVML's UUIDs of instances begin with ``MIG-``, those of cards with ``GPU-``. The inventory needs
    no other sign, which a reader before 0.3.0 would refuse.
    """
    return uuid.startswith("MIG-")


def withheld(fault: str, *, cordoned: bool) -> str:
    """Return why new containers do not get a card: ``unhealthy (Xid 79)``, or ``cordoned``."""
    return f"unhealthy ({fault})" if fault else REASON * cordoned


@dataclass(frozen=True, slots=True)
class Card:
    """One card, or one MIG instance of a card.

    Attributes:
        uuid: its UUID as NVML gives it.
        index: its index in NVML's order, unique on the node; of a MIG instance 1000 for each card
            up to its own, and the ID of its GPU instance: 1007 is instance 7 of card 0.
        model: the product name; of a MIG instance with its profile, such as
            ``NVIDIA A100-SXM4-40GB MIG 1g.5gb``.
        memory: memory for containers, bytes.
        numa: NUMA node, ``None`` when unknown.
        unhealthy: why it is unhealthy, so that no new container gets it; empty if it is healthy.
        cordoned: whether an admin has cordoned it, so that no new container gets it.
        reserved: memory that containers do not get, bytes; set only on the card's own node.
        minor: the number of its device node; set only on the card's own node.
        bus_id: PCI bus id, empty if unknown; set only on the card's own node.
        device: path of its device node on the host; set only on the card's own node.
        capabilities: paths of the further device nodes of a MIG instance, which give access to it;
            set only on the card's own node.
    """

    uuid: str
    index: int
    model: str
    memory: int
    numa: int | None = None
    unhealthy: str = ""
    cordoned: bool = False
    reserved: int = field(default=0, kw_only=True)
    minor: int = field(default=0, kw_only=True)
    bus_id: str = field(default="", kw_only=True)
    device: str = field(default="", kw_only=True)
    capabilities: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def is_instance(self) -> bool:
        """Whether it is a MIG instance."""
        return is_instance_uuid(self.uuid)

    @property
    def device_nodes(self) -> tuple[str, ...]:
        """Paths of all its device nodes on the host; set only on the card's own node."""
        return self.device, *self.capabilities

    @property
    def withheld(self) -> str:
        """Why new containers do not get the card, for messages; empty if they may."""
        return withheld(self.unhealthy, cordoned=self.cordoned)

    def size(self, block: int) -> Amounts:
        """Return the card's cores and memory; *block* is the size of a memory block in bytes."""
        return Amounts(CORES_PER_CARD, self.memory // block)


@dataclass(frozen=True, slots=True)
class Link:
    """One connection between two cards, in the terms of ``nvidia-smi topo -m``.

    Attributes:
        cards: the two indices, ascending.
        kind: ``NV<n>`` (n NVLinks), ``PIX``, ``PXB``, ``PHB``, ``NODE`` or ``SYS``.
    """

    cards: tuple[int, int]
    kind: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """All cards of a node, by index, and the links between them.

    Two cards with NVLinks have two links: first PCIe, then the NVLinks. A reader that supports
    only one takes the last. The link of a missing pair is unknown.
    """

    cards: tuple[Card, ...]
    links: tuple[Link, ...] = ()

    def card(self, uuid: str) -> Card | None:
        """Find a card by UUID."""
        return next((card for card in self.cards if card.uuid == uuid), None)

    def positions(self, uuids: Iterable[str]) -> tuple[int, ...]:
        """Return the positions of cards in :attr:`cards`, ascending and without repeats."""
        wanted = {*uuids}
        return tuple(position for position, card in enumerate(self.cards) if card.uuid in wanted)

    def unlinked(self) -> tuple[tuple[int, int], ...]:
        """Return the pairs of card indices, ascending, whose link is unknown.

        MIG instances have no links.
        """
        known = {link.cards for link in self.links}
        pairs = combinations((card.index for card in self.cards if not card.is_instance), 2)
        return tuple(pair for pair in pairs if pair not in known)


@dataclass(frozen=True, slots=True)
class PublishedInventory:
    """All cards that the agent of a node serves, as the node's annotation shows them.

    Attributes:
        memory_block: bytes of one ``vcuda-memory`` on this node.
        cards: by index; empty while the agent has found none. The text marks only healthy cards
            as cordoned: cordons have their own annotation.
        links: as in :class:`Inventory`; before 0.3.0 a pair had only the last one.
        free: the free amounts of each card.
    """

    memory_block: int
    cards: tuple[Card, ...] = ()
    links: tuple[Link, ...] = ()
    free: tuple[Amounts, ...] = ()


def encode_inventory(node: PublishedInventory) -> str:
    """Write the inventory as compact JSON; equal inventories give equal text.

    A cordoned card has health ``Unhealthy`` and the reason ``cordoned``: an extender before 0.3.0
    knows no third health, and does not read cordons.
    """
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
                    "health": UNHEALTHY if card.withheld else HEALTHY,
                    "reason": card.unhealthy or (REASON if card.cordoned else ""),
                    "freeCores": free.cores,
                    "freeBlocks": free.memory,
                }
                for card, free in zip(node.cards, node.free, strict=True)
            ],
            "links": [{"cards": list(link.cards), "kind": link.kind} for link in node.links],
        },
        separators=(",", ":"),
    )


@lru_cache(maxsize=4)  # several readers decode the annotation of one node, one after the other
def decode_inventory(text: str) -> PublishedInventory:
    """Read an inventory, strictly.

    The block size is at least 1, no two cards have the same index or UUID, and links are between
    two of the cards.

    Raises:
        InvalidRecord: *text* is not what :func:`encode_inventory` writes.
    """
    entry = Fields("gpu-cards", read_json(text, "gpu-cards"), InvalidRecord, exactly=_NODE)
    listed, block = _items(entry, "cards"), entry.whole("memoryBlock", least=1)
    if len(listed) > MOST_CARDS:
        raise InvalidRecord(f"gpu-cards.cards: must be at most {MOST_CARDS} cards")
    entries = [Fields(path, each, InvalidRecord, exactly=_CARD) for path, each in listed]
    cards = [_card(each) for each in entries]
    for name in ("index", "uuid"):
        seen = set[str]()
        for each in entries:
            key = fold_uuid(str(each.values[name]))
            if key in seen:
                raise each.error(name, "another card has the same")
            seen.add(key)
    indices = {card.index for card, _ in cards}
    return PublishedInventory(
        block,
        tuple(card for card, _ in cards),
        tuple(_link(path, each, indices) for path, each in _items(entry, "links")),
        tuple(free for _, free in cards),
    )


def _items(entry: Fields, field: str) -> list[tuple[str, object]]:
    if entry.values[field] is None:
        raise entry.error(field, "must be a list")
    path = entry.at(field)
    return [(f"{path}[{at}]", each) for at, each in enumerate(entry.items(field))]


_PAIR = "must be the indices of two cards"
_KIND = re.compile(r"NV[1-9][0-9]{0,3}|PIX|PXB|PHB|NODE|SYS", re.ASCII)
_NODE = ("memoryBlock", "cards", "links")
_CARD = (
    *("uuid", "index", "model", "memory", "numa", "health", "reason"),
    *("freeCores", "freeBlocks"),
)


def _card(entry: Fields) -> tuple[Card, Amounts]:
    """Read a card and its free amounts."""
    reason = entry.some_text("reason")
    if entry.values["health"] != (UNHEALTHY if reason else HEALTHY):
        raise entry.error("health", f"must be {UNHEALTHY} with a reason, or {HEALTHY} without one")
    card = Card(
        intern(entry.some_text("uuid")),
        entry.whole("index"),
        intern(entry.some_text("model")),
        entry.whole("memory"),
        None if entry.values["numa"] is None else entry.whole("numa"),
        "" if reason == REASON else reason,
        reason == REASON,
    )
    return card, Amounts(entry.whole("freeCores"), entry.whole("freeBlocks"))


def _link(path: str, value: object, indices: AbstractSet[int]) -> Link:
    entry = Fields(path, value, InvalidRecord, exactly=("cards", "kind"))
    pair = entry.values["cards"]
    if not isinstance(pair, list) or len(pair) != 2 or not all(map(is_whole, pair)):
        raise entry.error("cards", _PAIR)
    if not (pair[0] < pair[1] and {*pair} <= indices):
        raise entry.error("cards", f"{_PAIR} of the node, the smaller one first")
    if _KIND.fullmatch(entry.some_text("kind")) is None:
        raise entry.error("kind", "must be NV1, NV2, ... or PIX, PXB, PHB, NODE or SYS")
    return Link((pair[0], pair[1]), entry.values["kind"])
