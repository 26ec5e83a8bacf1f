"""A ticket's socket: its directory, held open, and the socket in it.

Everything about a socket goes by the descriptor of its directory. When another directory takes
the path, what is written for a peer still lands where that peer came in.
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


class TicketSocket:
    """One ticket's socket, listened at, and the directory that it is in."""

    def __init__(self, digest: str, folder: int) -> None:
        """Listen in *folder*, a descriptor of the directory, which is taken over.

        Raises:
            OSError: a socket cannot be made there; *folder* is closed.
        """
        self.digest = digest
        self.writing = threading.Lock()
        """Held by whoever writes what its peers read."""
        self._folder = folder
        self._lock = threading.Lock()
        self._open = True
        try:
            self.listening, self._made = _listen(folder)
        except OSError:
            os.close(folder)
            raise

    def listens_in(self, folder: int) -> bool:
        """Return whether the socket in that directory is the one that was made here."""
        return _identity(folder) == self._made

    @contextlib.contextmanager
    def folder(self) -> Iterator[int]:
        """Lend a descriptor of the directory; it outlives the socket.

        Raises:
            EnforcementError: the ticket has ended, or no descriptors are left.
        """
        with self._lock:
            if not self._open:
                raise EnforcementError("this container's ticket has ended")
            try:
                lent = os.dup(self._folder)
            except OSError as error:
                why = os.strerror(error.errno or 0)
                raise EnforcementError(f"state-dir: cannot be opened: {why}") from error
        try:
            yield lent
        finally:
            os.close(lent)

    @property
    def closed(self) -> bool:
        """Whether the ticket has ended."""
        return not self._open

    def close(self) -> None:
        """Stop listening, and close the directory."""
        self.listening.close()
        with self._lock:
            if self._open:
                self._open = False
                os.close(self._folder)


def _listen(folder: int) -> tuple[socket.socket, tuple[int, int] | None]:
    """Bind another name and rename: whoever connects meets the old socket or the new.

    By way of the descriptor, since a socket's path has room for 107 bytes only.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(0)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_BESIDE, dir_fd=folder)
        made.bind(f"/proc/self/fd/{folder}/{_BESIDE}")
        path = os.open(_BESIDE, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
        try:
            # Connecting takes the right to write to the socket; its folder nobody may write to.
            Path(f"/proc/self/fd/{path}").chmod(0o666)
        finally:
            os.close(path)
        made.listen(_QUEUE)
        os.rename(_BESIDE, _SOCKET, src_dir_fd=folder, dst_dir_fd=folder)
        return made, _identity(folder)
    except OSError:
        made.close()
        raise


def _identity(folder: int) -> tuple[int, int] | None:
    try:
        status = os.stat(_SOCKET, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return (status.st_ino, status.st_ctime_ns) if stat.S_ISSOCK(status.st_mode) else None
