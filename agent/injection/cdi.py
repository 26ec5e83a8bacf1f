"""CDI specs as plain data: our own spec, and the names in the host's specs.

The Container Device Interface names devices ``<vendor>/<class>=<name>``. A spec has the container
edits of each named device: device nodes, mounts and environment. NVIDIA's tools write a spec of
kind ``nvidia.com/gpu`` that includes the driver's files, so it is preferred to ours. If a host has
none, or one that does not match its cards, our spec has the edits that are otherwise in the
``Allocate`` response.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.errors import SettingsError
from agent.holdings.edits import ContainerEdits
from contract.fields import Fields
from contract.inventory import Card, Inventory
from contract.text import fold_uuid

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
_MOST_NAMED = 3


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


@dataclass(frozen=True, slots=True)
class SpecFile:
    """A file in a folder of specs.

    Attributes:
        path: its path.
        spec: what it has; ``None`` if it cannot be used.
        problem: why not.
    """

    path: str
    spec: Spec | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class HostNames:
    """What the host's specs have for a node's cards.

    Attributes:
        by_uuid: the full name of every card, by UUID; empty if the specs do not match the cards.
        problem: why they do not match; empty if they do.
    """

    by_uuid: Mapping[str, str]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Device:
    """A device of the host's specs: the file that has it, and its nodes on the host."""

    path: str
    nodes: frozenset[str]


def names_on_host(inventory: Inventory, folders: Sequence[Sequence[SpecFile]]) -> HostNames:
    """Find every card's full name in the host's specs.

    They match if each card has a name, all by UUID, all by index or all by type and index (the
    naming strategies of ``nvidia-ctk cdi generate``), and each name has its card's device nodes and
    no other card's. A spec that was made before a card was removed or swapped can have another card
    under the same index, and a container would get the wrong card. MIG instances match by UUID
    only: NVIDIA's index of one (``0:1``) may change.

    Args:
        inventory: the node's cards.
        folders: the files of each folder, by ascending priority of the folders. A device in a later
            one replaces that of an earlier one. Runtimes drop a device that two files of one folder
            have, even if a later folder has it again (``refresh`` in CDI's ``pkg/cdi/cache.go``).
    """
    devices, twice = _devices_on_host(folders)
    specs = [
        file.path
        for files in folders
        for file in files
        if file.spec is not None and file.spec.kind == HOST_KIND
    ]
    uuids = {fold_uuid(name): name for name in (*twice, *devices)}
    cards, problems = inventory.cards, list[list[str]]()
    for names in (
        [uuids.get(fold_uuid(card.uuid), card.uuid) for card in cards],
        ["" if card.is_instance else f"{card.index}" for card in cards],
        ["" if card.is_instance else f"gpu{card.index}" for card in cards],
    ):
        found = [
            text
            for card, name in zip(cards, names, strict=True)
            if (text := _mismatch(card, name, devices, twice, inventory, specs))
        ]
        if cards and not found:
            full = {
                card.uuid: f"{HOST_KIND}={name}" for card, name in zip(cards, names, strict=True)
            }
            return HostNames(full)
        known = sum(name in devices or name in twice for name in names)
        problems.append(found if known else [])
    closest = min(filter(None, problems), key=len, default=[])
    return HostNames({}, _describe(closest, specs, folders))


def _devices_on_host(
    folders: Sequence[Sequence[SpecFile]],
) -> tuple[Mapping[str, _Device], Mapping[str, tuple[str, str]]]:
    """Return the devices of NVIDIA's kind by name, and both files of those that runtimes drop."""
    devices: dict[str, _Device] = {}
    twice: dict[str, tuple[str, str]] = {}
    for files in folders:
        named: dict[str, _Device] = {}
        for file in files:
            spec = file.spec
            if spec is None or spec.kind != HOST_KIND:
                continue
            for name, nodes in spec.devices.items():
                if name in named:
                    twice.setdefault(name, (named[name].path, file.path))
                named[name] = _Device(file.path, nodes | spec.nodes)
        devices |= named
    return {name: each for name, each in devices.items() if name not in twice}, twice


def _mismatch(  # noqa: PLR0913, PLR0917 -- what is compared
    card: Card,
    name: str,
    devices: Mapping[str, _Device],
    twice: Mapping[str, tuple[str, str]],
    inventory: Inventory,
    specs: Sequence[str],
) -> str:
    """Return why the device *name* is not *card*; empty if it is."""
    title = f"card {card.index} ({card.uuid})"
    if name in twice:
        first, second = twice[name]
        return f"{first} and {second} both have device {name}, so that runtimes use neither"
    if name not in devices:
        return f"{', '.join(specs[:_MOST_NAMED])}: no device for {title}"
    device = devices[name]
    # A driver's root may precede a path.
    known = {path for each in inventory.cards for path in each.device_nodes}
    found = {path for path in known for node in device.nodes if node.endswith(path)}
    if found == {*card.device_nodes}:
        return ""
    has = " and ".join(sorted(found)) or "no device node of a card"
    wanted = " and ".join(card.device_nodes)
    return f"{device.path}: device {name} has {has}, and {title} is {wanted}"


def _describe(
    mismatches: Sequence[str], specs: Sequence[str], folders: Sequence[Sequence[SpecFile]]
) -> str:
    """Return why the host's specs are not used: what they lack, and files that are not read."""
    if not specs:
        mismatches = [f"no spec of kind {HOST_KIND}"]
    elif not mismatches:
        mismatches = [f"{specs[0]}: no device has the UUID or index of a card"]
    more = len(mismatches) - _MOST_NAMED
    files = [each for folder in folders for each in folder]
    ignored = [f"{each.path}: {each.problem}" for each in files if each.problem]
    ignored += [
        f"{each.path}: its kind is {each.spec.kind}"
        for each in files
        if each.spec is not None and each.spec.kind != HOST_KIND and "nvidia" in each.spec.kind
    ]
    counted = [f"{more} more of this kind"] if more > 0 else []
    return "; ".join([*mismatches[:_MOST_NAMED], *counted, *ignored[:_MOST_NAMED]])
