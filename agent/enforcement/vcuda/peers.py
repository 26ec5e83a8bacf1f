"""Which process is at the far end of a unix socket, and whether it still is."""

import errno
import os
import select
import socket
import struct
from pathlib import Path
from typing import Self

_SO_PEERPIDFD = 77  # asm-generic/socket.h, Linux 6.5; Python has no name for it
_UCRED = struct.Struct("iII")


def peer_pid(connection: socket.socket) -> int:
    """Return the process at the far end; 0 when it cannot be seen from this PID namespace."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, _uid, _gid = _UCRED.unpack(raw)
    return int(pid)


class Presence:
    """Whether the process that connected is still the one that has its ID.

    By a descriptor of that process where the kernel gives one; before Linux 6.5 by the time at
    which the process with that ID was started.
    """

    def __init__(self, connection: socket.socket, pid: int, *, proc: Path = Path("/proc")) -> None:
        """Take hold of the process that connected; *pid* is what ``peer_pid`` gave."""
        self._stat = proc / str(pid) / "stat"
        self._pidfd = -1
        self._gone = False
        try:
            raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4)
            self._pidfd = int.from_bytes(raw, "little", signed=True)
        except OSError as error:  # a kernel that can, and still does not: the process is gone
            self._gone = error.errno != errno.ENOPROTOOPT
        self._started = _started(self._stat)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)

    def lasts(self) -> bool:
        """Return whether what was read about the process meanwhile was read about that process."""
        if self._pidfd >= 0:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)  # readable once it has ended
            self._gone = self._gone or bool(poll.poll(0))
        return not self._gone and bool(self._started) and _started(self._stat) == self._started


def _started(file: Path) -> str:
    """Return when a process was started, in the kernel's ticks; empty when it does not live."""
    try:
        text = file.read_bytes()
    except OSError:
        return ""
    fields = text.rpartition(b")")[2].split()  # the name before may hold anything
    return fields[19].decode() if len(fields) > 19 and fields[0] not in {b"Z", b"X"} else ""
