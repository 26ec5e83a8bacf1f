"""Relays connections from the tickets' sockets to the gRPC server, and identifies the peers.

gRPC's server cannot tell who its peers are. So this relay listens in every ticket's directory,
asks the kernel for the process that connected, and passes the bytes on to one gRPC server, from
a socket with a name that is never used twice. By that name, which the server calls the peer,
:meth:`Relay.peer` tells the service who is calling, and at which ticket's socket.

One thread with an event loop serves all ticket sockets; other threads have it do what they want.
What a peer can use up is bounded (:mod:`agent.enforcement.vcuda.limits`): bytes and seconds for one
connection, connections at one socket (the next wait in the kernel's queue, so a container can only
keep itself waiting) and at all ticket sockets of a pod, and how often they come.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import threading
from collections.abc import Coroutine
from pathlib import Path

from agent.enforcement.vcuda.limits import Limits, Shares, Turns
from agent.enforcement.vcuda.peers import Identify, Peer, identify_peer
from agent.enforcement.vcuda.ticket_sockets import TicketSocket

log = logging.getLogger(__name__)

_CHUNK = 16 * 1024
_STOP_SECONDS = 3.0
_CALL_SECONDS = 10.0


class _Listener:
    """A ticket's socket, and what its peers have used up. For the event loop's thread."""

    def __init__(self, ticket_socket: TicketSocket, pod: str, limits: Limits) -> None:
        self.ticket_socket = ticket_socket
        self.pod = pod or ticket_socket.digest
        self.turns = Turns(limits)
        self.slots = asyncio.Semaphore(limits.socket)
        self.accepting: asyncio.Task[None] | None = None


class Relay:
    """Listens at the ticket sockets and passes connections on."""

    def __init__(self, *, upstream: Path, identify: Identify, limits: Limits) -> None:
        """Prepare; nothing runs before :meth:`start`. Nobody else may reach *upstream*."""
        self._upstream = str(upstream)
        self._identify = identify
        self._limits = limits
        self._thread = threading.Thread(target=self._run, name="vcuda-relay", daemon=True)
        self._lock = threading.Lock()  # held while another thread waits for the event loop
        self._running = False
        self._peers: dict[str, Peer] = {}
        # What follows is the event loop's.
        self._loop: asyncio.AbstractEventLoop
        self._stop = asyncio.Event()
        self._left = asyncio.Event()  # set when a connection ends
        self._shares = Shares(limits)
        self._listeners: dict[str, _Listener] = {}
        self._connections: dict[asyncio.Task[None], _Listener] = {}
        self._prefix = f"gpu-turnstile-{secrets.token_hex(8)}-"
        self._count = 0

    # --- what other threads call -----------------------------------------------------------

    def start(self) -> None:
        """Start the thread; it serves until :meth:`stop`."""
        self._loop = asyncio.new_event_loop()
        self._running = True
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Let nobody else in, serve those who are, for a while, then end the thread."""
        with self._lock:
            if not self._running:
                return
            self._running = False
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(self._limits.last_seconds + _STOP_SECONDS)

    def open(self, digest: str, folder: int, pod: str = "") -> None:
        """Listen in a ticket's directory.

        *folder*, a descriptor of it, is taken over. *pod* is empty where nobody knows.

        Raises:
            OSError: a socket cannot be made there, or the directory is gone already.
        """
        with self._lock:
            if self._running:
                self._wait_for(self._open(digest, folder, pod))
            else:
                os.close(folder)

    def close(self, digest: str) -> None:
        """Stop listening at a socket, if it is listened at."""
        with self._lock:
            if self._running:
                self._wait_for(self._close(digest))

    def ticket_sockets(self) -> tuple[TicketSocket, ...]:
        """Return the ticket sockets that are listened at."""
        return tuple(listener.ticket_socket for listener in tuple(self._listeners.values()))

    def peer(self, address: str) -> Peer | None:
        """Return who is behind a connection, by what the gRPC server's ``context.peer()`` says."""
        return self._peers.get(address.removeprefix("unix-abstract:"))

    def _wait_for(self, call: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(call, self._loop).result(_CALL_SECONDS)

    # --- the event loop ----------------------------------------------------------------------

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._serve())
            finally:
                self._running = False

    async def _serve(self) -> None:
        await self._stop.wait()
        for listener in self._listeners.values():
            self._stop_accepting(listener)
        if self._connections:
            await asyncio.wait(self._connections, timeout=self._limits.last_seconds)
        for listener in tuple(self._listeners.values()):
            self._end(listener)

    async def _open(self, digest: str, folder: int, pod: str) -> None:
        before = self._listeners.get(digest)
        if before is not None and before.ticket_socket.listens_in(folder):
            os.close(folder)
            return
        listener = _Listener(TicketSocket(digest, folder), pod, self._limits)
        if before is not None:
            self._end(before)
        self._listeners[digest] = listener
        listener.accepting = self._loop.create_task(self._accept(listener))
        listener.accepting.add_done_callback(self._accepting_ended)

    async def _close(self, digest: str) -> None:
        if digest in self._listeners:
            self._end(self._listeners[digest])

    def _accepting_ended(self, accepting: asyncio.Task[None]) -> None:
        if not accepting.cancelled():  # asyncio logs why; it is not alive from here on
            self._stop.set()

    def _end(self, listener: _Listener) -> None:
        del self._listeners[listener.ticket_socket.digest]
        self._stop_accepting(listener)
        listener.ticket_socket.close()
        for connection in [each for each, at in self._connections.items() if at is listener]:
            self._drop(connection)

    def _stop_accepting(self, listener: _Listener) -> None:
        if listener.accepting is not None:
            listener.accepting.cancel()
            listener.accepting = None
            self._loop.remove_reader(listener.ticket_socket.listening)
            listener.ticket_socket.listening.close()

    # --- connections ---------------------------------------------------------------------------

    async def _accept(self, listener: _Listener) -> None:
        """Let one peer in after the other; those that are too many wait in the kernel's queue."""
        while True:
            await asyncio.sleep(listener.turns.take(self._loop.time()))
            await listener.slots.acquire()
            served = False
            try:
                accepted = await self._accepted(listener.ticket_socket.listening)
                served = await self._let_in(listener, accepted)
            except OSError as error:
                log.warning("cannot accept", extra={"reason": str(error)})
                await asyncio.sleep(1 / self._limits.per_second)
            finally:
                if not served:
                    listener.slots.release()

    async def _accepted(self, listening: socket.socket) -> socket.socket:
        """Wait for a connection. A cancelled ``sock_accept`` may leave one open that it took."""
        while True:
            with contextlib.suppress(BlockingIOError):
                accepted, _ = listening.accept()
                accepted.settimeout(0)
                return accepted
            ready = asyncio.Event()
            self._loop.add_reader(listening, ready.set)
            await ready.wait()  # if this is cancelled: who closes the socket removes the reader
            self._loop.remove_reader(listening)

    async def _let_in(self, listener: _Listener, accepted: socket.socket) -> bool:
        """Identify a peer, wait for room, and connect it; return whether it is served."""
        with contextlib.ExitStack() as held:
            held.callback(accepted.close)
            try:
                peer = identify_peer(listener.ticket_socket, accepted, self._identify)
                if peer is None:
                    return False
                while not self._shares.may_enter(listener.pod, len(self._listeners)):
                    self._left.clear()
                    await self._left.wait()
                self._displace(listener.pod)
                self._count += 1
                name = f"{self._prefix}{self._count}"
                server = held.enter_context(_connect(self._upstream, name))
            except OSError as error:
                log.warning(
                    "cannot pass a peer on",
                    extra={"ticket": listener.ticket_socket.digest, "reason": str(error)},
                )
                return False
            sockets = held.pop_all()
        self._peers[name] = peer  # before the server hears anything of it, and asks
        connection = self._loop.create_task(self._pass_on(listener, accepted, server), name=name)
        self._connections[connection] = listener
        self._shares.entered(listener.pod)
        connection.add_done_callback(lambda _ended: sockets.close())
        connection.add_done_callback(self._drop)
        return True

    def _displace(self, pod: str) -> None:
        """Where *pod* displaces another pod, end that pod's oldest connection."""
        busiest = self._shares.displaced(pod, len(self._listeners))
        if busiest is not None:
            oldest = next(each for each, at in self._connections.items() if at.pod == busiest)
            ticket = self._connections[oldest].ticket_socket.digest
            log.warning("a peer gave way", extra={"ticket": ticket})
            self._drop(oldest)

    def _drop(self, connection: asyncio.Task[None]) -> None:
        """End a connection, unless it has ended, and release its slot and share."""
        listener = self._connections.pop(connection, None)
        if listener is not None:
            connection.cancel()
            del self._peers[connection.get_name()]
            self._shares.left(listener.pod)
            listener.slots.release()
            self._left.set()

    async def _pass_on(
        self, listener: _Listener, accepted: socket.socket, server: socket.socket
    ) -> None:
        """Copy what either side says to the other, until both have ended or one hangs up."""
        try:
            async with asyncio.timeout(self._limits.seconds), asyncio.TaskGroup() as both:
                both.create_task(self._copy(accepted, server))
                both.create_task(self._copy(server, accepted))
        except* TimeoutError:
            ticket = listener.ticket_socket.digest
            log.warning("a peer took too long", extra={"ticket": ticket})
        except* OSError:  # one side has hung up: there is nobody to tell
            pass

    async def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        """Copy bytes as fast as *sink* takes them, then the end of *source*.

        Raises:
            OSError: a side has hung up, or has said more than it may.
        """
        left = self._limits.bytes
        while data := await self._loop.sock_recv(source, _CHUNK):
            left -= len(data)
            if left < 0:
                raise ConnectionAbortedError("a peer talks too much")
            await self._loop.sock_sendall(sink, data)
        sink.shutdown(socket.SHUT_WR)


def _connect(upstream: str, name: str) -> socket.socket:
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
