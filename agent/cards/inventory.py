"""Cards and their links: the inventory of one node, as plain data.

The parsers raise ``SettingsError``; its message has the path of the field, the value and the rule.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent.errors import SettingsError
from contract.errors import quote
from contract.fields import Fields
from contract.inventory import HEALTHY, Card, Inventory, Link, is_card_uuid
from contract.quantity import parse_quantity
from contract.text import fold_uuid

_LINK = re.compile(r"(?:NV[0-9]{1,3}|PIX|PXB|PHB|NODE|SYS)\Z", re.ASCII)
_CARD_FIELDS = {
    *("uuid", "index", "minor", "model", "memory", "numa", "busId", "device", "capabilities"),
    "health",
}


@dataclass(frozen=True, slots=True)
class UnservedCard:
    """A card of the node that is not in its inventory.

    Attributes:
        index: its index in NVML's order.
        uuid: its UUID; ``None`` if it could not be read.
        reason: why it is not served.
    """

    index: int
    uuid: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Discovery:
    """The result of a discovery of the node's cards.

    Attributes:
        inventory: the cards that can be served.
        driver: the driver's version; empty for a cards file.
        faults: the cards that could not be read.
        skipped: the cards that work but are not served: those in MIG mode, and MIG instances that
            cannot be served as cards.
    """

    inventory: Inventory
    driver: str = ""
    faults: tuple[UnservedCard, ...] = ()
    skipped: tuple[UnservedCard, ...] = ()

    def left_out(self) -> list[UnservedCard]:
        """List the cards that are not served, by index."""
        return sorted((*self.faults, *self.skipped), key=lambda each: each.index)


def parse_inventory(document: object) -> Inventory:
    """Parse the content of a cards file: ``{"cards": [...], "links": [...]}``."""
    rule = "the cards file must be a mapping with the keys cards and links"
    fields = Fields("", document, SettingsError, rule)
    _only(fields, {"cards", "links"})
    listed = fields.raw("cards")
    if not isinstance(listed, list) or not listed:
        raise SettingsError("cards: Required value: a list of at least one card")
    cards = sorted(
        (parse_card(entry, f"cards[{index}]") for index, entry in enumerate(listed)),
        key=lambda card: card.index,
    )
    check_distinct(cards)
    return Inventory(tuple(cards), _parse_links(fields.raw("links"), cards))


def without_memory(card: Card, size: int) -> Card:
    """Return the card with so many bytes less to offer."""
    reserved = min(size, card.memory)
    return replace(card, memory=card.memory - reserved, reserved=card.reserved + reserved)


def reserve_memory(inventory: Inventory, size: int) -> Inventory:
    """Return the inventory with so many bytes less to offer on each card."""
    return replace(inventory, cards=tuple(without_memory(each, size) for each in inventory.cards))


def write_inventory(inventory: Inventory) -> dict[str, Any]:
    """Return the document from which :func:`parse_inventory` makes an equal inventory.

    Fields with default values are left out.
    """
    return {
        "cards": [_write_card(card) for card in inventory.cards],
        "links": [{"cards": list(link.cards), "kind": link.kind} for link in inventory.links],
    }


def _write_card(card: Card) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "uuid": card.uuid,
        "index": card.index,
        "minor": card.minor,
        "model": card.model,
        "memory": card.memory,
    }
    if card.numa is not None:
        entry["numa"] = card.numa
    if card.bus_id:
        entry["busId"] = card.bus_id
    if card.device != _device(card.minor):
        entry["device"] = card.device
    if card.capabilities:
        entry["capabilities"] = list(card.capabilities)
    if card.unhealthy:
        entry["health"] = card.unhealthy
    return entry


def check_distinct(cards: Sequence[Card]) -> None:
    """Refuse cards of a node with the same UUID, index or minor number."""
    # Cards with a device path of their own may share a minor, and so do MIG instances of one card.
    default = all(card.device == _device(card.minor) for card in cards)
    instances = {card.minor: card for card in cards if card.is_instance}
    minors = [*[card for card in cards if not card.is_instance], *instances.values()]
    for field in ("uuid", "index", "minor") if default else ("uuid", "index"):
        values = [getattr(card, field) for card in (minors if field == "minor" else cards)]
        keys = [fold_uuid(str(value)) for value in values]
        for value, key in zip(values, keys, strict=True):
            if keys.count(key) > 1:
                raise SettingsError(f"cards: {field}: Duplicate value: {quote(value)}")


def _device(minor: int) -> str:
    return f"/dev/nvidia{minor}"


def _only(entry: Fields, known: set[str]) -> None:
    for key in entry:
        if key not in known:
            raise SettingsError(
                f"{entry.at(_plain(key))}: unknown field, known are {', '.join(sorted(known))}"
            )


def _plain(key: object) -> str:
    """Return a key unquoted if it is printable text, else quoted."""
    return key if isinstance(key, str) and key.isprintable() else quote(key)


def parse_card(entry: object, path: str) -> Card:
    """Parse one card of the list; *path* is its field path, for messages."""
    fields = Fields(path, entry, SettingsError)
    _only(fields, _CARD_FIELDS)
    uuid = fields.raw("uuid")
    if not isinstance(uuid, str) or not is_card_uuid(uuid):
        rule = "must be a card UUID of at most 56 letters, digits, '-', '.' and '_'"
        raise fields.error("uuid", rule)
    index = _whole(fields, "index")
    minor = _whole(fields, "minor") if "minor" in fields.values else index
    memory = parse_quantity(fields.raw("memory"))
    if memory is None or memory.denominator != 1 or memory <= 0:
        raise fields.error("memory", "must be a number of bytes such as 24Gi")
    health = _text(fields, "health", HEALTHY)
    return Card(
        uuid=uuid,
        index=index,
        minor=minor,
        model=_text(fields, "model", "unknown"),
        memory=int(memory),
        numa=_whole(fields, "numa") if fields.raw("numa") is not None else None,
        bus_id=_text(fields, "busId", ""),
        device=_text(fields, "device", _device(minor)),
        capabilities=_texts(fields, "capabilities"),
        unhealthy="" if health == HEALTHY else health,
    )


def _whole(fields: Fields, name: str) -> int:
    value = fields.whole(name)
    if value >= 2**31:
        raise fields.error(name, "must be a whole number, 0 or more")
    return value


def _text(fields: Fields, name: str, default: str) -> str:
    return fields.some_text(name) if name in fields.values else default


def _texts(fields: Fields, name: str) -> tuple[str, ...]:
    value = fields.values.get(name, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise SettingsError(f"{fields.at(name)}: must be a list of texts")
    return tuple(value)


def _is_one(index: object, known: set[int]) -> bool:
    return isinstance(index, int) and not isinstance(index, bool) and index in known


def _parse_links(listed: object, cards: Sequence[Card]) -> tuple[Link, ...]:
    if listed is None:
        return ()
    if not isinstance(listed, list):
        raise SettingsError("links: must be a list")
    known = {card.index for card in cards}
    links: dict[tuple[tuple[int, int], bool], Link] = {}
    for index, entry in enumerate(listed):
        path = f"links[{index}]"
        fields = Fields(
            path, entry, SettingsError, "must be a mapping with the keys cards and kind"
        )
        _only(fields, {"cards", "kind"})
        pair, kind = fields.raw("cards"), fields.raw("kind")
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or not all(_is_one(each, known) for each in pair)
        ):
            raise SettingsError(
                f"{path}.cards: Invalid value: must be the indices of two cards of this file"
            )
        if pair[0] == pair[1]:
            raise SettingsError(f"{path}.cards: a card has no link to itself")
        if not isinstance(kind, str) or not _LINK.match(kind):
            raise fields.error("kind", "must be NV<n>, PIX, PXB, PHB, NODE or SYS")
        ends = (min(pair), max(pair))
        which = (ends, kind.startswith("NV"))  # two cards may have a PCIe path and NVLinks
        if which in links:
            raise SettingsError(
                f"{path}.cards: Duplicate value: the link of {ends[0]} and {ends[1]}"
            )
        links[which] = Link(ends, kind)
    return tuple(links[which] for which in sorted(links))
