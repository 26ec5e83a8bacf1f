"""The devices of a node's ResourceSlices, as plain data, with what the agent knows of it. Pure.

All cards are shared devices (:mod:`contract.devices`). Unhealthy and cordoned ones have taints.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from agent.allocator.slots import DeviceTable
from contract.cordon import REASON
from contract.devices import attributes_of, capacity_of, device_name, nvlink_groups
from contract.text import to_label

MOST_DEVICES = 64
"""``ResourceSliceMaxDevicesWithAdvancedFeatures``: the limit if a device has a taint."""

_LONGEST_LABEL = 63


def devices_of(  # noqa: PLR0913 -- its surroundings, by keyword
    table: DeviceTable,
    *,
    domain: str,
    driver_version: str,
    unhealthy: Callable[[str], str],
    cordoned: AbstractSet[str],
    pcie_root: Callable[[str], str],
) -> list[dict[str, Any]]:
    """Return the device of each card.

    Args:
        table: the cards, and the size of memory blocks.
        domain: the domain of our names.
        driver_version: the GPU driver's; empty while it is not known.
        unhealthy: returns a card's fault by UUID, empty without one.
        cordoned: the UUIDs of the cordoned cards.
        pcie_root: returns the PCIe root of a PCI address, empty if it is not known.
    """
    groups = nvlink_groups(table.inventory)
    devices = []
    for card in table.inventory.cards:
        device: dict[str, Any] = {
            "name": device_name(card),
            "allowMultipleAllocations": True,
            "attributes": attributes_of(
                card,
                nvlink_group=groups.get(card.index),
                block=table.block,
                driver_version=driver_version,
                pcie_root=pcie_root(card.bus_id),
            ),
            "capacity": capacity_of(card.size(table.block)),
        }
        faults = {"unhealthy": unhealthy(card.uuid), REASON: REASON * (card.uuid in cordoned)}
        taints = [
            {
                "key": f"{domain}/{key}",
                "value": to_label(value)[:_LONGEST_LABEL].strip("._-"),
                "effect": "NoSchedule",  # running containers stay
            }
            for key, value in faults.items()
            if value
        ]
        devices.append(device | ({"taints": taints} if taints else {}))
    return devices


def slices_of(
    devices: Sequence[Mapping[str, Any]], *, driver: str, node: str
) -> dict[str, dict[str, Any]]:
    """Return the specs of a node's slices by name; without the pool's generation."""
    parts = [devices[at : at + MOST_DEVICES] for at in range(0, len(devices), MOST_DEVICES)]
    return {
        f"{node}-{driver}" + (f"-{at}" if at else ""): {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "resourceSliceCount": len(parts)},
            "devices": list(part),
        }
        for at, part in enumerate(parts)
    }


def published(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of an existing slice without what the API server and generations add."""
    pool = {key: value for key, value in spec["pool"].items() if key != "generation"}
    devices = []
    for each in spec.get("devices") or ():
        taints = [
            {key: value for key, value in taint.items() if key != "timeAdded"}
            for taint in each.get("taints") or ()
        ]
        devices.append({**each, "taints": taints} if taints else each)
    return {**spec, "pool": pool, "devices": devices}


def manifest(name: str, spec: Mapping[str, Any], generation: int, node_uid: str) -> dict[str, Any]:
    """Return a slice; it belongs to the node, so that it is deleted with it."""
    node = spec["nodeName"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name, "ownerReferences": [owner]},
        "spec": {**spec, "pool": {**spec["pool"], "generation": generation}},
    }
