"""Who knocks at a ticket's ``vcuda.sock``: an accept loop that knows the process at the far end.

gRPC's server cannot tell who its peers are. So this relay listens in every ticket's directory,
asks the kernel for the process that connected (``SO_PEERCRED``), and passes the bytes on to one
gRPC server, from a socket with a name that is never used twice. By that name, which the server
calls the peer, :meth:`Relay.visitor` tells the service who is calling, and at which ticket's door.

A process ID means something only while its process lives. Its container is read right after
the connection was accepted, and counts only if the process that connected was still there
afterwards: by a descriptor of that process where the kernel gives one (Linux 6.5), else by the
time at which the process with that ID was started. Before 6.5 one gap stays: a process that hands
its connection on and dies before it is accepted, while its ID goes to a process of another
container. It gains nothing: the other container does not hold this ticket, and the ticket's
limits are only ever written into the directory that the door is in.

One thread serves all doors. What a visitor can use up is bounded: bytes and seconds for one
connection, connections at one door (the next wait in the kernel's queue, so a container can
only keep itself waiting) and how often they come.
"""

import contextlib
import logging
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agent.cgroups import CgroupError, ContainerCgroup
from agent.errors import Unavailable
from agent.vcuda.doors import Door, listen, socket_identity
from agent.vcuda.peers import Presence, peer_pid

log = logging.getLogger(__name__)

_CHUNK = 16 * 1024


class Identify(Protocol):
    """Tells the container of a process."""

    def __call__(self, pid: int, /) -> ContainerCgroup | None:
        """Give the container that *pid* is in; ``None`` when it is in none, or is gone.

        Raises:
            CgroupError: what the kernel tells of it names no one container.
            Unavailable: the kernel tells nothing.
        """
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What visitors may use up.

    Attributes:
        door: connections that are served at one door at a time.
        overall: connections that are served at a time.
        bytes: what one connection may carry, either way.
        seconds: how long one may last.
        burst: connections that may come to a door at once.
        per_second: how many may come to a door in the long run.
        check: seconds between looks at whether the sockets are still there.
    """

    door: int = 4
    overall: int = 512
    bytes: int = 64 * 1024
    seconds: float = 15.0
    burst: int = 64
    per_second: float = 16.0
    check: float = 5.0


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who is at the far end of a connection.

    Attributes:
        door: where it came in.
        pid: its process, as this process numbers them.
        container: the container that process is in; ``None`` when it is in none.
    """

    door: Door
    pid: int
    container: ContainerCgroup | None


@dataclass(eq=False, slots=True)
class _Listener:
    """A door and its socket."""

    door: Door
    socket: socket.socket
    made: tuple[int, int] | None
    tokens: float
    counted: float
    served: int = 0
    listening: bool = False


@dataclass(eq=False, slots=True)
class _Side:
    """One of the two sockets of a connection, and what is on its way to it."""

    socket: socket.socket
    waiting: bytes = b""
    passed: int = 0
    ended: bool = False  # nothing more comes from it
    told: bool = False  # and the other side was told
    events: int = 0


@dataclass(eq=False, slots=True)
class _Link:
    """One connection."""

    listener: _Listener
    name: str
    ends_at: float
    sides: tuple[_Side, _Side]
    closed: bool = False


class Relay:
    """Listens at the doors and passes connections on."""

    def __init__(
        self,
        *,
        upstream: Path,
        identify: Identify,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
        token: str = "",
    ) -> None:
        """Prepare; nothing is listened to yet.

        Args:
            upstream: the gRPC server's socket, which nobody else may reach.
            identify: tells a process's container.
            limits: what visitors may use up.
            clock: seconds, monotonic.
            token: makes the names of the relay's own sockets unlike any other's; random
                unless given.
        """
        self._upstream = str(upstream)
        self._identify = identify
        self._limits = limits or Limits()
        self._clock = clock
        self._prefix = f"gpu-turnstile-{token or secrets.token_hex(8)}-"
        self._count = 0
        self._lock = threading.RLock()
        self._selector = selectors.DefaultSelector()
        self._listeners: dict[str, _Listener] = {}
        self._links: set[_Link] = set()
        self._visitors: dict[str, Visitor] = {}
        self._stopped = False
        self._running = False
        self._wake, woken = socket.socketpair()
        self._woken = woken
        woken.settimeout(0)
        self._selector.register(woken, selectors.EVENT_READ, None)

    # --- what others call ----------------------------------------------------------------

    def open(self, digest: str, folder: int) -> None:
        """Listen in a ticket's directory.

        Args:
            digest: the ticket.
            folder: a descriptor of the directory, taken over.

        Raises:
            OSError: a socket cannot be made there.
        """
        door = Door(digest, folder)
        with self._lock:
            before = self._listeners.get(digest)
            if before is not None and before.door.identity == door.identity:
                door.close()
                self._mend(before)
                return
            if self._stopped:
                door.close()
                return
            try:
                listening, made = listen(folder)
            except OSError:
                door.close()
                raise
            if before is not None:
                self._end(before)
            now = self._clock()
            listener = _Listener(door, listening, made, float(self._limits.burst), now)
            self._listeners[digest] = listener
            self._attend(listener)
        self._poke()

    def close(self, digest: str) -> None:
        """Stop listening at a door, if it is listened at."""
        with self._lock:
            listener = self._listeners.pop(digest, None)
            if listener is not None:
                self._end(listener)
        self._poke()

    def doors(self) -> tuple[Door, ...]:
        """Give the doors that are listened at."""
        with self._lock:
            return tuple(listener.door for listener in self._listeners.values())

    def visitor(self, peer: str) -> Visitor | None:
        """Tell who is behind a connection of the gRPC server.

        Args:
            peer: what its ``context.peer()`` says.
        """
        with self._lock:
            return self._visitors.get(peer.removeprefix("unix-abstract:"))

    def run(self) -> None:
        """Serve until ``stop``."""
        if not self._begin():
            return
        check_at = self._clock() + self._limits.check
        while True:
            wait = max(0.0, min(self._next_deadline(), check_at) - self._clock())
            ready = self._selector.select(min(wait, self._limits.check))
            with self._lock:
                if self._stopped:
                    break
                for key, events in ready:
                    self._serve(key.data, key.fd, events)
                now = self._clock()
                for link in [each for each in self._links if each.ends_at <= now]:
                    log.warning("a visitor took too long", extra={"ticket": _ticket(link)})
                    self._drop(link)
                if now >= check_at:
                    for listener in tuple(self._listeners.values()):
                        self._mend(listener)
                    check_at = now + self._limits.check
                for listener in self._listeners.values():
                    self._attend(listener)
        self._close()

    def _begin(self) -> bool:
        """Note that ``run`` runs, unless it was stopped before."""
        with self._lock:
            self._running = not self._stopped
            return self._running

    def stop(self) -> None:
        """End ``run``, and close everything."""
        with self._lock:
            self._stopped = True
            running = self._running
        if running:
            self._poke()
        else:
            self._close()

    # --- doors; the lock is held ---------------------------------------------------------

    def _attend(self, listener: _Listener) -> None:
        """Listen at a door exactly while another connection may be served at it."""
        wanted = (
            listener.served < self._limits.door
            and len(self._links) < self._limits.overall
            and self._tokens(listener) >= 1
        )
        if wanted and not listener.listening:
            self._selector.register(listener.socket, selectors.EVENT_READ, listener)
        elif listener.listening and not wanted:
            self._selector.unregister(listener.socket)
        listener.listening = wanted

    def _tokens(self, listener: _Listener) -> float:
        now = self._clock()
        more = (now - listener.counted) * self._limits.per_second
        listener.tokens = min(listener.tokens + more, float(self._limits.burst))
        listener.counted = now
        return listener.tokens

    def _mend(self, listener: _Listener) -> None:
        """Listen anew where the socket's file is gone, or is not ours any more."""
        try:
            with listener.door.folder() as folder:
                if not os.fstat(folder).st_nlink:  # the directory was removed
                    self._end(self._listeners.pop(listener.door.digest))
                    return
                if socket_identity(folder) == listener.made:
                    return
                listening, made = listen(folder)
        except OSError as error:
            log.warning(
                "cannot listen again",
                extra={"ticket": listener.door.digest, "reason": str(error)},
            )
            return
        log.warning("a socket was gone: made again", extra={"ticket": listener.door.digest})
        self._mute(listener)
        listener.socket.close()
        listener.socket, listener.made = listening, made
        self._attend(listener)

    def _mute(self, listener: _Listener) -> None:
        if listener.listening:
            self._selector.unregister(listener.socket)
            listener.listening = False

    def _end(self, listener: _Listener) -> None:
        self._mute(listener)
        listener.socket.close()
        for link in [each for each in self._links if each.listener is listener]:
            self._drop(link)
        listener.door.close()

    # --- connections; the lock is held ---------------------------------------------------

    def _serve(self, served: "_Listener | _Link | None", fd: int, events: int) -> None:
        if served is None:
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(_CHUNK)
        elif isinstance(served, _Listener):
            if served.listening:
                self._accept(served)
        elif not served.closed:
            near, far = served.sides
            if near.socket.fileno() != fd:
                near, far = far, near
            try:
                if events & selectors.EVENT_WRITE:
                    _send(near)
                if events & selectors.EVENT_READ:
                    self._read(near, far)
                self._pass_on(served)
            except OSError:  # one side has hung up: there is nobody to tell
                self._drop(served)

    def _accept(self, listener: _Listener) -> None:
        try:
            accepted, _ = listener.socket.accept()
        except BlockingIOError:
            return
        except OSError as error:  # out of descriptors, or the visitor hung up meanwhile
            log.warning("cannot accept", extra={"reason": str(error)})
            listener.tokens = min(listener.tokens, 0.0)  # not at once again
            return
        listener.tokens -= 1
        accepted.settimeout(0)
        try:
            visitor = self._welcome(listener.door, accepted)
            if visitor is not None:
                self._pass_in(listener, accepted, visitor)
                return
        except OSError as error:
            log.warning(
                "cannot pass a visitor on",
                extra={"ticket": listener.door.digest, "reason": str(error)},
            )
        accepted.close()

    def _pass_in(self, listener: _Listener, accepted: socket.socket, visitor: Visitor) -> None:
        """Connect a visitor to the gRPC server, which must be able to ask for it by then.

        Raises:
            OSError: no descriptors are left, or the server is not there or too busy.
        """
        self._count += 1
        name = f"{self._prefix}{self._count}"
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            ours.settimeout(0)
            ours.bind(f"\0{name}")
            self._visitors[name] = visitor
            ours.connect(self._upstream)
        except OSError:
            self._visitors.pop(name, None)
            ours.close()
            raise
        ends_at = self._clock() + self._limits.seconds
        link = _Link(listener, name, ends_at, (_Side(accepted), _Side(ours)))
        self._links.add(link)
        listener.served += 1
        self._watch(link)

    def _welcome(self, door: Door, accepted: socket.socket) -> Visitor | None:
        """Find out who a visitor is; ``None`` when it is gone, or cannot be told."""
        pid = peer_pid(accepted)
        if pid == 0:
            log.error(
                "a visitor's process is not visible from here: the agent's pod needs hostPID: true",
                extra={"ticket": door.digest},
            )
            return None
        with Presence(accepted, pid) as presence:
            container = None
            try:
                container = self._identify(pid)
            except (CgroupError, Unavailable) as error:  # in none that could be believed, then
                log.warning(
                    "a visitor's container cannot be told",
                    extra={"ticket": door.digest, "pid": pid, "reason": str(error)},
                )
            if not presence.lasts():
                log.info("a visitor was gone at once", extra={"ticket": door.digest, "pid": pid})
                return None
        return Visitor(door, pid, container)

    def _read(self, near: _Side, far: _Side) -> None:
        if near.ended or far.waiting:
            return
        try:
            data = near.socket.recv(_CHUNK)
        except BlockingIOError:
            return
        near.ended = not data
        near.passed += len(data)
        if near.passed > self._limits.bytes:
            raise ConnectionAbortedError("a visitor talks too much")
        far.waiting = data
        _send(far)

    def _pass_on(self, link: _Link) -> None:
        near, far = link.sides
        for one, other in ((near, far), (far, near)):
            if one.ended and not other.waiting and not one.told:
                other.socket.shutdown(socket.SHUT_WR)
                one.told = True
        if near.told and far.told:
            self._drop(link)
        else:
            self._watch(link)

    def _watch(self, link: _Link) -> None:
        """Read from a side only what the other has room for."""
        near, far = link.sides
        for one, other in ((near, far), (far, near)):
            events = selectors.EVENT_WRITE if one.waiting else 0
            if not one.ended and not other.waiting:
                events |= selectors.EVENT_READ
            if events == one.events:
                continue
            if not one.events:
                self._selector.register(one.socket, events, link)
            elif not events:
                self._selector.unregister(one.socket)
            else:
                self._selector.modify(one.socket, events, link)
            one.events = events

    def _drop(self, link: _Link) -> None:
        if link.closed:
            return
        link.closed = True
        self._links.discard(link)
        self._visitors.pop(link.name, None)
        link.listener.served -= 1
        for side in link.sides:
            if side.events:
                self._selector.unregister(side.socket)
                side.events = 0
            side.socket.close()

    # --- the loop ------------------------------------------------------------------------

    def _next_deadline(self) -> float:
        with self._lock:
            due = [link.ends_at for link in self._links]
            # A door that waits for its turn is looked at when it has come.
            due += [
                listener.counted + max(0.0, 1 - listener.tokens) / self._limits.per_second
                for listener in self._listeners.values()
                if listener.tokens < 1 and listener.served < self._limits.door
            ]
        return min(due, default=self._clock() + self._limits.check)

    def _poke(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake up anyway; closed: it has ended
            self._wake.send(b".", socket.MSG_DONTWAIT)

    def _close(self) -> None:
        with self._lock:
            for listener in self._listeners.values():
                self._end(listener)
            self._listeners.clear()
            self._selector.close()
            self._wake.close()
            self._woken.close()


def _send(side: _Side) -> None:
    """Send of what waits as much as there is room for."""
    with contextlib.suppress(BlockingIOError):
        if side.waiting:
            side.waiting = side.waiting[side.socket.send(side.waiting) :]


def _ticket(link: _Link) -> str:
    return link.listener.door.digest
