"""A node object: the fields that placement uses, and further ones that only users need."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from contract.claims import serves_claims
from contract.cordon import describe_unknown
from contract.errors import ContractError
from contract.inventory import Amounts, PublishedInventory, decode_inventory
from contract.names import Names
from contract.other_systems import count_offered
from contract.quantity import parse_quantity
from contract.runtimes import runtime_of
from placement.cluster.nodes import Node, Problem, parse_node
from placement.cluster.selectors import Taint, read_taints
from view.model.words import clamp

GPU_LABELS = (
    "gpu-turnstile.io/gpus",
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
    "feature.node.kubernetes.io/pci-10de.present",
)
"""The DaemonSet selects nodes with one of these labels set to ``true``
(``deploy/base/agent/daemonset.yaml``)."""


NO_COUNTS = (
    "nothing is allocatable yet: the kubelet still knows the device plugin, or the agent for "
    "claims does not run"
)
AGENT_NOT_READY = "the agent is not ready: kubectl gpu doctor says why"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node."""

    node: Annotated[Node, "the node for placement."]
    inventory: Annotated[
        PublishedInventory,
        "its cards, with the free amounts that the agent last reported; without cards and a "
        "block size if it is unknown.",
    ]
    unreadable: Annotated[
        str, "why the inventory cannot be read; empty if it can be read or is missing."
    ]
    offered: Annotated[Mapping[str, int], "allocatable amounts of our resources."]
    others: Annotated[Mapping[str, int], "what NVIDIA's device plugin offers of such cards."]
    labels: Annotated[Mapping[str, str], "of the node."]
    cordoned: Annotated[bool, "whether it is unschedulable."]
    for_gpus: Annotated[bool, "whether it has GPUs or should have some."]
    not_ready: Annotated[str, "reason of the condition Ready if it is not true; else empty."]
    runtime: Annotated[
        str, "its container runtime, such as ``containerd://2.3.4``; empty if unknown."
    ] = ""
    cordon_problem: Annotated[str, "what is wrong with ``gpu-cordoned``; empty if nothing is."] = ""
    taints: Annotated[tuple[Taint, ...], "that keep pods away, without those of conditions."] = ()
    agent_not_ready: Annotated[
        bool, "whether its agent's pod is known not to be ready, for longer than a start takes."
    ] = False

    @property
    def serves_claims(self) -> bool:
        """Whether its agent gives cards by claims (``--mode dra``), and not by a device plugin."""
        return serves_claims(self.labels)

    @property
    def problem(self) -> str:
        """Why it serves no GPU pod at all; empty if it does."""
        if self.serves_claims and self.node.problem is Problem.AGENT_DISCONNECTED:
            return NO_COUNTS
        found = ": ".join(filter(None, (self.node.problem.value, self.unreadable)))
        return found or AGENT_NOT_READY * self.agent_not_ready


def read_node(obj: Mapping[str, Any], names: Names) -> NodeFacts:
    """Read a node object; its annotations may be hostile."""
    node, annotations = parse_node(obj, names), obj["metadata"].get("annotations") or {}
    text = annotations.get(names.gpu_cards)
    inventory = decode_inventory(text) if node.cards else PublishedInventory(0)
    allocatable = (obj.get("status") or {}).get("allocatable") or {}
    free = {card.uuid: row for card, row in zip(inventory.cards, inventory.free, strict=True)}
    pairs = zip(node.cards, node.sizes, strict=True)
    capped = tuple(Amounts(*map(min, free[card.uuid], size)) for card, size in pairs)
    return NodeFacts(
        node,
        replace(inventory, cards=node.cards, free=capped),
        _inventory_error(text) if node.problem is Problem.UNREADABLE else "",
        {
            name: int(parse_quantity(allocatable[name]) or 0)
            for name in (names.core, names.memory)
            if name in allocatable
        },
        count_offered(allocatable, mig=any(card.is_instance for card in node.cards)),
        obj["metadata"].get("labels") or {},
        bool((obj.get("spec") or {}).get("unschedulable")),
        _is_for_gpus(obj, names),
        _not_ready(obj),
        runtime_of(obj),
        describe_unknown(unknown, names) if (unknown := node.unknown_cordons) else "",
        read_taints(obj.get("spec") or {}),
    )


def _inventory_error(inventory: Any) -> str:
    try:
        decode_inventory(inventory)
    except ContractError as error:
        return clamp(str(error))
    return ""


def _is_for_gpus(obj: Mapping[str, Any], names: Names) -> bool:
    metadata, status = obj["metadata"], obj.get("status") or {}
    labels = metadata.get("labels") or {}
    return (
        names.gpu_cards in (metadata.get("annotations") or {})
        or any(labels.get(label) == "true" for label in GPU_LABELS)
        or any(names.core in (status.get(field) or {}) for field in ("capacity", "allocatable"))
    )


def _not_ready(obj: Mapping[str, Any]) -> str:
    ready = find_condition(obj.get("status") or {}, "Ready")
    is_known_and_false = ready and ready.get("status") != "True"
    return clamp(ready.get("reason")) or "unknown" if is_known_and_false else ""


def find_condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return a condition of the status of a node or pod; empty if it has none of this *kind*."""
    found = (each for each in status.get("conditions") or () if each.get("type") == kind)
    return next(found, {})
