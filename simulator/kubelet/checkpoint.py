"""The device manager's checkpoint: who has which devices, over a restart (K11, K12).

Name, form and checksum of the file are the kubelet's own, so that whatever reads the one can read
the other.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from google.protobuf.message import DecodeError

from simulator.client import Json
from simulator.kubelet.answers import PluginResponse
from simulator.kubelet.devices import PodHoldings
from simulator.kubelet.errors import CorruptCheckpoint
from simulator.kubelet.files import write_atomically
from simulator.kubelet.numa import Holding
from simulator.kubelet.state import KubeletCheckpoint

FILE_NAME = "kubelet_internal_checkpoint"
_OFFSET, _PRIME, _MASK = 0x811C9DC5, 0x01000193, 0xFFFFFFFF


def encode(checkpoint: KubeletCheckpoint) -> str:
    """Write the file's text; equal checkpoints are equal text."""
    entries: list[Json] = []
    answers: list[bytes] = []
    for uid, container, resource, holding in _walk(checkpoint.pods):
        answer = holding.answer.SerializeToString(deterministic=True)
        answers.append(answer)
        entries.append(
            {
                "PodUID": uid,
                "ContainerName": container,
                "ResourceName": resource,
                "DeviceIDs": {str(node): list(ids) for node, ids in sorted(holding.nodes.items())},
                "AllocResp": base64.b64encode(answer).decode(),
            }
        )
    registered = {resource: list(ids) for resource, ids in sorted(checkpoint.registered.items())}
    data = {"PodDeviceEntries": entries or None, "RegisteredDevices": registered}
    document = {"Data": data, "Checksum": checksum(data, answers)}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _walk(pods: Mapping[str, PodHoldings]) -> Iterator[tuple[str, str, str, Holding]]:
    for uid, containers in sorted(pods.items()):
        for container, resources in sorted(containers.items()):
            for resource, holding in sorted(resources.items()):
                yield uid, container, resource, holding


def decode(text: str) -> KubeletCheckpoint:
    """Read the file's text.

    Raises:
        CorruptCheckpoint: it is not what :func:`encode` writes.
    """
    try:
        decoded = json.loads(text)
        data, told = decoded["Data"], decoded["Checksum"]
        entries = data["PodDeviceEntries"] or []
        answers = [_answer(entry) for entry in entries]
        found = checksum(data, answers)
        registered = {str(r): tuple(ids) for r, ids in data["RegisteredDevices"].items()}
        pods: dict[str, PodHoldings] = {}
        for entry, answer in zip(entries, answers, strict=True):
            containers = pods.setdefault(entry["PodUID"], {})
            resources = containers.setdefault(entry["ContainerName"], {})
            resources[entry["ResourceName"]] = _holding(entry, answer)
    except (ValueError, TypeError, KeyError, AttributeError, DecodeError) as error:
        raise CorruptCheckpoint(f"checkpoint: not as a kubelet writes it: {error}") from error
    if told != found:
        raise CorruptCheckpoint(f"checkpoint: Checksum: {told} does not fit the data")
    return KubeletCheckpoint(pods, registered)


class CheckpointStore:
    """The file in the device plugin directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME

    def save(self, checkpoint: KubeletCheckpoint) -> None:
        """Write it, whole or not at all."""
        write_atomically(self._path, encode(checkpoint))

    def load(self) -> KubeletCheckpoint | None:
        """Read it; ``None`` when there is none.

        Raises:
            CorruptCheckpoint: it cannot be read.
        """
        try:
            return decode(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise CorruptCheckpoint(f"checkpoint: {error}") from error


def _answer(entry: Json) -> bytes:
    try:
        return base64.b64decode(entry["AllocResp"], validate=True)
    except binascii.Error as error:
        raise CorruptCheckpoint(f"checkpoint: AllocResp: {error}") from error


def _holding(entry: Json, answer: bytes) -> Holding:
    nodes = {int(node): tuple(ids) for node, ids in entry["DeviceIDs"].items()}
    ids = tuple(dict.fromkeys(id_ for of_node in nodes.values() for id_ in of_node))
    return Holding(ids, PluginResponse.FromString(answer), nodes)


def checksum(data: Json, answers: Iterable[bytes]) -> int:
    """Compute the checksum of the checkpoint's ``Data``: FNV-1a, 32 bits.

    The kubelet hashes no JSON but what its library ``spew`` prints of the structures (``%#v``, keys
    of maps sorted), with the names of their Go types.

    Args:
        data: as it stands in the file.
        answers: ``AllocResp`` of its entries, decoded.
    """
    found = _OFFSET
    for byte in _dump(data, answers).encode():
        found = (found ^ byte) * _PRIME & _MASK
    return found


def _dump(data: Json, answers: Iterable[bytes]) -> str:
    entries = data["PodDeviceEntries"]
    dumped = (
        "<nil>"
        if entries is None
        else _bracketed(_entry(*each) for each in zip(entries, answers, strict=True))
    )
    return (
        "(checkpoint.checkpointData){"
        f"PodDeviceEntries:([]checkpoint.PodDevicesEntry){dumped} "
        f"RegisteredDevices:(map[string][]string){_of_map(data['RegisteredDevices'])}}}"
    )


def _entry(entry: Json, answer: bytes) -> str:
    by_node = {int(node): ids for node, ids in entry["DeviceIDs"].items()}
    return (
        f"{{PodUID:(string){entry['PodUID']} "
        f"ContainerName:(string){entry['ContainerName']} "
        f"ResourceName:(string){entry['ResourceName']} "
        f"DeviceIDs:(checkpoint.DevicesPerNUMA){_of_map(by_node)} "
        f"AllocResp:([]uint8){_bracketed(map(str, answer))}}}"
    )


def _of_map(lists: Mapping[str, list[str]] | Mapping[int, list[str]]) -> str:
    return f"map{_bracketed(f'{key}:{_bracketed(ids)}' for key, ids in sorted(lists.items()))}"


def _bracketed(texts: Iterable[str]) -> str:
    return f"[{' '.join(texts)}]"
