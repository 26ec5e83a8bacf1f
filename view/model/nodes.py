"""A node object as the view needs it: the scheduler's view of it, and what only people ask."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from contract.errors import ContractError
from contract.inventory import Amounts, PublishedInventory, decode_inventory
from contract.names import Names
from contract.quantity import parse_quantity
from placement.cluster.nodes import Node, Problem, parse_node
from view.model.words import clamp

GPU_LABELS = (
    "gpu-turnstile.io/gpus",
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
    "feature.node.kubernetes.io/pci-10de.present",
)
"""By these, ``true``, the DaemonSet chooses nodes (``deploy/base/agent/daemonset.yaml``)."""

NVIDIA = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
"""What NVIDIA's device plugin serves whole cards as, the second with replicas of them."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node."""

    placed: Annotated[Node, "the node as placing sees it."]
    inventory: Annotated[
        PublishedInventory,
        "the same cards, with what is free of them by the agent's last word. Without cards "
        "and a size of blocks where it is not known.",
    ]
    unreadable: Annotated[
        str, "what is wrong with the inventory; empty where it can be read, or is not there."
    ]
    offered: Annotated[
        Mapping[str, int], "what its status has as allocatable of our resources, and of NVIDIA's."
    ]
    labels: Annotated[Mapping[str, str], "of the node."]
    cordoned: Annotated[bool, "whether it is marked unschedulable."]
    for_gpus: Annotated[bool, "whether it has, or should have, anything to do with GPUs."]
    not_ready: Annotated[str, "why the kubelet is not ready; empty while it is."]


def read_node(obj: Mapping[str, Any], names: Names) -> NodeFacts:
    """Read a node object, annotations possibly hostile."""
    placed, annotations = parse_node(obj, names), obj["metadata"].get("annotations") or {}
    text = annotations.get(names.gpu_cards)
    inventory = decode_inventory(text) if placed.cards else PublishedInventory(0)
    allocatable = (obj.get("status") or {}).get("allocatable") or {}
    free = {card.uuid: row for card, row in zip(inventory.cards, inventory.free, strict=True)}
    pairs = zip(placed.cards, placed.sizes, strict=True)
    shown = tuple(Amounts(*map(min, free[card.uuid], size)) for card, size in pairs)
    return NodeFacts(
        placed,
        replace(inventory, cards=placed.cards, free=shown),
        _what_is_wrong(text) if placed.problem is Problem.UNREADABLE else "",
        {
            name: int(parse_quantity(allocatable[name]) or 0)
            for name in (names.core, names.memory, *NVIDIA)
            if name in allocatable
        },
        obj["metadata"].get("labels") or {},
        bool((obj.get("spec") or {}).get("unschedulable")),
        _is_for_gpus(obj, names),
        _not_ready(obj),
    )


def _what_is_wrong(inventory: Any) -> str:
    try:
        decode_inventory(inventory)
    except ContractError as error:
        return clamp(str(error))
    return Problem.UNREADABLE.value


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
