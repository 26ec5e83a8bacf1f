"""The peer of a connection: its process, and the container of that process.

A process ID means something only while its process lives. Its container is read right after
the connection was accepted, and counts only if the process that connected was still there
afterwards: by a descriptor of that process where the kernel gives one (Linux 6.5), else by the
time at which the process with that ID was started. Before 6.5 one gap stays: a process that hands
its connection on and dies before it is accepted, while its ID goes to a process of another
container. It gains nothing: the other container does not hold this ticket, and the ticket's
limits are only ever written into the directory that the socket is in.
"""

import errno
import logging
import os
import select
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from agent.enforcement.vcuda.ticket_sockets import TicketSocket
from agent.errors import Unavailable
from agent.runtime.cgroups import CgroupError, ContainerCgroup

log = logging.getLogger(__name__)

_SO_PEERPIDFD = 77  # asm-generic/socket.h, Linux 6.5; Python has no name for it
_UCRED = struct.Struct("iII")

Identify = Callable[[int], ContainerCgroup | None]
"""Tells the container of a process: :meth:`agent.runtime.cgroups.Cgroups.container_of`."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The peer of a connection."""

    ticket_socket: TicketSocket
    """Where it came in."""
    pid: int
    """Its process, as this process numbers them."""
    container: ContainerCgroup | None
    """The container that process is in."""


def identify_peer(
    ticket_socket: TicketSocket, accepted: socket.socket, identify: Identify
) -> Peer | None:
    """Return the peer of a connection; ``None`` when it is gone or cannot be identified.

    Raises:
        OSError: the kernel does not tell its process.
    """
    pid = peer_pid(accepted)
    if pid == 0:
        log.error(
            "a peer's process is not visible from here: the agent's pod needs hostPID: true",
            extra={"ticket": ticket_socket.digest},
        )
        return None
    with Presence(accepted, pid) as presence:
        container = None
        try:
            container = identify(pid)
        except (CgroupError, Unavailable) as error:
            log.warning(
                "a peer's container cannot be told",
                extra={"ticket": ticket_socket.digest, "peer_pid": pid, "reason": str(error)},
            )
        if not presence.lasts():
            log.info(
                "a peer was gone at once", extra={"ticket": ticket_socket.digest, "peer_pid": pid}
            )
            return None
    return Peer(ticket_socket, pid, container)


def peer_pid(connection: socket.socket) -> int:
    """Return the process at the far end; 0 when it cannot be seen from this PID namespace."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, _uid, _gid = _UCRED.unpack(raw)
    return int(pid)


class Presence:
    """Whether the process that connected is still the one that has its ID."""

    def __init__(self, connection: socket.socket, pid: int, *, proc: Path = Path("/proc")) -> None:
        """Open the process that connected; *pid* is what ``peer_pid`` returned."""
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
        """Return whether the process has lived since this was made."""
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
