"""The inventory an agent writes to its node (``gpu-cards``).

JSON: ``{"memoryBlock": bytes, "cards": [{"uuid", "index", "model", "memory", "numa",
"health", "reason", "freeCores", "freeBlocks"}], "links": [{"cards": [i, j], "kind"}]}``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from contract.errors import InvalidRecord, quote
from contract.text import is_text

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
"""A card's health, in the words of the device plugin API."""

_MOST_CARDS = 128
"""More than any machine has; what is made of their links grows with the square."""

_LARGEST = 2**63 - 1
"""A larger number cannot be meant, and may be none that can be divided."""


@dataclass(frozen=True, slots=True)
class NodeCard:
    """One card of a node, as the node shows it.

    Attributes:
        uuid: its UUID.
        index: its index, unique on the node.
        model: the product name.
        memory: total memory, bytes.
        numa: NUMA node, ``None`` when unknown.
        reason: why it is not given to new containers; empty while it is healthy.
        free_cores: hundredths of it that nobody holds.
        free_blocks: memory blocks that nobody holds.
    """

    uuid: str
    index: int
    model: str
    memory: int
    numa: int | None
    reason: str
    free_cores: int
    free_blocks: int


@dataclass(frozen=True, slots=True)
class NodeLink:
    """One way between two cards.

    Attributes:
        cards: their indices, ascending.
        kind: ``NV<n>``, ``PIX``, ``PXB``, ``PHB``, ``NODE`` or ``SYS``.
    """

    cards: tuple[int, int]
    kind: str


@dataclass(frozen=True, slots=True)
class NodeCards:
    """Every card of a node that is served.

    Attributes:
        memory_block: bytes that one ``vcuda-memory`` stands for on this node.
        cards: by index; none while the agent knows of none.
        links: by their cards; a pair that is missing is not known. Two cards with NVLinks have two,
            their way over PCIe and then the NVLinks; before 0.3.0 they had the last one alone.
    """

    memory_block: int
    cards: tuple[NodeCard, ...] = ()
    links: tuple[NodeLink, ...] = ()


def encode_inventory(node: NodeCards) -> str:
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
                    "health": UNHEALTHY if card.reason else HEALTHY,
                    "reason": card.reason,
                    "freeCores": card.free_cores,
                    "freeBlocks": card.free_blocks,
                }
                for card in node.cards
            ],
            "links": [{"cards": list(link.cards), "kind": link.kind} for link in node.links],
        },
        separators=(",", ":"),
    )


@lru_cache(maxsize=4)  # of one node, several readers ask one after the other
def decode_inventory(text: str) -> NodeCards:
    """Read an inventory, strictly.

    Raises:
        InvalidRecord: *text* is not what :func:`encode_inventory` writes.
    """
    try:
        decoded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"gpu-cards: not JSON: {error}") from error
    entry = _mapping(decoded, ("memoryBlock", "cards", "links"), "gpu-cards")
    cards = _items(entry, "cards")
    if len(cards) > _MOST_CARDS:
        raise InvalidRecord(f"gpu-cards.cards: must be at most {_MOST_CARDS} cards")
    return NodeCards(
        _whole(entry, "memoryBlock", "gpu-cards"),
        tuple(_card(each, path) for path, each in cards),
        tuple(_link(each, path) for path, each in _items(entry, "links")),
    )


def _card(value: object, path: str) -> NodeCard:
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
    return NodeCard(
        _text(entry, "uuid", path),
        _whole(entry, "index", path),
        _text(entry, "model", path),
        _whole(entry, "memory", path),
        None if entry["numa"] is None else _whole(entry, "numa", path),
        reason,
        _whole(entry, "freeCores", path),
        _whole(entry, "freeBlocks", path),
    )


def _link(value: object, path: str) -> NodeLink:
    entry = _mapping(value, ("cards", "kind"), path)
    pair = entry["cards"]
    if not isinstance(pair, list) or len(pair) != 2 or not all(map(_is_whole, pair)):
        raise InvalidRecord(
            f"{path}.cards: Invalid value: {quote(pair)}: must be the indices of two cards"
        )
    return NodeLink((pair[0], pair[1]), _text(entry, "kind", path))


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
    if not _is_whole(value):
        raise InvalidRecord(
            f"{path}.{field}: Invalid value: {quote(value)}: must be a whole number, 0 or more"
        )
    if value > _LARGEST:
        raise InvalidRecord(f"{path}.{field}: must be at most {_LARGEST}")
    return int(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
