"""A node object as the view needs it: the scheduler's view of it, and what only people ask."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contract.cordon import REASON, read_cordon
from contract.demand import CORES_PER_CARD
from contract.errors import ContractError
from contract.inventory import NodeCards, decode_inventory
from contract.names import Names
from placement.cluster.nodes import Node, parse_node
from view.model.constraints import NodeTraits, read_traits
from view.model.reports import LinkReport
from view.model.words import clamp

GPU_LABELS = (
    "gpu-turnstile.io/gpus",
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
    "feature.node.kubernetes.io/pci-10de.present",
)
"""By these, ``true``, the DaemonSet chooses nodes (``deploy/base/agent/daemonset.yaml``)."""


@dataclass(frozen=True, slots=True)
class CardFacts:
    """One card, beyond what placing needs.

    Attributes:
        memory: bytes.
        numa: NUMA node; ``None`` where unknown.
        unhealthy: why it is given to no new container; empty while it is healthy.
        cores_free: by the agent's last word, hundredths.
        blocks_free: by the agent's last word, memory blocks.
    """

    memory: int
    numa: int | None
    unhealthy: str
    cores_free: int
    blocks_free: int


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node.

    Attributes:
        placed: the node as placing sees it.
        cards: in the order of its cards.
        memory_block: bytes of one memory block; 0 where unknown.
        links: of pairs of cards.
        traits: by which pods choose nodes.
        for_gpus: whether it has, or should have, anything to do with GPUs.
        not_ready: why the kubelet is not ready; empty while it is.
    """

    placed: Node
    cards: tuple[CardFacts, ...]
    memory_block: int
    links: tuple[LinkReport, ...]
    traits: NodeTraits
    for_gpus: bool
    not_ready: str


def read_node(obj: Mapping[str, Any], names: Names) -> NodeFacts:
    """Read a node object, annotations possibly hostile."""
    placed = parse_node(obj, names)
    inventory = _inventory(obj, names) if placed.cards else NodeCards(0)
    listed = sorted(inventory.cards, key=lambda card: card.index)
    cordoned = read_cordon(obj["metadata"].get("annotations") or {}, names)
    return NodeFacts(
        placed,
        tuple(
            CardFacts(
                card.memory,
                card.numa,
                clamp(card.reason) or (REASON if card.uuid in cordoned else ""),
                min(card.free_cores, CORES_PER_CARD),
                min(card.free_blocks, card.memory // inventory.memory_block),
            )
            for card in listed
        ),
        inventory.memory_block,
        tuple(LinkReport(link.cards, link.kind) for link in inventory.links),
        read_traits(obj),
        _is_for_gpus(obj, names),
        _not_ready(obj),
    )


def _inventory(obj: Mapping[str, Any], names: Names) -> NodeCards:
    try:
        return decode_inventory(obj["metadata"]["annotations"][names.gpu_cards])
    except ContractError:  # not where the node was placed with cards
        return NodeCards(0)


def _is_for_gpus(obj: Mapping[str, Any], names: Names) -> bool:
    metadata, status = obj["metadata"], obj.get("status") or {}
    labels = metadata.get("labels") or {}
    return (
        names.gpu_cards in (metadata.get("annotations") or {})
        or any(labels.get(label) == "true" for label in GPU_LABELS)
        or any(names.core in (status.get(field) or {}) for field in ("capacity", "allocatable"))
    )


def _not_ready(obj: Mapping[str, Any]) -> str:
    for condition in (obj.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Ready" and condition.get("status") != "True":
            return clamp(condition.get("reason")) or "unknown"
    return ""
