"""CDI specs as plain data: our own spec, and the names in the host's specs.

The Container Device Interface names devices ``<vendor>/<class>=<name>``; a spec tells the
container runtime what a named device is: device nodes, mounts and environment. NVIDIA's
tools write one of kind ``nvidia.com/gpu``, with the driver's files, which is better than any
of ours. Where a host has none, or one that does not fit its cards, ours says what the
``Allocate`` answer says otherwise.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.allocator.grants import ContainerEdits
from agent.errors import SettingsError
from contract.errors import quote
from contract.inventory import Card, Inventory

OWN_KIND = "gpu-turnstile.io/gpu"
HOST_KIND = "nvidia.com/gpu"

_LABEL = r"[A-Za-z](?:[-A-Za-z0-9._]*[A-Za-z0-9])?"
_KIND = re.compile(rf"{_LABEL}/{_LABEL}\Z", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9._:]*[A-Za-z0-9])?\Z", re.ASCII)
_VERSION = re.compile(r"v?[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}\Z", re.ASCII)

# A spec of NVIDIA's for 16 cards with every MIG device has some hundred; aliases of YAML
# could make millions of a small file.
_MOST_DEVICES = 4096
_MOST_NODES = 256


@dataclass(frozen=True, slots=True)
class Spec:
    """The parts of a spec that are used here."""

    kind: str
    devices: Mapping[str, frozenset[str]]
    """The host's device nodes that each brings, by its name without the kind."""
    nodes: frozenset[str]
    """The device nodes that come with each device."""


# --- ours -----------------------------------------------------------------------------------


def own_names(inventory: Inventory) -> Mapping[str, str]:
    """Map every card's UUID to its full name in our own spec."""
    return {card.uuid: f"{OWN_KIND}={card.uuid}" for card in inventory.cards}


def spec_document(
    inventory: Inventory, common: ContainerEdits, locate: Callable[[str], str] = str
) -> dict[str, Any]:
    """Write our spec of a node's cards.

    *common* is what every container with a card finds beside it; *locate* tells where the host has
    a device node that containers find at its argument. Permissions are given because a spec that
    leaves them out lets a container make device nodes, too. The version is the lowest that knows
    all it uses: a runtime refuses a spec that is newer than itself.
    """
    devices = [
        {"name": card.uuid, "containerEdits": {"deviceNodes": [_node(card.device, locate)]}}
        for card in inventory.cards
    ]
    nodes = (*(card.device for card in inventory.cards), *common.devices)
    newer = any(card.uuid[0].isdigit() for card in inventory.cards)  # 0.5.0 allows such names,
    newer = newer or any(locate(path) != path for path in nodes)  # and knows hostPath
    return {
        "cdiVersion": "0.5.0" if newer else "0.3.0",
        "kind": OWN_KIND,
        "devices": devices,
        "containerEdits": _edits(common, locate),
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
    """Read a spec that somebody else wrote.

    Raises:
        SettingsError: with the path of the field, the rule and the value.
    """
    if not isinstance(document, Mapping):
        raise SettingsError("a CDI spec must be a mapping")
    version, kind = document.get("cdiVersion"), document.get("kind")
    if not isinstance(version, str) or not _VERSION.match(version):
        raise _invalid("cdiVersion", version, "must be a version such as 0.5.0")
    if not isinstance(kind, str) or not _KIND.match(kind):
        raise _invalid("kind", kind, "must be <vendor>/<class>")
    listed = document.get("devices")
    if not isinstance(listed, list) or not 0 < len(listed) <= _MOST_DEVICES:
        raise SettingsError(f"devices: must be a list of 1 to {_MOST_DEVICES} devices")
    devices = dict(_device(entry, f"devices[{at}]") for at, entry in enumerate(listed))
    if len(devices) < len(listed):
        raise SettingsError("devices: a name stands twice")
    return Spec(kind, devices, _nodes(document, ""))


def _device(entry: object, path: str) -> tuple[str, frozenset[str]]:
    if not isinstance(entry, Mapping):
        raise SettingsError(f"{path}: must be a mapping")
    name = entry.get("name")
    if not isinstance(name, str) or not _NAME.match(name):
        raise _invalid(f"{path}.name", name, "must be letters, digits, '-', '_', '.' and ':'")
    return name, _nodes(entry, f"{path}.")


def _nodes(entry: Mapping[str, Any], path: str) -> frozenset[str]:
    """Read the device nodes of ``containerEdits``, by their path on the host."""
    edits = entry.get("containerEdits")
    if edits is None:
        return frozenset()
    if not isinstance(edits, Mapping):
        raise SettingsError(f"{path}containerEdits: must be a mapping")
    listed = edits.get("deviceNodes")
    if listed is None:
        return frozenset()
    if not isinstance(listed, list) or len(listed) > _MOST_NODES:
        raise SettingsError(
            f"{path}containerEdits.deviceNodes: must be a list of at most {_MOST_NODES} nodes"
        )
    found = set()
    for at, node in enumerate(listed):
        inside = node.get("path") if isinstance(node, Mapping) else None
        host = (node.get("hostPath") or inside) if isinstance(node, Mapping) else None
        if not isinstance(inside, str) or not isinstance(host, str):
            raise SettingsError(
                f"{path}containerEdits.deviceNodes[{at}]: must be a mapping with a path"
            )
        found.add(host)
    return frozenset(found)


def _invalid(path: str, value: object, rule: str) -> SettingsError:
    return SettingsError(f"{path}: Invalid value: {quote(value)}: {rule}")


def names_on_host(
    inventory: Inventory, specs: Sequence[Iterable[Spec]]
) -> Mapping[str, str] | None:
    """Map every card's UUID to its full name in the host's specs; ``None`` if unfit.

    They fit when each card is named, all by UUID or all by index, and a name brings its card's
    device node and no other card's. A spec that was made before a card was taken out or
    swapped can name another card by the same index, and a container would get a stranger's.

    A device in a later directory of *specs* replaces that of an earlier one, and two of one name
    in the same directory are none.
    """
    devices: dict[str, frozenset[str]] = {}
    for directory in specs:
        fresh: dict[str, frozenset[str]] = {}
        twice: set[str] = set()
        for spec in directory:
            if spec.kind != HOST_KIND:
                continue
            twice |= fresh.keys() & spec.devices.keys()
            fresh |= {name: nodes | spec.nodes for name, nodes in spec.devices.items()}
        devices.update(fresh)
        for name in twice:
            del devices[name]
    by_uuid = {card.uuid: card.uuid for card in inventory.cards}
    by_index = {card.uuid: str(card.index) for card in inventory.cards}
    for names in (by_uuid, by_index):
        if names and all(
            names[card.uuid] in devices and _is_just(card, devices[names[card.uuid]], inventory)
            for card in inventory.cards
        ):
            return {uuid: f"{HOST_KIND}={name}" for uuid, name in names.items()}
    return None


def _is_just(card: Card, nodes: Iterable[str], inventory: Inventory) -> bool:
    """Whether these nodes are *card* and no other; a driver's root may stand before a path."""
    found = {
        each.device for each in inventory.cards for node in nodes if node.endswith(each.device)
    }
    return found == {card.device}
