"""Who is at the far end of a connection: its process, and the container that this is in.

A process ID means something only while its process lives. Its container is read right after
the connection was accepted, and counts only if the process that connected was still there
afterwards: by a descriptor of that process where the kernel gives one (Linux 6.5), else by the
time at which the process with that ID was started. Before 6.5 one gap stays: a process that hands
its connection on and dies before it is accepted, while its ID goes to a process of another
container. It gains nothing: the other container does not hold this ticket, and the ticket's
limits are only ever written into the directory that the socket is in.
"""

import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass

from agent.enforcement.vcuda.peers import Presence, peer_pid
from agent.enforcement.vcuda.ticket_sockets import TicketSocket
from agent.errors import Unavailable
from agent.runtime.cgroups import CgroupError, ContainerCgroup

log = logging.getLogger(__name__)


Identify = Callable[[int], ContainerCgroup | None]
"""Tells the container of a process: :meth:`agent.runtime.cgroups.Cgroups.container_of`."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the far end of a connection."""

    ticket_socket: TicketSocket
    """Where it came in."""
    pid: int
    """Its process, as this process numbers them."""
    container: ContainerCgroup | None
    """The container that process is in."""


def identify_peer(
    ticket_socket: TicketSocket, accepted: socket.socket, identify: Identify
) -> Peer | None:
    """Find out who a peer is; ``None`` when it is gone, or cannot be told.

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
        except (CgroupError, Unavailable) as error:  # in none that could be believed, then
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
