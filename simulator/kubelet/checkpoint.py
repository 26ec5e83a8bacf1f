"""The device manager's checkpoint: the devices of each container, across restarts (K11, K12).

Name, format and checksum of the file are the kubelet's, so that a program can read both.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from google.protobuf.message import DecodeError

from common.kubelet_api import CHECKPOINT_FILE
from simulator.client import Json
from simulator.kubelet.devices import PodHoldings
from simulator.kubelet.errors import CorruptCheckpoint
from simulator.kubelet.files import write_atomically
from simulator.kubelet.numa import DeviceAllocation
from simulator.kubelet.responses import PluginResponse
from simulator.kubelet.state import KubeletCheckpoint

_OFFSET, _PRIME, _MASK = 0x811C9DC5, 0x01000193, 0xFFFFFFFF


def encode(checkpoint: KubeletCheckpoint) -> str:
    """Return the file's text; equal checkpoints have equal texts."""
    entries: list[Json] = []
    responses: list[bytes] = []
    for uid, container, resource, holding in _walk(checkpoint.pods):
        response = holding.response.SerializeToString(deterministic=True)
        responses.append(response)
        entries.append(
            {
                "PodUID": uid,
                "ContainerName": container,
                "ResourceName": resource,
                "DeviceIDs": {str(node): list(ids) for node, ids in sorted(holding.nodes.items())},
                "AllocResp": base64.b64encode(response).decode(),
            }
        )
    registered = {resource: list(ids) for resource, ids in sorted(checkpoint.registered.items())}
    data = {"PodDeviceEntries": entries or None, "RegisteredDevices": registered}
    document = {"Data": data, "Checksum": checksum(data, responses)}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _walk(pods: Mapping[str, PodHoldings]) -> Iterator[tuple[str, str, str, DeviceAllocation]]:
    for uid, containers in sorted(pods.items()):
        for container, resources in sorted(containers.items()):
            for resource, holding in sorted(resources.items()):
                yield uid, container, resource, holding


def decode(text: str) -> KubeletCheckpoint:
    """Parse the file's text.

    Raises:
        CorruptCheckpoint: the text is not as :func:`encode` writes it.
    """
    try:
        decoded = json.loads(text)
        data, stored = decoded["Data"], decoded["Checksum"]
        entries = data["PodDeviceEntries"] or []
        responses = [_response(entry) for entry in entries]
        computed = checksum(data, responses)
        registered = {str(r): tuple(ids) for r, ids in data["RegisteredDevices"].items()}
        pods: dict[str, PodHoldings] = {}
        for entry, response in zip(entries, responses, strict=True):
            containers = pods.setdefault(entry["PodUID"], {})
            resources = containers.setdefault(entry["ContainerName"], {})
            resources[entry["ResourceName"]] = _holding(entry, response)
    except (ValueError, TypeError, KeyError, AttributeError, DecodeError) as error:
        raise CorruptCheckpoint(f"checkpoint: not as a kubelet writes it: {error}") from error
    if stored != computed:
        raise CorruptCheckpoint(f"checkpoint: Checksum: {stored} does not fit the data")
    return KubeletCheckpoint(pods, registered)


class CheckpointStore:
    """The file in the device plugin directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / CHECKPOINT_FILE

    def save(self, checkpoint: KubeletCheckpoint) -> None:
        """Write the file atomically."""
        write_atomically(self._path, encode(checkpoint))

    def load(self) -> KubeletCheckpoint | None:
        """Read the file; return ``None`` if there is none.

        Raises:
            CorruptCheckpoint: the file cannot be read.
        """
        try:
            return decode(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise CorruptCheckpoint(f"checkpoint: {error}") from error


def _response(entry: Json) -> bytes:
    try:
        return base64.b64decode(entry["AllocResp"], validate=True)
    except binascii.Error as error:
        raise CorruptCheckpoint(f"checkpoint: AllocResp: {error}") from error


def _holding(entry: Json, response: bytes) -> DeviceAllocation:
    nodes = {int(node): tuple(ids) for node, ids in entry["DeviceIDs"].items()}
    ids = tuple(dict.fromkeys(id_ for of_node in nodes.values() for id_ in of_node))
    return DeviceAllocation(ids, PluginResponse.FromString(response), nodes)


def checksum(data: Json, responses: Iterable[bytes]) -> int:
    """Compute the checksum of the checkpoint's ``Data``: FNV-1a, 32 bits.

    The kubelet does not hash the JSON. It hashes the text that its library ``spew`` prints of the
    structures (``%#v``, keys of maps sorted), with the names of their Go types.

    Args:
        data: ``Data`` of the file.
        responses: ``AllocResp`` of its entries, decoded.
    """
    computed = _OFFSET
    for byte in _dump(data, responses).encode():
        computed = (computed ^ byte) * _PRIME & _MASK
    return computed


def _dump(data: Json, responses: Iterable[bytes]) -> str:
    entries = data["PodDeviceEntries"]
    dumped = (
        "<nil>"
        if entries is None
        else _bracketed(_entry(*each) for each in zip(entries, responses, strict=True))
    )
    return (
        "(checkpoint.checkpointData){"
        f"PodDeviceEntries:([]checkpoint.PodDevicesEntry){dumped} "
        f"RegisteredDevices:(map[string][]string){_of_map(data['RegisteredDevices'])}}}"
    )


def _entry(entry: Json, response: bytes) -> str:
    by_node = {int(node): ids for node, ids in entry["DeviceIDs"].items()}
    return (
        f"{{PodUID:(string){entry['PodUID']} "
        f"ContainerName:(string){entry['ContainerName']} "
        f"ResourceName:(string){entry['ResourceName']} "
        f"DeviceIDs:(checkpoint.DevicesPerNUMA){_of_map(by_node)} "
        f"AllocResp:([]uint8){_bracketed(map(str, response))}}}"
    )


def _of_map(lists: Mapping[str, list[str]] | Mapping[int, list[str]]) -> str:
    return f"map{_bracketed(f'{key}:{_bracketed(ids)}' for key, ids in sorted(lists.items()))}"


def _bracketed(texts: Iterable[str]) -> str:
    return f"[{' '.join(texts)}]"
