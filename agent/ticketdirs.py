"""The directories of tickets: what a container with certain core places finds mounted.

::

    <root>/<digest>/owner.json    which pod it was made for; 0600, never mounted
    <root>/<digest>/files/        0755, mounted into the container, read-only

The name follows from the core places alone, so that an agent whose disk was wiped makes the
same path again, the one that the kubelet remembers (fact K12). A directory that another pod
had is moved away before a fresh one takes its place: bind mounts follow the inode, so a
container that lingers never sees what belongs to its successor.

Everything is made beside its place and renamed to it, so that whoever is killed in between
leaves nothing half made, only leftovers (``.new-``, ``.gone-``) that the next call removes.
Names below the root are opened by their folder and never followed where they are links.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import shutil
import stat
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.errors import EnforcementError
from agent.podview import PodId

log = logging.getLogger(__name__)

_FILES, _OWNER = "files", "owner.json"
_NAME = re.compile(r"[0-9a-f]{20}\Z", re.ASCII)
_LEFTOVER = re.compile(r"\.(?:new-[0-9a-f]{20}|gone-[0-9a-f]{20}-[0-9]{1,9})\Z", re.ASCII)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNER_BYTES = 4096

_ADVICE = {
    errno.ENOSPC: "the node's admin must free space there",
    errno.EDQUOT: "the node's admin must free space there",
    errno.EROFS: "the node's admin must put it on a file system that can be written",
    errno.EACCES: "the node's admin must let the agent write there",
    errno.EPERM: "the node's admin must let the agent write there",
    errno.ENAMETOOLONG: "the node's admin must set a shorter path",
}


def digest_of(ids: Collection[str]) -> str:
    """Name the directory of these core places: 80 bits, the same in any order."""
    text = "\n".join(sorted(ids))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@dataclass(frozen=True, slots=True, order=True)
class TicketDir:
    """One ticket's directory.

    Attributes:
        digest: its name.
        owner: the pod it was made for; the UID is empty where nobody knew it.
        files: the path that is mounted.
    """

    digest: str
    owner: PodId
    files: Path


class TicketDirs:
    """All tickets' directories below one root. Safe to share between threads."""

    def __init__(self, root: Path) -> None:
        """Keep directories below *root*; nothing is made yet."""
        self._root = root
        self._lock = threading.Lock()

    # --- making ------------------------------------------------------------------------

    def make(self, ids: Collection[str], owner: PodId) -> TicketDir:
        """Make the directory of *ids* for a pod that is being admitted.

        The one that is there is kept if it was made for this very pod (an init container's
        places are handed on, fact K7). Where a UID is not known the pod may be another of the
        same name: then it is made anew, since nothing of a pod runs while it is admitted.

        Raises:
            EnforcementError: the disk does not let us.
        """
        return self._settle(ids, owner, lambda held: bool(owner.uid) and held == owner)

    def ensure(self, ids: Collection[str], owner: PodId) -> TicketDir:
        """Make the directory of *ids* unless *owner*, who is about to start, has it.

        Raises:
            EnforcementError: the disk does not let us.
        """
        return self._settle(ids, owner, lambda held: _same(held, owner))

    def find(self, ids: Collection[str]) -> TicketDir | None:
        """Give the directory of *ids* as it is; ``None`` when there is none.

        Raises:
            EnforcementError: the disk does not let us.
        """
        digest = digest_of(ids)
        with self._lock, self._opened("read") as root:
            owner = _owner_of(root, digest)
            return self._at(digest, owner) if owner is not None else None

    def owner(self, digest: str) -> PodId | None:
        """Give whose a directory is; ``None`` when there is none of that name.

        Raises:
            EnforcementError: the disk does not let us.
        """
        with self._lock, self._opened("read") as root:
            return _owner_of(root, digest)

    def adopt(self, digest: str, owner: PodId) -> None:
        """Write down who a directory belongs to, proven after it was made by a guess.

        Raises:
            EnforcementError: the disk does not let us.
        """
        with self._lock, self._opened("write") as root:
            held = _owner_of(root, digest)
            if held is not None and held != owner:
                self._write_owner(root, digest, owner)

    # --- keeping -----------------------------------------------------------------------

    def all(self) -> tuple[TicketDir, ...]:
        """Give every directory, by name.

        Raises:
            EnforcementError: the disk does not let us.
        """
        with self._lock, self._opened("read") as root:
            return self._list(root)

    def keep(self, pods: Collection[PodId]) -> tuple[TicketDir, ...]:
        """Remove the directories of other pods than these; give those removed.

        An owner whose UID is not known is among them by its namespace and name.

        Raises:
            EnforcementError: the disk does not let us.
        """
        known = frozenset(pods)
        names = {pod.key for pod in known}
        unsure = {pod.key for pod in known if not pod.uid}
        with self._lock, self._opened("clean") as root:
            gone = tuple(
                each
                for each in self._list(root)
                if each.owner not in known
                and each.owner.key not in (unsure if each.owner.uid else names)
            )
            for each in gone:
                _move_away(root, each.digest)
            _sweep(root)
        return gone

    def clean(self) -> None:
        """Remove leftovers of an agent that was killed, and directories that nobody can own.

        What is not named like ours is left alone.

        Raises:
            EnforcementError: the disk does not let us.
        """
        with self._lock, self._opened("clean") as root:
            for name in _names(root):
                if _NAME.match(name) and _owner_of(root, name) is None:
                    log.warning("removing a ticket directory that has no owner: %s", name)
                    _move_away(root, name)
                elif not _NAME.match(name) and not _LEFTOVER.match(name):
                    log.warning("not ours, left alone: %s", name)
            _sweep(root)

    # --- what is inside ----------------------------------------------------------------

    def open(self, digest: str) -> int:
        """Open what is mounted of one directory.

        Returns:
            A descriptor that stays with this very directory when another takes its path.

        Raises:
            EnforcementError: there is none, or the disk does not let us.
        """
        with self._lock, self._opened("read") as root:
            if not _NAME.match(digest) or _owner_of(root, digest) is None:
                raise EnforcementError(
                    "state-dir: the directory of this container's limits is gone: "
                    "the agent's log tells more"
                )
            with _folder(digest, root) as folder:
                return os.open(_FILES, _FOLDER, dir_fd=folder)

    def write(self, folder: int, inside: str, files: Mapping[str, bytes]) -> None:
        """Replace *files* in a directory that ``open`` gave, each at once.

        Args:
            folder: the descriptor.
            inside: a folder in it, made where it is missing; empty for the directory itself.
            files: content by name.

        Raises:
            EnforcementError: the disk does not let us, or the directory is gone.
        """
        with self._lock, _translated("write the limits of this container"):
            if not inside:
                _replace(folder, files)
                return
            with contextlib.suppress(FileExistsError):
                os.mkdir(inside, 0o755, dir_fd=folder)
            with _folder(inside, folder) as inner:
                os.fchmod(inner, 0o755)  # whatever the umask
                _replace(inner, files)

    def discard(self, folder: int, names: Collection[str]) -> None:
        """Remove files, or folders with what is in them, of a directory that ``open`` gave.

        Raises:
            EnforcementError: the disk does not let us.
        """
        with self._lock, _translated("remove the limits of a container"):
            for name in sorted(names):
                _remove(folder, name)

    # --- steps; the lock is held ---------------------------------------------------------

    def _settle(
        self, ids: Collection[str], owner: PodId, keeps: Callable[[PodId], bool]
    ) -> TicketDir:
        digest = digest_of(ids)
        with self._lock, self._opened("make") as root:
            held = _owner_of(root, digest)
            if held is not None and keeps(held):
                if owner.uid and not held.uid:
                    self._write_owner(root, digest, owner)
                    held = owner
                return self._at(digest, held)
            fresh = f".new-{digest}"
            _remove(root, fresh)
            os.mkdir(fresh, 0o700, dir_fd=root)
            with _folder(fresh, root) as made:
                os.mkdir(_FILES, 0o755, dir_fd=made)
                with _folder(_FILES, made) as files:
                    os.fchmod(files, 0o755)  # whatever the umask
                _replace(made, {_OWNER: _encode(owner)}, mode=0o600)
                os.fchmod(made, 0o711)
            _move_away(root, digest)
            os.rename(fresh, digest, src_dir_fd=root, dst_dir_fd=root)
            _sweep(root)
        return self._at(digest, owner)

    def _write_owner(self, root: int, digest: str, owner: PodId) -> None:
        with _folder(digest, root) as folder:
            _replace(folder, {_OWNER: _encode(owner)}, mode=0o600)

    def _list(self, root: int) -> tuple[TicketDir, ...]:
        found = []
        for name in _names(root):
            owner = _owner_of(root, name) if _NAME.match(name) else None
            if owner is not None:
                found.append(self._at(name, owner))
        return tuple(found)

    def _at(self, digest: str, owner: PodId) -> TicketDir:
        return TicketDir(digest, owner, self._root / digest / _FILES)

    @contextlib.contextmanager
    def _opened(self, doing: str) -> Iterator[int]:
        """Open the root, made where it is missing; it may be a link: it is the admin's."""
        with _translated(f"{doing} the directory of a container's limits"):
            self._root.mkdir(mode=0o755, parents=True, exist_ok=True)
            root = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                yield root
            finally:
                os.close(root)


def _same(held: PodId, pod: PodId) -> bool:
    """Whether a directory's owner may be *pod*: a UID that one of them lacks is no difference."""
    return held.key == pod.key and (held.uid == pod.uid or not held.uid or not pod.uid)


@contextlib.contextmanager
def _translated(doing: str) -> Iterator[None]:
    """Tell a pod's author what the disk did not let us, without paths; the log has them."""
    try:
        yield
    except OSError as error:
        log.error("cannot %s", doing, extra={"reason": str(error)})
        why = os.strerror(error.errno) if error.errno else "it did not work"
        advice = _ADVICE.get(error.errno or 0, "the agent's log tells more")
        raise EnforcementError(f"state-dir: cannot {doing}: {why}: {advice}") from error


# --- below the root: names by their folder's descriptor, no links followed ------------------


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries)


@contextlib.contextmanager
def _folder(name: str, parent: int) -> Iterator[int]:
    opened = os.open(name, _FOLDER, dir_fd=parent)
    try:
        yield opened
    finally:
        os.close(opened)


def _encode(owner: PodId) -> bytes:
    return json.dumps(owner._asdict(), sort_keys=True).encode() + b"\n"


def _decode(data: bytes) -> PodId | None:
    """Read an owner; ``None`` when it does not parse."""
    try:
        read = json.loads(data)
    except ValueError:
        return None
    if not isinstance(read, dict) or set(read) != set(PodId._fields):
        return None
    if not all(isinstance(each, str) for each in read.values()):
        return None
    return PodId(**read) if read["name"] and read["namespace"] else None


def _owner_of(root: int, digest: str) -> PodId | None:
    """Read whose a directory is; ``None`` when it is not there, not whole, or not ours."""
    try:
        with _folder(digest, root) as folder:
            with _folder(_FILES, folder):
                pass
            file = os.open(_OWNER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    return None
                return _decode(os.read(file, _OWNER_BYTES))
            finally:
                os.close(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:  # a link, or a socket
            return None
        raise


def _replace(folder: int, files: Mapping[str, bytes], mode: int = 0o644) -> None:
    """Write each file beside its place and rename it there: readers see the old or the new."""
    for name, data in files.items():
        beside = f".{name}.new"
        _remove(folder, beside)
        file = os.open(beside, _NEW, mode, dir_fd=folder)
        try:
            os.fchmod(file, mode)  # whatever the umask
            left = memoryview(data)
            while left:
                left = left[os.write(file, left) :]
        finally:
            os.close(file)
        try:
            os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
        except IsADirectoryError:  # nothing of ours: a file is what belongs here
            _remove(folder, name)
            os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)


def _move_away(root: int, digest: str) -> None:
    """Free a ticket's path: what is there keeps its inode, and whoever has it mounted."""
    taken = set(_names(root))
    if digest not in taken:
        return
    number = next(n for n in range(len(taken) + 1) if f".gone-{digest}-{n}" not in taken)
    os.rename(digest, f".gone-{digest}-{number}", src_dir_fd=root, dst_dir_fd=root)


def _sweep(root: int) -> None:
    """Remove leftovers; one that cannot be removed now is tried again at the next call."""
    for name in _names(root):
        if _LEFTOVER.match(name):
            try:
                _remove(root, name)
            except OSError as error:
                log.warning("a leftover stays", extra={"name_": name, "reason": str(error)})


def _remove(folder: int, name: str) -> None:
    """Remove whatever has that name, if anything has; a link itself, not what it names."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            shutil.rmtree(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
