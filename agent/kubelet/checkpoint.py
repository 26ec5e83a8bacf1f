"""The kubelet's checkpoint: the file in which it writes which container holds which device IDs.

The kubelet renames each new state into place (K27), so an open file is complete. Its checksum is
not compared: it is a hash of the kubelet's structures as Go prints them, names of types included,
and takes ten times as long as reading the file. A proof does not need it: it requires exactly the
IDs of a call, and a damaged entry does not have them.
"""

import json
import logging
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.allocator.interfaces import Checkpoint
from agent.allocator.slots import Slot
from agent.errors import CheckpointError, GrantError
from common.kubelet_api import CHECKPOINT_FILE
from contract.errors import quote
from contract.resource import Resource

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of the file.

    Attributes:
        uid: pod UID.
        container: container name.
        resource: the resource of its devices.
        ids: its device IDs.
        foreign: why the IDs are not an agent's; ``None`` if they are.
    """

    uid: str
    container: str
    resource: Resource
    ids: frozenset[str]
    foreign: str | None


class CheckpointParser:
    """Parses successive versions of the file; an entry that has not changed is not parsed again."""

    def __init__(self, resources: Mapping[str, Resource]) -> None:
        """Parse the entries of *resources*, by the kubelet's names; ignore all others."""
        self._resources = resources
        self._parsed: dict[bytes, _Entry | None] = {}
        self._last = Checkpoint()

    def parse(self, content: bytes) -> Checkpoint:
        """Parse the content of the file.

        The entries of a pod are the same object as before if they have not changed.

        Raises:
            CheckpointError: it is not JSON, or not in the format of Kubernetes 1.20 and later
                (K32).
        """
        pods: dict[str, dict[str, dict[Resource, frozenset[str]]]] = {}
        unreadable: list[str] = []
        for index, entry in enumerate(self._entries(content)):
            if entry is None:
                continue
            if entry.foreign is None:
                containers = pods.setdefault(entry.uid, {})
                containers.setdefault(entry.container, {})[entry.resource] = entry.ids
            else:
                unreadable.append(f"Data.PodDeviceEntries[{index}]: {entry.foreign}")
        last = self._last.pods
        same = {uid: old if (old := last.get(uid)) == new else new for uid, new in pods.items()}
        self._last = Checkpoint(same, tuple(unreadable))
        return self._last

    def _entries(self, content: bytes) -> list[_Entry | None]:
        """Parse the entries; ``None`` for entries of other resources.

        Raises:
            CheckpointError: as for :meth:`parse`.
        """
        fresh: dict[bytes, _Entry | None] = {}
        try:
            texts = _split(content)
            for each in texts:
                is_parsed = each in self._parsed
                fresh[each] = self._parsed[each] if is_parsed else self._read(json.loads(each), "")
        except (ValueError, RecursionError, CheckpointError):
            pass  # not as a kubelet writes it: parse it as a whole, or explain what is wrong
        else:
            self._parsed = fresh
            return [fresh[each] for each in texts]
        try:
            document = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"not JSON: {error}") from error
        raws = _field(_field(document, "Data", dict, ""), "PodDeviceEntries", list | None, "Data.")
        return [
            self._read(raw, f"Data.PodDeviceEntries[{index}]")
            for index, raw in enumerate(raws or ())
        ]

    def _read(self, raw: Any, at: str) -> _Entry | None:
        """Parse an entry; ``None`` for an entry of another resource.

        Raises:
            CheckpointError: it has another format.
        """
        if not isinstance(raw, dict):
            raise CheckpointError(f"{at}: must be an object, found {_kind(raw)}")
        resource = self._resources.get(_field(raw, "ResourceName", str, f"{at}."))
        if resource is None:
            return None
        uid = _field(raw, "PodUID", str, f"{at}.")
        container = _field(raw, "ContainerName", str, f"{at}.")
        ids = _device_ids(raw, at)
        return _Entry(uid, container, resource, ids, _foreign(ids))


_HEAD = b'{"Data":{"PodDeviceEntries":[{"PodUID":'
_NEXT = b',{"PodUID":'


def _split(content: bytes) -> list[bytes]:
    """Cut the text of each entry out of a file: on a busy node only a few have changed.

    The second half of the file, the registered devices, is not used. This is correct for any
    content: a quotation mark inside a JSON string is escaped, so none follows a brace or a comma.

    Raises:
        ValueError: the file is not as a kubelet writes it.
    """
    head, _, _ = content.rpartition(b',"RegisteredDevices":')
    if not head.startswith(_HEAD) or not head.endswith(b"]"):
        raise ValueError("no entries found")
    return [_NEXT[1:] + each for each in head[len(_HEAD) : -1].split(_NEXT)]


def _device_ids(entry: Mapping[str, Any], at: str) -> frozenset[str]:
    """Return the device IDs of all NUMA nodes together (K32)."""
    by_node = _field(entry, "DeviceIDs", dict, f"{at}.")
    found: set[str] = set()
    for node, ids in by_node.items():
        if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
            raise CheckpointError(f"{at}.DeviceIDs[{quote(node)}]: must be a list of strings")
        found.update(map(sys.intern, ids))  # one object per ID in all sources: fast to compare
    return frozenset(found)


def _foreign(ids: frozenset[str]) -> str | None:
    """Return why these are not an agent's IDs; ``None`` if they are."""
    try:
        for each in sorted(ids):
            Slot.parse(each)
    except GrantError as error:
        return str(error)
    return None


def _field(obj: Any, name: str, kind: Any, at: str) -> Any:
    """Return a field of an object.

    Raises:
        CheckpointError: it is missing, or of another type.
    """
    if not isinstance(obj, dict):
        raise CheckpointError(f"must be an object, found {_kind(obj)}")
    if name not in obj:
        raise CheckpointError(f"{at}{name}: missing")
    value = obj[name]
    if not isinstance(value, kind):
        raise CheckpointError(f"{at}{name}: must be {_KIND_NAMES[kind]}, found {_kind(value)}")
    return value


_KIND_NAMES = {dict: "an object", str: "a string", list | None: "a list or null"}


def _kind(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    words: dict[type, str] = {dict: "an object", list: "a list", str: "a string"}
    return words.get(type(value), "a number")


class CheckpointFile:
    """Reads the file if it has changed. Safe to share between threads.

    Implements :class:`agent.allocator.interfaces.CheckpointSource`.
    """

    def __init__(self, kubelet_dir: Path, resources: Mapping[str, Resource]) -> None:
        """Read nothing yet; *kubelet_dir* is the kubelet's own device plugin directory."""
        self._path = kubelet_dir / CHECKPOINT_FILE
        self._parser = CheckpointParser(resources)
        self._lock = threading.Lock()
        self._last: tuple[tuple[int, int, int, int], Checkpoint] | None = None
        self._problem = ""
        self._unreadable: tuple[str, ...] = ()

    def read(self) -> Checkpoint:
        """Return the present content of the file.

        Raises:
            CheckpointError: it does not exist, cannot be read, or has another format.
        """
        with self._lock:
            try:
                checkpoint = self._read()
            except CheckpointError as error:
                if not self._problem:
                    log.warning("checkpoint unreadable", extra={"reason": str(error)})
                self._problem = str(error)
                raise
            if self._problem:
                log.info("checkpoint readable again")
            self._problem = ""
            if checkpoint.unreadable != self._unreadable:
                self._unreadable = checkpoint.unreadable
                for reason in checkpoint.unreadable:
                    log.warning("checkpoint entry left out", extra={"reason": reason})
            return checkpoint

    @property
    def readable(self) -> bool:
        """Whether the file can be read; each access reads it."""
        try:
            self.read()
        except CheckpointError:
            return False
        return True

    def _read(self) -> Checkpoint:
        try:
            with self._path.open("rb") as file:  # stays the same if another is renamed into place
                status = os.fstat(file.fileno())
                identity = status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
                if self._last is None or self._last[0] != identity:
                    self._last = identity, self._parser.parse(file.read())
                return self._last[1]
        except (OSError, CheckpointError) as error:
            self._last = None
            raise CheckpointError(f"the kubelet's checkpoint {self._path}: {error}") from error
