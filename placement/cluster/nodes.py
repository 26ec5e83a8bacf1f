"""A node as its object shows it: cards, links, and why it serves no pod. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from sys import intern
from typing import Any

from contract.claims import serves_claims
from contract.cordon import find_cordoned, read_cordon
from contract.demand import CORES_PER_CARD
from contract.errors import ContractError
from contract.inventory import MOST_CARDS, Amounts, Card, Inventory, Link, decode_inventory
from contract.names import Names
from contract.quantity import parse_quantity
from contract.wishes import NO_WISHES, Wishes
from placement.capacity import CardSet, is_for_shares
from placement.topology import Links

TEMPLATE = "cluster-autoscaler.kubernetes.io/template-node"
"""Label, ``true``, of nodes that exist only in Cluster Autoscaler, from 1.36 on.

They are copies of a node of their group, or made from the settings of the group, which can have
labels and resources but no annotations.
"""


class Problem(StrEnum):
    """Why a node serves no GPU pod at all, also if all its cards are free."""

    NONE = ""
    NO_INVENTORY = "no inventory of cards: no agent has written gpu-cards"
    UNREADABLE = "the inventory of cards cannot be read"
    NO_CARDS = "the agent has found no card"
    AGENT_DISCONNECTED = "the agent is not connected to the kubelet: nothing is allocatable"


_NO_CARDS = CardSet((), (), Links(Inventory(())), (), ())


@dataclass(frozen=True, slots=True)
class Node:
    """A node.

    Attributes:
        name: its name.
        cards: its cards, by index; a card's position anywhere else is its position here.
        card_set: the cards as the search needs them; equal nodes share one object.
        problem: why it serves no pod.
        unknown_cordons: entries of ``gpu-cordoned`` that name none of its cards.
    """

    name: str
    cards: tuple[Card, ...] = ()
    card_set: CardSet = _NO_CARDS
    problem: Problem = Problem.NO_INVENTORY
    unknown_cordons: tuple[str, ...] = ()

    def __hash__(self) -> int:
        """Return the hash of the name, which is cheap."""
        return hash(self.name)

    @property
    def sizes(self) -> Sequence[Amounts]:
        """Cores and memory of each card."""
        return self.card_set.sizes

    def card_set_for(self, wishes: Wishes) -> CardSet:
        """Return the cards for a pod with these wishes."""
        return _wished(self, wishes) if wishes.excludes_cards else self.card_set

    def with_cards(self, cards: tuple[Card, ...]) -> "Node":
        """Return the node with the health or cordons of its cards changed."""
        return replace(
            self, cards=cards, card_set=_card_set(cards, self.sizes, self.card_set.links)
        )


@lru_cache(maxsize=65536)
def _wished(node: Node, wishes: Wishes) -> CardSet:
    return _card_set(node.cards, node.sizes, node.card_set.links, wishes)


def _card_set(
    cards: tuple[Card, ...], sizes: Sequence[Amounts], links: Links, wishes: Wishes = NO_WISHES
) -> CardSet:
    return _shared_card_set(
        tuple(card.index for card in cards),
        tuple(sizes),
        links,
        # Without the fault, so that nodes with different faults share one object.
        tuple("unhealthy" if card.unhealthy else card.withheld for card in cards),
        tuple([wishes.excludes(model=card.model, uuid=card.uuid) for card in cards]),
        frozenset([at for at, card in enumerate(cards) if is_for_shares(card, wishes)]),
    )


@lru_cache(maxsize=16384)
def _shared_card_set(  # noqa: PLR0913, PLR0917 -- the fields of one value
    indices: tuple[int, ...],
    sizes: tuple[Amounts, ...],
    links: Links,
    withheld: tuple[str, ...],
    excluded: tuple[str, ...],
    for_shares: frozenset[int],
) -> CardSet:
    return CardSet(tuple(map(str, indices)), sizes, links, withheld, excluded, for_shares)


def parse_node(obj: Mapping[str, Any], names: Names, before: Node | None = None) -> Node:
    """Read a node object, annotations possibly hostile; return *before* if nothing has changed."""
    metadata = obj["metadata"]
    name = intern(metadata["name"])
    text = (metadata.get("annotations") or {}).get(names.gpu_cards)
    node = Node(name)
    if text is not None:
        entries = read_cordon(metadata.get("annotations") or {}, names)
        disconnected = _is_disconnected(obj, names)
        by_claim = serves_claims(metadata.get("labels") or {})
        node = _with_inventory(name, text, entries, disconnected=disconnected, by_claim=by_claim)
    return before if before is not None and before == node else node


def parse_template(obj: Mapping[str, Any], names: Names) -> Node | None:
    """Read a node of Cluster Autoscaler's that does not exist yet; ``None`` if it is another one.

    All its cards are healthy, nobody has cordoned them, and their UUIDs are not known. Without
    ``gpu-cards``, they are equal parts of its allocatable, of the model in its label.
    """
    labels = obj["metadata"].get("labels")
    if not isinstance(labels, Mapping) or labels.get(TEMPLATE) != "true":
        return None
    node = parse_node(obj, names)
    if node.problem is Problem.NO_INVENTORY:
        return _with_equal_cards(node.name, obj, str(labels.get(names.gpu_model, "")), names)
    if node.cards:
        cards = tuple(map(_unused, node.cards))
        return replace(node.with_cards(cards), problem=Problem.NONE)
    return node


def _unused(card: Card) -> Card:
    """Return the card of a new node in the place of this one; no pod can name its UUID."""
    return replace(card, uuid="MIG-" * card.is_instance, unhealthy="", cordoned=False)


def _with_equal_cards(name: str, obj: Mapping[str, Any], model: str, names: Names) -> Node:
    allocatable = (obj.get("status") or {}).get("allocatable") or {}
    cores = parse_quantity(allocatable.get(names.core, "0")) or 0
    memory = parse_quantity(allocatable.get(names.memory, "0")) or 0
    count = min(cores // CORES_PER_CARD, MOST_CARDS)
    if count < 1:
        return Node(name)
    cards = tuple(Card("", index, model, 0) for index in range(count))
    sizes = [Amounts(CORES_PER_CARD, memory // count)] * count
    links = _links(tuple((index, None) for index in range(count)), (), by_claim=False)
    return Node(name, cards, _card_set(cards, sizes, links), Problem.NONE)


def _is_disconnected(obj: Mapping[str, Any], names: Names) -> bool:
    """Return whether nothing is allocatable, because the device plugin has disconnected (K19).

    The inventory does not show this: it has no time, and stays on the node after the agent's end.
    """
    status = obj.get("status") or {}
    allocatable = status.get("allocatable")
    if not isinstance(allocatable, Mapping):
        return False  # a template, or a kubelet that has reported nothing yet
    capacity = status.get("capacity")
    known = names.core in allocatable or names.core in (capacity or {})
    return known and not parse_quantity(allocatable.get(names.core, "0"))


def _with_inventory(
    name: str, text: object, entries: Sequence[str], *, disconnected: bool, by_claim: bool
) -> Node:
    if not isinstance(text, str):
        return Node(name, problem=Problem.UNREADABLE)
    try:
        found = decode_inventory(text)
    except ContractError:
        return Node(name, problem=Problem.UNREADABLE)
    if not found.cards:
        return Node(name, problem=Problem.NO_CARDS)
    cordon = find_cordoned(entries, (card.uuid for card in found.cards))
    cards = tuple(
        replace(card, cordoned=True) if card.uuid in cordon.uuids else card
        for card in sorted(found.cards, key=lambda card: card.index)
    )
    sizes = [card.size(found.memory_block) for card in cards]
    numa = tuple((card.index, card.numa) for card in cards)
    links = _links(numa, found.links, by_claim=by_claim)
    problem = Problem.NONE
    if disconnected and not all(card.withheld for card in cards):
        problem = Problem.AGENT_DISCONNECTED
    return Node(name, cards, _card_set(cards, sizes, links), problem, cordon.unknown)


@lru_cache(maxsize=1024)
def _links(
    numa: tuple[tuple[int, int | None], ...], links: tuple[Link, ...], *, by_claim: bool
) -> Links:
    """Return the links; nodes with equal hardware share one object."""
    cards = tuple(Card(str(index), index, "", 0, numa_node) for index, numa_node in numa)
    return Links(Inventory(cards, links), by_claim=by_claim)
