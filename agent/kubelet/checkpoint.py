"""The kubelet's checkpoint: the file in which it writes which container holds which device IDs.

The kubelet renames each new state into place (K27), so a file that is open is whole. Its checksum
is not compared: it is a hash of what Go prints of the kubelet's own structures, names of types
included, takes ten times as long as reading the file, and proves nothing that the proof needs. That
asks for exactly the IDs of a call: what is damaged has none of them, and proves nothing.
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

from agent.allocator.model.checkpoint import Checkpoint
from agent.allocator.model.tickets import Ticket
from agent.errors import CheckpointError, GrantError
from contract.errors import quote
from contract.resource import Resource

log = logging.getLogger(__name__)

FILE_NAME = "kubelet_internal_checkpoint"


def parse_checkpoint(text: str | bytes, resources: Mapping[str, Resource]) -> Checkpoint:
    """Read the content of the file.

    Args:
        text: the content.
        resources: resource name -> resource; entries of others are passed over.

    Raises:
        CheckpointError: it is not JSON, or not in the form of Kubernetes 1.20 and later (K32).
    """
    return _Parser(resources).parse(text)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of the file.

    Attributes:
        owner: pod UID, container name and resource name.
        resource: which resource that is.
        raw: its device IDs as they stand in the file.
        ids: its device IDs.
        foreign: why these are none that an agent makes; ``None`` if they are.
    """

    owner: tuple[str, str, str]
    resource: Resource
    raw: object
    ids: frozenset[str]
    foreign: str | None


class _Parser:
    """Reads the file again and again: an entry that has not changed is not checked again."""

    def __init__(self, resources: Mapping[str, Resource]) -> None:
        self._resources = resources
        self._entries: dict[tuple[str, str, str], _Entry] = {}
        self._last = Checkpoint()

    def parse(self, text: str | bytes) -> Checkpoint:
        """Read the content; what pods hold is the same object as before where it is equal.

        Raises:
            CheckpointError: as for :func:`parse_checkpoint`.
        """
        data = _field(_decode(text), "Data", dict, "")
        entries = _field(data, "PodDeviceEntries", list | None, "Data.")
        fresh: dict[tuple[str, str, str], _Entry] = {}
        pods: dict[str, dict[str, dict[Resource, frozenset[str]]]] = {}
        unreadable: list[str] = []
        for index, raw in enumerate(entries or ()):
            entry = self._unchanged(raw) or self._read(raw, f"Data.PodDeviceEntries[{index}]")
            if entry is None:
                continue
            fresh[entry.owner] = entry
            uid, container, _ = entry.owner
            if entry.foreign is None:
                pods.setdefault(uid, {}).setdefault(container, {})[entry.resource] = entry.ids
            else:
                unreadable.append(f"Data.PodDeviceEntries[{index}]: {entry.foreign}")
        last = self._last.pods
        same = {uid: old if (old := last.get(uid)) == new else new for uid, new in pods.items()}
        self._entries, self._last = fresh, Checkpoint(same, tuple(unreadable))
        return self._last

    def _unchanged(self, raw: Any) -> _Entry | None:
        """Return an entry, if it stood in the file before."""
        try:
            known = self._entries[raw["PodUID"], raw["ContainerName"], raw["ResourceName"]]
            return known if known.raw == raw["DeviceIDs"] else None
        except (KeyError, TypeError):
            return None

    def _read(self, raw: Any, at: str) -> _Entry | None:
        """Read an entry; ``None`` where it is of a resource that is not ours.

        Raises:
            CheckpointError: it has another form.
        """
        if not isinstance(raw, dict):
            raise CheckpointError(f"{at}: must be an object, found {_kind(raw)}")
        name = _field(raw, "ResourceName", str, f"{at}.")
        resource = self._resources.get(name)
        if resource is None:
            return None
        owner = (
            _field(raw, "PodUID", str, f"{at}."),
            _field(raw, "ContainerName", str, f"{at}."),
            name,
        )
        ids = _device_ids(raw, at)
        return _Entry(owner, resource, raw["DeviceIDs"], ids, _foreign(ids))


def _decode(text: str | bytes) -> Any:
    """Decode the file without its second half, the devices on offer, which nobody reads.

    Sound for any text: a quotation mark after a comma is not escaped.

    Raises:
        CheckpointError: it is not JSON.
    """
    content = text.encode() if isinstance(text, str) else text
    head, found, _ = content.rpartition(b',"RegisteredDevices":')
    try:
        return json.loads(head + b"}}" if found else content)
    except (ValueError, RecursionError):
        pass  # not as a kubelet writes it
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"not JSON: {error}") from error


def _device_ids(entry: Mapping[str, Any], at: str) -> frozenset[str]:
    """Add the device IDs of all NUMA nodes up (K32)."""
    by_node = _field(entry, "DeviceIDs", dict, f"{at}.")
    found: set[str] = set()
    for node, ids in by_node.items():
        if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
            raise CheckpointError(f"{at}.DeviceIDs[{quote(node)}]: must be a list of strings")
        found.update(map(sys.intern, ids))  # the same in all sources: compared at a glance
    return frozenset(found)


def _foreign(ids: frozenset[str]) -> str | None:
    """Return why these are not IDs that an agent makes; ``None`` if they are."""
    try:
        for each in sorted(ids):
            Ticket.parse(each)
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
        raise CheckpointError(f"{at}{name}: must be {_WORDS[kind]}, found {_kind(value)}")
    return value


_WORDS = {dict: "an object", str: "a string", list | None: "a list or null"}


def _kind(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    words: dict[type, str] = {dict: "an object", list: "a list", str: "a string"}
    return words.get(type(value), "a number")


class CheckpointFile:
    """Reads the file, when it is another than before. Safe to share between threads.

    Implements :class:`agent.allocator.model.ports.CheckpointSource`.
    """

    def __init__(self, kubelet_dir: Path, resources: Mapping[str, Resource]) -> None:
        """Read nothing yet.

        Args:
            kubelet_dir: the kubelet's own device plugin directory.
            resources: resource name -> resource; others in the file are passed over.
        """
        self._path = kubelet_dir / FILE_NAME
        self._parser = _Parser(resources)
        self._lock = threading.Lock()
        self._last: tuple[tuple[int, int, int, int], Checkpoint] | None = None
        self._problem = ""
        self._unreadable: tuple[str, ...] = ()

    def read(self) -> Checkpoint:
        """Return what the file says now.

        Raises:
            CheckpointError: it is not there, cannot be read, or has another form.
        """
        with self._lock:
            try:
                found = self._read()
            except CheckpointError as error:
                if not self._problem:
                    log.warning("checkpoint unreadable", extra={"reason": str(error)})
                self._problem = str(error)
                raise
            if self._problem:
                log.info("checkpoint readable again")
            self._problem = ""
            if found.unreadable != self._unreadable:
                self._unreadable = found.unreadable
                for reason in found.unreadable:
                    log.warning("checkpoint entry left out", extra={"reason": reason})
            return found

    @property
    def readable(self) -> bool:
        """Whether the file can be read; it is tried."""
        try:
            self.read()
        except CheckpointError:
            return False
        return True

    def _read(self) -> Checkpoint:
        try:
            with self._path.open("rb") as file:  # this one, whatever is renamed into its place
                status = os.fstat(file.fileno())
                identity = status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
                if self._last is None or self._last[0] != identity:
                    self._last = identity, self._parser.parse(file.read())
                return self._last[1]
        except (OSError, CheckpointError) as error:
            self._last = None
            raise CheckpointError(f"the kubelet's checkpoint {self._path}: {error}") from error
