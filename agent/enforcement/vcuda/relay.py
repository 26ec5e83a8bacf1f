"""The way from the tickets' ticket sockets to the gRPC server, on which it is noted who comes.

gRPC's server cannot tell who its peers are. So this relay listens in every ticket's directory,
asks the kernel for the process that connected, and passes the bytes on to one gRPC server, from
a socket with a name that is never used twice. By that name, which the server calls the peer,
:meth:`Relay.peer` tells the service who is calling, and at which ticket's socket.

One thread serves all ticket sockets. What a peer can use up is bounded: bytes and seconds for
one connection, connections at one socket (the next wait in the kernel's queue, so a container
can only keep itself waiting) and at all ticket sockets of a pod, and how often they come.
"""

import contextlib
import logging
import secrets
import selectors
import socket
import threading
import time
from pathlib import Path

from agent.enforcement.vcuda.identification import Identify, Peer, identify_peer
from agent.enforcement.vcuda.limits import Account, Limits
from agent.enforcement.vcuda.links import Link, connect
from agent.enforcement.vcuda.listeners import Listener
from agent.enforcement.vcuda.shares import Shares
from agent.enforcement.vcuda.ticket_sockets import TicketSocket

log = logging.getLogger(__name__)


class Relay:
    """Listens at the ticket sockets and passes connections on."""

    def __init__(
        self,
        *,
        upstream: Path,
        identify: Identify,
        limits: Limits,
    ) -> None:
        """Prepare; nothing is listened to yet. Nobody else may reach *upstream*."""
        self._upstream = str(upstream)
        self._identify = identify
        self._limits = limits
        self._shares = Shares(limits)
        self._prefix = f"gpu-turnstile-{secrets.token_hex(8)}-"
        self._count = 0
        self._lock = threading.RLock()
        self._selector = selectors.DefaultSelector()
        self._listeners: dict[str, Listener] = {}
        self._links: dict[Link, Listener] = {}
        self._peers: dict[str, Peer] = {}
        self._stopped = False
        self._running = False
        self._wake, self._woken = socket.socketpair()
        self._woken.settimeout(0)
        self._selector.register(self._woken, selectors.EVENT_READ, None)

    # --- what others call ----------------------------------------------------------------

    def open(self, digest: str, folder: int, pod: str = "") -> None:
        """Listen in a ticket's directory.

        *folder*, a descriptor of it, is taken over. *pod* is empty where nobody knows.

        Raises:
            OSError: a socket cannot be made there, or the directory is gone already.
        """
        ticket_socket = TicketSocket(digest, folder)
        with self._lock:
            before = self._listeners.get(digest)
            if before is not None and before.ticket_socket.identity == ticket_socket.identity:
                ticket_socket.close()
                self._mend(before)
            elif self._stopped:
                ticket_socket.close()
            else:
                account = Account(self._limits, time.monotonic())
                listener = Listener(ticket_socket, account, self._selector, pod)
                if before is not None:
                    self._end(before)
                self._listeners[digest] = listener
                self._attend(listener)
        self._poke()

    def close(self, digest: str) -> None:
        """Stop listening at a socket, if it is listened at."""
        with self._lock:
            listener = self._listeners.get(digest)
            if listener is not None:
                self._end(listener)
        self._poke()

    def ticket_sockets(self) -> tuple[TicketSocket, ...]:
        """Return the ticket sockets that are listened at."""
        with self._lock:
            return tuple(listener.ticket_socket for listener in self._listeners.values())

    def peer(self, address: str) -> Peer | None:
        """Return who is behind a connection, by what the gRPC server's ``context.peer()`` says."""
        with self._lock:
            return self._peers.get(address.removeprefix("unix-abstract:"))

    def run(self) -> None:
        """Serve until ``stop``."""
        if not self._begin():
            return
        check_at = time.monotonic() + self._limits.check
        while True:
            wait = max(0.0, min(self._next_deadline(), check_at) - time.monotonic())
            ready = self._selector.select(min(wait, self._limits.check))
            with self._lock:
                if self._stopped:
                    break
                for key, events in ready:
                    self._serve(key.data, key.fd, events)
                now = time.monotonic()
                for link in [each for each in self._links if each.ends_at <= now]:
                    ticket = self._links[link].ticket_socket.digest
                    log.warning("a peer took too long", extra={"ticket": ticket})
                    self._drop(link)
                if now >= check_at:
                    self._check()
                    check_at = now + self._limits.check
                for listener in self._listeners.values():
                    self._attend(listener)
        self._close()

    def stop(self) -> None:
        """End ``run``, and close everything."""
        with self._lock:
            self._stopped = True
            running = self._running
        if running:
            self._poke()
        else:
            self._close()

    # --- ticket sockets; the lock is held ---------------------------------------------------------

    def _attend(self, listener: Listener) -> None:
        """Let somebody in exactly while another connection may be served."""
        room = self._shares.may_enter(listener.pod, len(self._listeners))
        listener.attend(wanted=listener.account.open(time.monotonic()) and room)

    def _check(self) -> None:
        """See to it that all ticket sockets are listened at whose tickets last."""
        for listener in tuple(self._listeners.values()):
            try:
                self._mend(listener)
            except FileNotFoundError:
                pass
            except OSError as error:
                log.warning(
                    "cannot listen again",
                    extra={"ticket": listener.ticket_socket.digest, "reason": str(error)},
                )

    def _mend(self, listener: Listener) -> None:
        """Listen anew where that is needed.

        Raises:
            FileNotFoundError: the directory is gone, and so is the socket now.
            OSError: a socket cannot be made there.
        """
        try:
            if listener.mend():
                ticket = listener.ticket_socket.digest
                log.warning("a socket was gone: made again", extra={"ticket": ticket})
        except FileNotFoundError:
            self._end(listener)
            raise
        self._attend(listener)

    def _end(self, listener: Listener) -> None:
        del self._listeners[listener.ticket_socket.digest]
        for link in [link for link, at in self._links.items() if at is listener]:
            self._drop(link)
        listener.close()

    # --- connections; the lock is held ---------------------------------------------------

    def _serve(self, served: Listener | Link | None, fd: int, events: int) -> None:
        if served is None:
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
        elif isinstance(served, Listener):
            if served.attending:
                self._attend(served)  # others came in since the selector was asked
            if served.attending:
                self._accept(served)
        elif not served.closed:
            try:
                more = served.serve(fd, events)
            except OSError:  # one side has hung up: there is nobody to tell
                more = False
            if not more:
                self._drop(served)

    def _accept(self, listener: Listener) -> None:
        try:
            accepted = listener.accept()
        except OSError as error:
            log.warning("cannot accept", extra={"reason": str(error)})
            listener.account.failed()
            return
        if accepted is None:
            return
        listener.account.came()
        try:
            peer = identify_peer(listener.ticket_socket, accepted, self._identify)
            if peer is not None:
                self._pass_in(listener, accepted, peer)
                return
        except OSError as error:
            log.warning(
                "cannot pass a peer on",
                extra={"ticket": listener.ticket_socket.digest, "reason": str(error)},
            )
        accepted.close()

    def _pass_in(self, listener: Listener, accepted: socket.socket, peer: Peer) -> None:
        """Connect a peer to the gRPC server, which must be able to ask for it by then."""
        busiest = self._shares.gives_way(listener.pod, len(self._listeners))
        if busiest is not None:
            oldest = next(link for link, at in self._links.items() if at.pod == busiest)
            log.warning(
                "a peer gave way", extra={"ticket": self._links[oldest].ticket_socket.digest}
            )
            self._drop(oldest)
        self._count += 1
        name = f"{self._prefix}{self._count}"
        self._peers[name] = peer
        try:
            link = Link(
                self._selector,
                (accepted, connect(self._upstream, name)),
                name=name,
                ends_at=time.monotonic() + self._limits.seconds,
                most=self._limits.bytes,
            )
        except OSError:
            del self._peers[name]
            raise
        self._links[link] = listener
        listener.account.served += 1
        self._shares.entered(listener.pod)

    def _drop(self, link: Link) -> None:
        listener = self._links.pop(link)
        listener.account.served -= 1
        self._shares.left(listener.pod)
        del self._peers[link.name]
        link.close()

    # --- the loop ------------------------------------------------------------------------

    def _begin(self) -> bool:
        with self._lock:
            self._running = not self._stopped
            return self._running

    def _next_deadline(self) -> float:
        with self._lock:
            due = [link.ends_at for link in self._links]
            turns = [listener.account.opens_at() for listener in self._listeners.values()]
        due += [turn for turn in turns if turn is not None]
        return min(due, default=time.monotonic() + self._limits.check)

    def _poke(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake up anyway; closed: it has ended
            self._wake.send(b".", socket.MSG_DONTWAIT)

    def _close(self) -> None:
        with self._lock:
            for listener in tuple(self._listeners.values()):
                self._end(listener)
            self._selector.close()
            self._wake.close()
            self._woken.close()
