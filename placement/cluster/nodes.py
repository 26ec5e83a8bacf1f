"""A node as the scheduler sees it: its cards, their links, and why it has none. Pure."""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from sys import intern
from typing import Any

from contract.cordon import read_cordon
from contract.errors import ContractError
from contract.inventory import NodeCards, NodeLink, decode_inventory
from contract.names import Names
from contract.quantity import parse_quantity
from contract.resource import HUNDRED, Counts
from placement import cards as placed
from placement.topology import Links

_KIND = re.compile(r"NV[1-9][0-9]{0,3}|PIX|PXB|PHB|NODE|SYS", re.ASCII)


class Problem(StrEnum):
    """Why a node serves no GPU pod at all; freeing cards would not mend it."""

    NONE = ""
    NO_INVENTORY = "no inventory of cards: no agent has written gpu-cards"
    UNREADABLE = "the inventory of cards cannot be read"
    NO_CARDS = "the agent knows of no card"
    AWAY = "the agent is not connected to the kubelet: nothing is allocatable"


@dataclass(frozen=True, slots=True)
class NodeCard:
    """One card; what of it is free is not told here.

    Attributes:
        uuid: its UUID.
        index: its index on the node.
        model: the product name.
        blocks: memory blocks that it has.
        healthy: whether it is given to new containers.
    """

    uuid: str
    index: int
    model: str
    blocks: int
    healthy: bool

    @property
    def places(self) -> Counts:
        """The places that it has."""
        return _places(self.blocks)


@dataclass(frozen=True, slots=True)
class Node:
    """A node.

    Attributes:
        name: its name.
        cards: by index.
        links: how they are connected; names cards by their index as text.
        problem: why it serves no pod.
    """

    name: str
    cards: tuple[NodeCard, ...] = ()
    links: Links | None = None
    problem: Problem = Problem.NO_INVENTORY

    def __hash__(self) -> int:
        """Return the same for equal nodes; nodes are told apart by their names."""
        return hash(self.name)

    def all_free(self) -> tuple[Counts, ...]:
        """Return the places of each card, none of them taken."""
        return tuple(card.places for card in self.cards)


@lru_cache(maxsize=1024)
def _places(blocks: int) -> Counts:
    return HUNDRED, blocks


def parse_node(obj: Mapping[str, Any], names: Names, before: Node | None = None) -> Node:
    """Read a node object.

    Args:
        obj: the object, annotations possibly hostile.
        names: the contract's names.
        before: what the node was; returned itself where nothing has changed.
    """
    metadata = obj["metadata"]
    name = intern(metadata["name"])
    text = (metadata.get("annotations") or {}).get(names.gpu_cards)
    node = Node(name)
    if text is not None:
        cordoned = read_cordon(metadata.get("annotations") or {}, names)
        node = _with_inventory(name, text, cordoned, away=_is_away(obj, names))
    return before if before is not None and before == node else node


def _is_away(obj: Mapping[str, Any], names: Names) -> bool:
    """Return whether the kubelet offers nothing: it does so once the plugin has gone (K19).

    The inventory has no time in it, and an agent that has ended leaves it behind.
    """
    status = obj.get("status") or {}
    allocatable = status.get("allocatable")
    if not isinstance(allocatable, Mapping):
        return False  # a template, or a kubelet that has reported nothing yet
    capacity = status.get("capacity")
    known = names.core in allocatable or names.core in (capacity or {})
    return known and not parse_quantity(allocatable.get(names.core, "0"))


def _with_inventory(name: str, text: object, cordoned: AbstractSet[str], *, away: bool) -> Node:
    if not isinstance(text, str):
        return Node(name, problem=Problem.UNREADABLE)
    try:
        found = decode_inventory(text)
    except ContractError:
        return Node(name, problem=Problem.UNREADABLE)
    indices, uuids = {card.index for card in found.cards}, {card.uuid for card in found.cards}
    distinct = len(indices) == len(uuids) == len(found.cards)
    if not found.memory_block or not distinct or not _readable(found.links, indices):
        return Node(name, problem=Problem.UNREADABLE)
    if not found.cards:
        return Node(name, problem=Problem.NO_CARDS)
    cards = tuple(
        NodeCard(
            intern(card.uuid),
            card.index,
            intern(card.model),
            card.memory // found.memory_block,
            not card.reason and card.uuid not in cordoned,
        )
        for card in sorted(found.cards, key=lambda card: card.index)
    )
    problem = Problem.AWAY if away and any(card.healthy for card in cards) else Problem.NONE
    return Node(name, cards, _links_of(found), problem)


def _readable(links: tuple[NodeLink, ...], indices: set[int]) -> bool:
    return all(
        _KIND.fullmatch(link.kind) and link.cards[0] < link.cards[1] and {*link.cards} <= indices
        for link in links
    )


def _links_of(found: NodeCards) -> Links:
    numa = tuple((card.index, card.numa) for card in found.cards)
    return _links(numa, found.links)


@lru_cache(maxsize=1024)
def _links(numa: tuple[tuple[int, int | None], ...], links: tuple[NodeLink, ...]) -> Links:
    """Return one object for nodes of equal hardware: there are many nodes and few kinds."""
    cards = tuple(
        placed.Card(str(index), index, index, "", 0, where, "", "") for index, where in numa
    )
    return Links(
        placed.Inventory(cards, tuple(placed.Link(each.cards, each.kind) for each in links))
    )
