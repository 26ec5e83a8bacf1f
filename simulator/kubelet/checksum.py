"""The checksum in the kubelet's checkpoint: FNV-1a, 32 bits, over a dump of Go values.

The kubelet hashes no JSON but what its library ``spew`` prints of the structures (``%#v``, keys of
maps sorted), with the names of their Go types.
"""

from collections.abc import Iterable, Mapping

from simulator.client import Json

_OFFSET, _PRIME, _MASK = 0x811C9DC5, 0x01000193, 0xFFFFFFFF


def checksum(data: Json, answers: Iterable[bytes]) -> int:
    """Compute the checksum of the checkpoint's ``Data``.

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
