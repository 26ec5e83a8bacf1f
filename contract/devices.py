"""A card as a device of Dynamic Resource Allocation: its name, attributes and capacities. Pure.

The agent publishes them in the node's ResourceSlices. Templates of claims name them, kube-scheduler
chooses cards by them, and claims return them. Attributes are what DeviceClasses, selectors and
constraints of claims may name.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from contract.inventory import Amounts, Card, Inventory
from contract.quantity import format_quantity
from contract.resource import RESOURCES

CORES, MEMORY = "cores", "memory"
"""The capacities of a device: hundredths of the card, and memory blocks."""

UUID, MODEL, NUMA, NVLINK_GROUP = "uuid", "model", "numa", "nvlinkGroup"
"""The attributes that selectors and constraints of our templates name."""

PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
"""Kubernetes' own attribute, which drivers of other devices have as well."""

LINK_ATTRIBUTES = {"numa": NUMA, "nvlink": NVLINK_GROUP}
"""The attribute that is equal for all cards of a container, by the wish ``gpu-link``."""

_LONGEST_TEXT = 64  # of an attribute


def device_name(card: Card) -> str:
    """Return the name of a card in ResourceSlices."""
    return f"gpu-{card.index}"


def attributes_of(
    card: Card, *, nvlink_group: int | None, block: int, driver_version: str, pcie_root: str
) -> dict[str, dict[str, str | int]]:
    """Return the attributes of a card, as a device has them.

    Args:
        card: the card.
        nvlink_group: its NVLink group (:func:`nvlink_groups`); ``None`` if it has none.
        block: bytes of a memory block.
        driver_version: the GPU driver's; empty while it is not known.
        pcie_root: the PCIe root of its PCI address; empty if it is not known.
    """
    attributes: Mapping[str, str | int | None] = {
        UUID: card.uuid,
        MODEL: card.model.lower()[:_LONGEST_TEXT],
        "index": card.index,
        NUMA: card.numa,
        NVLINK_GROUP: nvlink_group,
        "driverVersion": driver_version[:_LONGEST_TEXT] or None,
        "memoryBlock": block,
        PCIE_ROOT: pcie_root or None,
    }
    return {
        name: {"int" if isinstance(value, int) else "string": value}
        for name, value in attributes.items()
        if value is not None
    }


def nvlink_groups(inventory: Inventory) -> dict[int, int]:
    """Return the NVLink group of each card that has one, by card index.

    A claim gets any cards of one group. So NVLinks connect each card of a group directly with each
    other one: then any of them fulfil ``gpu-link: nvlink``. A device has one value, so a card is in
    one group only. Cards that NVLinks connect to all others, directly or not, without connecting
    each pair, are divided: the largest group that grows from any card comes first, and of equally
    large ones that from the lowest index. A group's value is the lowest index of its cards.
    """
    linked: dict[int, AbstractSet[int]] = {}
    for link in inventory.links:
        if link.kind.startswith("NV"):
            for one, other in (link.cards, link.cards[::-1]):
                linked[one] = linked.get(one, frozenset()) | {other}
    groups: dict[int, int] = {}
    while any(linked.values()):
        group = max((_grow(first, linked) for first in sorted(linked)), key=len)
        groups |= dict.fromkeys(group, min(group))
        linked = {card: linked[card] - group for card in linked.keys() - group}
    return groups


def _grow(first: int, linked: Mapping[int, AbstractSet[int]]) -> AbstractSet[int]:
    """Grow a group from one card, by the lowest index that is connected to all its cards."""
    group, candidates = {first}, linked[first]
    while candidates:
        card = min(candidates)
        group.add(card)
        candidates &= linked[card]
    return group


def capacity_of(size: Amounts) -> dict[str, Any]:
    """Return the capacity of a device with so much of both resources, in steps of 1."""
    return {
        name: _capacity(resource.count_in(size))
        for name, resource in zip((CORES, MEMORY), RESOURCES, strict=True)
    }


def _capacity(count: int) -> dict[str, Any]:
    """Return a capacity of which each share takes a whole number, 1 or more."""
    text = format_quantity(count)  # as the API server returns it, for the comparison
    policy = {"default": "1", "validRange": {"min": "1", "max": text, "step": "1"}}
    return {"value": text, "requestPolicy": policy}
