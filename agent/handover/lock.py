"""The lock that says which of a node's agents serves."""

import fcntl
import os
from pathlib import Path

FOLDER = "gpu-turnstile"
"""Below the plugin directory. A kubelet that starts clears the directory of files, not folders."""
LOCK = "lock"
_MODE = 0o700


def folder_of(plugin_dir: Path) -> Path:
    """Return the folder in which agents of one node meet."""
    return plugin_dir / FOLDER


class ServingLock:
    """An exclusive lock on a file, held until every process that has it has closed it.

    It belongs to the open file, so it can be handed to another process with that.
    """

    def __init__(self, descriptor: int) -> None:
        """Take over *descriptor*, which holds the lock."""
        self._descriptor = descriptor

    @classmethod
    def try_take(cls, folder: Path) -> "ServingLock | None":
        """Take the lock; ``None`` while another process holds it.

        Raises:
            OSError: the folder cannot be made, or the file not be opened.
        """
        folder.mkdir(mode=_MODE, exist_ok=True)
        path = folder / LOCK
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        taken = cls(descriptor)
        if not taken.covers(folder):  # removed in between: it would exclude nobody
            taken.release()
            return None
        return taken

    @property
    def descriptor(self) -> int:
        """The open file, to be handed on."""
        return self._descriptor

    def covers(self, folder: Path) -> bool:
        """Return whether the file that is locked is still the one that others would lock."""
        try:
            there = (folder / LOCK).stat()
        except OSError:
            return False
        held = os.fstat(self._descriptor)
        return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)

    def release(self) -> None:
        """Close the file; the lock is free once nobody else has it open."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
