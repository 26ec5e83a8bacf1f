"""The socket in one container's directory, and the open descriptor of that directory.

Every path is relative to the descriptor. If another directory takes the path, files for a peer are
still written into the directory where that peer connected.
"""

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from agent.errors import EnforcementError

_SOCKET = "vcuda.sock"
_BESIDE = ".vcuda.sock.new"
_QUEUE = 128


class ContainerSocket:
    """One container's listening socket and its directory."""

    def __init__(self, digest: str, folder: int) -> None:
        """Listen in *folder*, a descriptor of the directory, which this object closes.

        Raises:
            OSError: a socket cannot be made there; *folder* is closed.
        """
        self.digest = digest
        self.writing = threading.Lock()
        """The lock for writing files that its peers read."""
        self.closed = False
        """Whether the directory's descriptor is closed."""
        self._folder = folder
        self._lock = threading.Lock()
        try:
            self.listening = _listen(folder)
            self._made = _identity(folder)
        except OSError:
            os.close(folder)
            raise

    def listens_in(self, folder: int) -> bool:
        """Return whether the socket in that directory is the one that this object made."""
        return _identity(folder) == self._made

    @contextlib.contextmanager
    def folder(self) -> Iterator[int]:
        """Duplicate the directory's descriptor for a ``with`` block; it outlives the socket.

        Raises:
            EnforcementError: another container has the devices now, or the process has too many
                open files.
        """
        with self._lock:
            if self.closed:
                raise EnforcementError("this container's directory is not in use any more")
            try:
                lent = os.dup(self._folder)
            except OSError as error:
                why = os.strerror(error.errno or 0)
                raise EnforcementError(f"state-dir: cannot be opened: {why}") from error
        try:
            yield lent
        finally:
            os.close(lent)

    def close(self) -> None:
        """Stop listening, and close the directory."""
        self.listening.close()
        self.stop_lending()

    def stop_lending(self) -> None:
        """Close the directory's descriptor: no new files are written for the peers."""
        with self._lock:
            if not self.closed:
                self.closed = True
                os.close(self._folder)


def _listen(folder: int) -> socket.socket:
    """Bind a temporary name and rename it, so a peer finds the old socket or the new one.

    The path is that of the descriptor in ``/proc``, since a socket's path may have only 107 bytes.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(0)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_BESIDE, dir_fd=folder)
        made.bind(f"/proc/self/fd/{folder}/{_BESIDE}")
        path = os.open(_BESIDE, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
        try:
            # Connecting needs write permission on the socket; its folder is not writable.
            Path(f"/proc/self/fd/{path}").chmod(0o666)
        finally:
            os.close(path)
        made.listen(_QUEUE)
        os.rename(_BESIDE, _SOCKET, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        made.close()
        raise
    return made


def _identity(folder: int) -> tuple[int, int] | None:
    try:
        status = os.stat(_SOCKET, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return (status.st_ino, status.st_ctime_ns) if stat.S_ISSOCK(status.st_mode) else None
