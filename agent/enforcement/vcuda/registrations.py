"""The registered containers, and the lists of their processes, which are kept up to date.

All files at a socket are written under that socket's lock. A container shares some files with its
successor (of an init container, or of a restarted one), and neither may overwrite the other's. A
container that slows this down delays only its own socket.
"""

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

from agent.enforcement.container_dirs import ContainerDirs
from agent.enforcement.vcuda.claims import Forbidden, aliases, is_container_id
from agent.enforcement.vcuda.config import (
    CONFIG_NAME,
    MOST_PIDS,
    PIDS_NAME,
    InvalidConfig,
    decode,
    decode_pids,
    encode_pids,
)
from agent.enforcement.vcuda.container_socket import ContainerSocket
from agent.errors import EnforcementError, Unavailable
from agent.host import directories as disk
from agent.runtime.cgroups import CgroupError, Cgroups, ContainerCgroup

log = logging.getLogger(__name__)

_LARGEST_FILE = 64 * 1024


@dataclass(eq=False, slots=True)
class _Registered:
    """A container whose list of processes is kept up to date."""

    container_id: str
    ref: ContainerCgroup | None
    """Its cgroups; ``None`` if an earlier agent registered it and they were not found."""
    socket: ContainerSocket
    folders: frozenset[str] = frozenset()
    """The folders with the list; the empty one is the directory itself."""
    listed: bytes = b""
    """The content of the list."""


class Registrations:
    """The registered containers. Safe to share between threads."""

    def __init__(self, dirs: ContainerDirs, processes: Cgroups) -> None:
        self._dirs = dirs
        self._processes = processes
        self._lock = threading.Lock()  # never held while something is read or written
        self._registered: dict[str, _Registered] = {}

    def add(
        self,
        ref: ContainerCgroup,
        socket: ContainerSocket,
        folders: frozenset[str],
        config: bytes,
    ) -> None:
        """Write a proven container's files at its socket, and keep its process list up to date.

        The container reads *folders*; the empty one is the directory itself.

        Raises:
            Forbidden: it has ended, or its processes are not visible to the agent.
            Unavailable: the kernel does not return them.
            EnforcementError: the files cannot be written.
        """
        with socket.writing:
            # Check this first: a late request of a container that has ended must not take the
            # shared files from its successor.
            try:
                listed = self._list(ref)
            except CgroupError as error:
                raise Forbidden(str(error)) from error
            if not listed:
                raise Forbidden("its container has ended")
            registered = self._take_over(ref, socket, folders)
            self._write(socket, folders, {PIDS_NAME: listed, CONFIG_NAME: config})
            registered.listed = listed

    def recover(self, socket: ContainerSocket) -> None:
        """Restore the containers that an earlier agent registered at a socket.

        Raises:
            EnforcementError: the disk returns an error.
        """
        try:
            with socket.folder() as folder:
                names = disk.names(folder)
                found = [
                    self._recover(folder, name, socket, names)
                    for name in names
                    if is_container_id(name)
                ]
        except OSError as error:
            raise EnforcementError("state-dir: cannot read the limits of a container") from error
        with self._lock:
            for each in found:
                self._registered.setdefault(each.container_id, each)

    def refresh(self, ended: Callable[[str], bool]) -> None:
        """Update all lists; remove containers for which *ended* is true.

        *ended* may raise ``Unavailable``; the remaining containers are checked at the next call.
        """
        with self._lock:
            for each in [each for each in self._registered.values() if each.socket.closed]:
                del self._registered[each.container_id]
            registered = tuple(self._registered.values())
        # Calls to the runtime come last: without it running containers are still listed.
        for each in [each for each in registered if not self._relist(each)]:
            try:
                if ended(each.container_id):
                    self._forget(each)
            except (
                EnforcementError
            ) as error:  # retried at the next call, or removed with the socket
                log.warning(
                    "files of an ended container not removed", extra=_log_fields(each, error)
                )
            except Unavailable as error:  # the calls for the others would fail, too
                log.warning("ended containers not known", extra=_log_fields(each, error))
                return

    # --- steps ---------------------------------------------------------------------------

    def _take_over(
        self, ref: ContainerCgroup, socket: ContainerSocket, folders: frozenset[str]
    ) -> _Registered:
        """Register a container; the socket's lock is held.

        It gets the folders that it shares with earlier containers at the socket, which have ended.
        """
        shared = folders - {ref.container_id}
        with self._lock:
            held = self._registered.get(ref.container_id)
            if held is None or held.socket is not socket:
                held = _Registered(ref.container_id, ref, socket)
                self._registered[ref.container_id] = held
            for other in self._registered.values():
                if other.socket is socket:
                    other.folders -= shared
            held.ref = ref
            held.folders |= folders
        return held

    def _recover(
        self, folder: int, container_id: str, socket: ContainerSocket, names: Collection[str]
    ) -> _Registered:
        registered = _Registered(container_id, None, socket, aliases(container_id) & set(names))
        try:
            with disk.opened(container_id, folder) as inside:
                pids = decode_pids(disk.read(inside, PIDS_NAME, _LARGEST_FILE) or b"")
                config = decode(disk.read(inside, CONFIG_NAME, _LARGEST_FILE) or b"")
        except (InvalidConfig, OSError):  # incompletely written: the container will register again
            return registered
        for pid in pids:
            try:
                ref = self._processes.container_of(pid)
            except (CgroupError, Unavailable):  # another process may have the ID by now
                continue
            if ref is not None and ref.container_id == container_id:
                registered.ref = ref
                if config.container_name in names:  # it had registered by its name, and still runs
                    registered.folders |= {"", config.container_name}
                break
        return registered

    def _relist(self, registered: _Registered) -> bool:
        """Update a container's list; return whether it has processes or may have some."""
        try:
            with registered.socket.writing:
                if registered.ref is None:
                    return False
                listed = self._list(registered.ref)
                if listed and listed != registered.listed:
                    self._write(registered.socket, registered.folders, {PIDS_NAME: listed})
                    registered.listed = listed
                return bool(listed)
        except (CgroupError, EnforcementError, Unavailable) as error:  # retried at the next call
            log.warning("process list not updated", extra=_log_fields(registered, error))
            return True

    def _forget(self, registered: _Registered) -> None:
        with registered.socket.writing:
            with self._lock:
                held = self._registered.get(registered.container_id) is registered
                own = {each or PIDS_NAME for each in registered.folders}
            if held:
                with registered.socket.folder() as folder:
                    self._dirs.discard(folder, own)
                with self._lock:
                    self._registered.pop(registered.container_id)

    def _list(self, ref: ContainerCgroup) -> bytes:
        pids = sorted(self._processes.pids_of(ref))
        if len(pids) > MOST_PIDS:
            log.warning(
                "a container has more processes than vcuda-controller reads",
                extra={"container_id": ref.container_id, "count": len(pids)},
            )
        return encode_pids(pids[:MOST_PIDS])

    def _write(
        self, socket: ContainerSocket, folders: Collection[str], files: dict[str, bytes]
    ) -> None:
        with socket.folder() as folder:
            for each in sorted(folders):
                self._dirs.write(folder, each, files)


def _log_fields(registered: _Registered, error: Exception) -> dict[str, object]:
    return {"container_id": registered.container_id, "reason": str(error)}
