"""The device manager's checkpoint: who has which devices, over a restart (K11, K12).

The file has the name and the shape of the kubelet's own (``Data`` and ``Checksum``), so
that what reads the one can read the other. The checksum is ours: the kubelet hashes Go
structures.
"""

import base64
import binascii
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from agent.kubelet.api import deviceplugin_pb2 as pb
from simulator.client import Json
from simulator.kubelet.devices import PodHoldings
from simulator.kubelet.errors import CorruptCheckpoint
from simulator.kubelet.files import write_atomically
from simulator.kubelet.numa import Holding
from simulator.kubelet.wire import read_answer, write_answer

FILE_NAME = "kubelet_internal_checkpoint"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the file holds.

    Attributes:
        pods: pod UID -> container -> resource -> holding.
        registered: the resources whose plugins were registered, with their healthy devices.
    """

    pods: Mapping[str, PodHoldings]
    registered: Mapping[str, Iterable[str]]


def encode(checkpoint: Checkpoint) -> str:
    """Write the file's text; equal checkpoints are equal text."""
    entries = [
        {
            "PodUID": uid,
            "ContainerName": container,
            "ResourceName": resource,
            "DeviceIDs": {str(node): list(ids) for node, ids in sorted(holding.nodes.items())},
            "AllocResp": base64.b64encode(
                write_answer(holding.answer).SerializeToString(deterministic=True)
            ).decode(),
        }
        for uid, containers in sorted(checkpoint.pods.items())
        for container, resources in sorted(containers.items())
        for resource, holding in sorted(resources.items())
    ]
    registered = {resource: list(ids) for resource, ids in sorted(checkpoint.registered.items())}
    data = {"PodDeviceEntries": entries, "RegisteredDevices": registered}
    written = json.dumps(data)
    return f'{{"Data": {written}, "Checksum": {_checksum(written)}}}'


def decode(text: str) -> Checkpoint:
    """Read the file's text.

    Raises:
        CorruptCheckpoint: it is not what :func:`encode` writes.
    """
    try:
        decoded = json.loads(text)
        data, checksum = decoded["Data"], decoded["Checksum"]
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptCheckpoint(f"checkpoint: not JSON with Data and Checksum: {error}") from error
    if checksum != _checksum(json.dumps(data)):
        raise CorruptCheckpoint(f"checkpoint: Checksum: {checksum} does not fit the data")
    pods: dict[str, PodHoldings] = {}
    try:
        for entry in data["PodDeviceEntries"]:
            containers = pods.setdefault(entry["PodUID"], {})
            containers.setdefault(entry["ContainerName"], {})[entry["ResourceName"]] = _holding(
                entry
            )
        return Checkpoint(
            pods, {str(r): tuple(ids) for r, ids in data["RegisteredDevices"].items()}
        )
    except (ValueError, TypeError, KeyError, AttributeError, DecodeError) as error:
        raise CorruptCheckpoint(f"checkpoint: an entry cannot be read: {error}") from error


class CheckpointFile:
    """The file in the device plugin directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME

    def save(self, checkpoint: Checkpoint) -> None:
        """Write it, whole or not at all."""
        write_atomically(self._path, encode(checkpoint))

    def load(self) -> Checkpoint | None:
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


def _holding(entry: Json) -> Holding:
    nodes = {int(node): tuple(ids) for node, ids in entry["DeviceIDs"].items()}
    try:
        blob = base64.b64decode(entry["AllocResp"], validate=True)
    except binascii.Error as error:
        raise CorruptCheckpoint(f"checkpoint: AllocResp: {error}") from error
    message = pb.ContainerAllocateResponse.FromString(blob)
    ids = tuple(dict.fromkeys(id_ for of_node in nodes.values() for id_ in of_node))
    return Holding(ids, read_answer(message), nodes)


def _checksum(data: str) -> int:
    return zlib.crc32(data.encode())
