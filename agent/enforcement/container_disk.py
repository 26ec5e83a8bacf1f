"""The layout of containers' directories on the disk, and the translation of its errors.

::

    <root>/<digest>/owner.json    the pod for which it was made; 0600, never mounted
    <root>/<digest>/files/        0755, mounted into the container, read-only

Each directory is made under a temporary name and renamed. So an agent that is killed in between
leaves no incomplete one, only leftovers (``.new-``, ``.gone-``) that the next call removes.

Every function takes the root's descriptor; the caller holds a lock.
"""

import contextlib
import errno
import json
import logging
import os
import re
from collections.abc import Iterator

from agent.errors import EnforcementError
from agent.host import directories as folders
from agent.host.disk_errors import explain
from placement.pods import PodId

log = logging.getLogger(__name__)

FILES = "files"
"""The directory that is mounted."""

_OWNER = "owner.json"
_OWNER_BYTES = 4096
_NAME = re.compile(r"[0-9a-f]{20}\Z", re.ASCII)
_LEFTOVER = re.compile(r"\.(?:new-[0-9a-f]{20}|gone-[0-9a-f]{20}-[0-9]{1,9})\Z", re.ASCII)


def is_name(name: str) -> bool:
    """Return whether a name is that of a container's directory."""
    return _NAME.match(name) is not None


def is_leftover(name: str) -> bool:
    """Return whether a name is that of a leftover of a killed agent."""
    return _LEFTOVER.match(name) is not None


def create(root: int, digest: str, owner: PodId) -> None:
    """Make a directory for *owner*; an existing one with its path is renamed first."""
    fresh = f".new-{digest}"
    folders.remove(root, fresh)
    os.mkdir(fresh, 0o700, dir_fd=root)
    with folders.opened(fresh, root) as made:
        folders.make(FILES, made)
        write_owner(made, owner)
        os.fchmod(made, 0o711)
    move_away(root, digest)
    os.rename(fresh, digest, src_dir_fd=root, dst_dir_fd=root)


def write_owner(made: int, owner: PodId) -> None:
    """Write the owner into a directory; *made* is its descriptor."""
    written = json.dumps(owner._asdict(), sort_keys=True).encode() + b"\n"
    folders.replace(made, {_OWNER: written}, mode=0o600)


def owner_of(root: int, digest: str) -> PodId | None:
    """Read the owner of a directory; ``None`` if it is missing, incomplete, or not the agent's."""
    try:
        with folders.opened(digest, root) as made:
            with folders.opened(FILES, made):
                pass
            written = folders.read(made, _OWNER, _OWNER_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link
            return None
        raise
    return decode_owner(written) if written is not None else None


def decode_owner(data: bytes) -> PodId | None:
    """Parse an owner; ``None`` if it is invalid."""
    try:
        read = json.loads(data)
    except ValueError:
        return None
    if not isinstance(read, dict) or set(read) != set(PodId._fields):
        return None
    if not all(isinstance(each, str) for each in read.values()):
        return None
    return PodId(**read) if read["name"] and read["namespace"] else None


def move_away(root: int, digest: str) -> None:
    """Rename a container's directory; a container that has it mounted keeps it, by its inode."""
    taken = set(folders.names(root))
    if digest not in taken:
        return
    number = next(n for n in range(len(taken) + 1) if f".gone-{digest}-{n}" not in taken)
    os.rename(digest, f".gone-{digest}-{number}", src_dir_fd=root, dst_dir_fd=root)


def sweep(root: int) -> None:
    """Remove leftovers; those that cannot be removed are tried again at the next call."""
    for name in folders.names(root):
        if is_leftover(name):
            try:
                folders.remove(root, name)
            except OSError as error:
                log.warning("leftover not removed", extra={"file": name, "reason": str(error)})


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """Translate errors of the disk for a pod's author; only the log has the paths."""
    try:
        yield
    except OSError as error:
        log.error("state-dir cannot be used", extra={"doing": doing, "reason": str(error)})
        raise EnforcementError(f"state-dir: cannot {doing}: {explain(error)}") from error
