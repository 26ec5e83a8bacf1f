"""One relayed connection: two sockets, and the bytes on their way from one to the other.

It is driven by a selector's events and never waits. Of either side it reads only what the
other has room for, so a peer that does not listen holds nobody up.
"""

import contextlib
import selectors
import socket
from dataclasses import dataclass

_CHUNK = 16 * 1024


def connect(upstream: str, name: str) -> socket.socket:
    """Connect to a server, which sees *name* (an abstract one) as its peer's.

    Raises:
        OSError: no descriptors are left, or the server is not there or too busy.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(0)
        made.bind(f"\0{name}")
        made.connect(upstream)
    except OSError:
        made.close()
        raise
    return made


@dataclass(eq=False, slots=True)
class _Side:
    """One of the two sockets of a connection, and what is on its way to it."""

    socket: socket.socket
    waiting: bytes = b""
    passed: int = 0
    ended: bool = False  # nothing more comes from it
    told: bool = False  # and the other side was told
    events: int = 0

    def send(self) -> None:
        """Send of what waits as much as there is room for."""
        with contextlib.suppress(BlockingIOError):
            if self.waiting:
                self.waiting = self.waiting[self.socket.send(self.waiting) :]


class Link:
    """One connection. The selector's keys carry it as their data."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        sockets: tuple[socket.socket, socket.socket],
        *,
        name: str,
        ends_at: float,
        most: int,
    ) -> None:
        """Pass on what comes, from now on.

        The *sockets*, which do not block, are taken over. *name* is what the server sees; when
        it *ends_at* is for its owner to mind. It may carry *most* bytes either way.

        Raises:
            OSError: the sockets cannot be waited for; they are closed.
        """
        self.name = name
        self.ends_at = ends_at
        self.closed = False
        self._selector = selector
        self._sides = _Side(sockets[0]), _Side(sockets[1])
        self._most = most
        try:
            self._watch()
        except OSError:
            self.close()
            raise

    def serve(self, fd: int, events: int) -> bool:
        """Do what can be done at a socket of which the selector tells; return whether it goes on.

        Raises:
            OSError: one side has hung up, or has said more than it may.
        """
        near, far = self._sides
        if near.socket.fileno() != fd:
            near, far = far, near
        if events & selectors.EVENT_WRITE:
            near.send()
        if events & selectors.EVENT_READ:
            self._read(near, far)
        for one, other in ((near, far), (far, near)):
            if one.ended and not other.waiting and not one.told:
                other.socket.shutdown(socket.SHUT_WR)
                one.told = True
        if near.told and far.told:
            return False
        self._watch()
        return True

    def close(self) -> None:
        """Hang up on both sides."""
        self.closed = True
        for side in self._sides:
            if side.events:
                self._selector.unregister(side.socket)
                side.events = 0
            side.socket.close()

    def _read(self, near: _Side, far: _Side) -> None:
        if near.ended or far.waiting:
            return
        try:
            data = near.socket.recv(_CHUNK)
        except BlockingIOError:
            return
        near.ended = not data
        near.passed += len(data)
        if near.passed > self._most:
            raise ConnectionAbortedError("a peer talks too much")
        far.waiting = data
        far.send()

    def _watch(self) -> None:
        """Wait for what can be read and passed on, and for room where there is none."""
        near, far = self._sides
        for one, other in ((near, far), (far, near)):
            events = selectors.EVENT_WRITE if one.waiting else 0
            if not one.ended and not other.waiting:
                events |= selectors.EVENT_READ
            if events == one.events:
                continue
            if not one.events:
                self._selector.register(one.socket, events, self)
            elif not events:
                self._selector.unregister(one.socket)
            else:
                self._selector.modify(one.socket, events, self)
            one.events = events
