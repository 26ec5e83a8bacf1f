"""CDI specs as plain data: our own spec, and the names in the host's specs.

The Container Device Interface names devices ``<vendor>/<class>=<name>``. A spec has the container
edits of each named device: device nodes, mounts and environment. NVIDIA's tools write a spec of
kind ``nvidia.com/gpu`` that includes the driver's files, so it is preferred to ours. If a host has
none, or one that does not match its cards, our spec has the edits that are otherwise in the
``Allocate`` response.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.errors import SettingsError
from agent.holdings.edits import ContainerEdits
from contract.fields import Fields
from contract.inventory import Card, Inventory

OWN_KIND = "gpu-turnstile.io/gpu"
HOST_KIND = "nvidia.com/gpu"

_LABEL = r"[A-Za-z](?:[-A-Za-z0-9._]*[A-Za-z0-9])?"
_KIND = re.compile(rf"{_LABEL}/{_LABEL}\Z", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9._:]*[A-Za-z0-9])?\Z", re.ASCII)
_VERSION = re.compile(r"v?[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}\Z", re.ASCII)

# NVIDIA's spec for 16 cards with every MIG device has some hundred; with YAML aliases a small file
# could have millions.
_MOST_DEVICES = 4096
_MOST_NODES = 256


@dataclass(frozen=True, slots=True)
class Spec:
    """The parts of a spec that are used here."""

    kind: str
    devices: Mapping[str, frozenset[str]]
    """The host's device nodes of each device, by its name without the kind."""
    nodes: frozenset[str]
    """The device nodes that every device brings in addition."""


# --- ours -----------------------------------------------------------------------------------


def own_names(inventory: Inventory) -> Mapping[str, str]:
    """Map every card's UUID to its full name in our own spec."""
    return {card.uuid: f"{OWN_KIND}={card.uuid}" for card in inventory.cards}


def spec_document(
    inventory: Inventory, common: ContainerEdits, locate: Callable[[str], str] = str
) -> dict[str, Any]:
    """Return the document of our spec of a node's cards.

    *common* has the edits of every container with a card. *locate* returns the path on the host of
    a device node, by its path in containers. Permissions are written because without them a
    container could also make device nodes. The version is the lowest that has all used fields: a
    runtime rejects a spec that is newer than itself.
    """
    devices = [
        {
            "name": card.uuid,
            "containerEdits": {"deviceNodes": [_node(path, locate) for path in card.device_nodes]},
        }
        for card in inventory.cards
    ]
    nodes = (*(path for card in inventory.cards for path in card.device_nodes), *common.devices)
    newer = any(card.uuid[0].isdigit() for card in inventory.cards)  # 0.5.0 allows such names,
    newer = newer or any(locate(path) != path for path in nodes)  # and has hostPath
    return {
        "cdiVersion": "0.5.0" if newer else "0.3.0",
        "kind": OWN_KIND,
        "devices": devices,
        "containerEdits": _edits(common, locate),
    }


def claim_document(
    kind: str,
    devices: Mapping[str, ContainerEdits],
    annotations: Mapping[str, str],
    locate: Callable[[str], str] = str,
) -> dict[str, Any]:
    """Return the document of a spec whose devices have these edits, by name.

    Their CDI names are left out: a spec cannot refer to the devices of another one.
    """
    return {
        "cdiVersion": "0.6.0",  # the first with annotations
        "kind": kind,
        "annotations": dict(annotations),
        "devices": [
            {"name": name, "containerEdits": _edits(edits, locate)}
            for name, edits in devices.items()
        ],
    }


def _edits(common: ContainerEdits, locate: Callable[[str], str]) -> dict[str, Any]:
    edits: dict[str, Any] = {}
    if common.envs:
        edits["env"] = [f"{name}={value}" for name, value in sorted(common.envs.items())]
    if common.devices:
        edits["deviceNodes"] = [_node(path, locate) for path in common.devices]
    if common.mounts:
        edits["mounts"] = [
            {
                "hostPath": mount.host,
                "containerPath": mount.container,
                "options": ["ro" if mount.read_only else "rw", "nosuid", "nodev", "rbind"],
            }
            for mount in common.mounts
        ]
    return edits


def _node(path: str, locate: Callable[[str], str]) -> dict[str, str]:
    host = locate(path)
    elsewhere = {"hostPath": host} if host != path else {}
    return {"path": path, **elsewhere, "permissions": "rw"}


# --- the host's -----------------------------------------------------------------------------


def parse_spec(document: object) -> Spec:
    """Parse a spec of the host.

    Raises:
        SettingsError: it is invalid; the message has the path of the field, the value and the rule.
    """
    fields = Fields("", document, SettingsError, "a CDI spec must be a mapping")
    version, kind = fields.raw("cdiVersion"), fields.raw("kind")
    if not isinstance(version, str) or not _VERSION.match(version):
        raise fields.error("cdiVersion", "must be a version such as 0.5.0")
    if not isinstance(kind, str) or not _KIND.match(kind):
        raise fields.error("kind", "must be <vendor>/<class>")
    listed = fields.raw("devices")
    if not isinstance(listed, list) or not 0 < len(listed) <= _MOST_DEVICES:
        raise SettingsError(f"devices: must be a list of 1 to {_MOST_DEVICES} devices")
    devices = dict(_device(entry, f"devices[{at}]") for at, entry in enumerate(listed))
    if len(devices) < len(listed):
        raise SettingsError("devices: Duplicate value: two devices have the same name")
    return Spec(kind, devices, _nodes(fields))


def _device(entry: object, path: str) -> tuple[str, frozenset[str]]:
    fields = Fields(path, entry, SettingsError)
    name = fields.raw("name")
    if not isinstance(name, str) or not _NAME.match(name):
        raise fields.error("name", "must be letters, digits, '-', '_', '.' and ':'")
    return name, _nodes(fields)


def _nodes(fields: Fields) -> frozenset[str]:
    """Return the device nodes of ``containerEdits``, by their path on the host."""
    found = fields.raw("containerEdits")
    if found is None:
        return frozenset()
    edits = Fields(fields.at("containerEdits"), found, SettingsError)
    path, listed = edits.at("deviceNodes"), edits.raw("deviceNodes")
    if listed is None:
        return frozenset()
    if not isinstance(listed, list) or len(listed) > _MOST_NODES:
        raise SettingsError(f"{path}: must be a list of at most {_MOST_NODES} nodes")
    paths = set()
    for at, each in enumerate(listed):
        inside = each.get("path") if isinstance(each, Mapping) else None
        host = (each.get("hostPath") or inside) if isinstance(each, Mapping) else None
        if not isinstance(inside, str) or not isinstance(host, str):
            raise SettingsError(f"{path}[{at}]: must be a mapping with a path")
        paths.add(host)
    return frozenset(paths)


def names_on_host(
    inventory: Inventory, specs: Sequence[Iterable[Spec]]
) -> Mapping[str, str] | None:
    """Map every card's UUID to its full name in the host's specs; ``None`` if they do not match.

    They match if each card has a name, all by UUID or all by index, and each name has its card's
    device nodes and no other card's. A spec that was made before a card was removed or swapped can
    have another card under the same index, and a container would get the wrong card. MIG instances
    match by UUID only: NVIDIA's index of one (``0:1``) may change.

    A device in a later directory of *specs* replaces that of an earlier one; two devices with one
    name in the same directory are ignored.
    """
    devices: dict[str, frozenset[str]] = {}
    for directory in specs:
        named: dict[str, frozenset[str]] = {}
        duplicates: set[str] = set()
        for spec in directory:
            if spec.kind != HOST_KIND:
                continue
            duplicates |= named.keys() & spec.devices.keys()
            named |= {name: nodes | spec.nodes for name, nodes in spec.devices.items()}
        devices.update(named)
        for name in duplicates:
            del devices[name]
    by_uuid = {card.uuid: card.uuid for card in inventory.cards}
    by_index = {card.uuid: str(card.index) for card in inventory.cards}
    for names in (by_uuid, by_index):
        if names and all(
            names[card.uuid] in devices and _is_exactly(card, devices[names[card.uuid]], inventory)
            for card in inventory.cards
        ):
            return {uuid: f"{HOST_KIND}={name}" for uuid, name in names.items()}
    return None


def _is_exactly(card: Card, nodes: Iterable[str], inventory: Inventory) -> bool:
    """Return whether these nodes are those of *card* only; a driver's root may precede a path."""
    known = {path for each in inventory.cards for path in each.device_nodes}
    found = {path for path in known for node in nodes if node.endswith(path)}
    return found == {*card.device_nodes}
