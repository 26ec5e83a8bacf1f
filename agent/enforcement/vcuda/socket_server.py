"""The server at the containers' sockets: it identifies each peer and connects it to gRPC.

gRPC's server cannot identify the process of a connection. So one event loop listens at every
container's socket, gets the connecting process from the kernel, and copies the bytes to and from
the gRPC server. For each connection it connects there from a socket with a new name. That name is
gRPC's ``context.peer()``, by which the service finds the :class:`ContainerPeer`.

Containers may be hostile, so everything has a bound (:class:`ConnectionBudget`). A connection
beyond a bound is closed at once: the real client (grpc-go, ``WithBlock``) then dials again, first
after a second. Connections that come too fast wait in the kernel's queue of their own container's
socket.

A process ID is valid only while its process runs. So a peer is accepted only if the start time of
its process was the same before and after its container was read. One gap remains: a process passes
its connection on and ends before the connection is accepted, and a process of another container
gets its ID. This gains nothing: that container does not hold these devices, and limits are written
only into the directory of the socket.
"""

import asyncio
import itertools
import logging
import os
import secrets
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.enforcement.vcuda.container_socket import ContainerSocket
from agent.errors import Unavailable
from agent.runtime.cgroups import CgroupError, ContainerCgroup

log = logging.getLogger(__name__)

_UCRED = struct.Struct("iII")
_CHUNK = 16 * 1024
_STOP_SECONDS = 3.0

Identify = Callable[[int], ContainerCgroup | None]
"""Finds the container of a process: :meth:`agent.runtime.cgroups.Cgroups.container_of`."""


@dataclass(frozen=True, slots=True)
class ConnectionBudget:
    """Bounds on connections; each costs three descriptors and one thread at most."""

    container: int = 16  # connections of one container at a time
    overall: int = 256  # connections of all containers at a time
    bytes: int = 64 * 1024  # bytes of one connection, in each direction
    seconds: float = 15.0  # duration of one connection
    last_seconds: float = 2.0  # the same once the agent stops
    burst: int = 8  # new connections of one container at once
    per_second: float = 16.0  # new connections of one container in the long run

    @classmethod
    def affordable(cls, files: int) -> "ConnectionBudget":
        """Return the bounds for a process that may have *files* descriptors; -1 for no limit.

        Connections get at most three of eight descriptors: the rest of the agent needs some, too.
        """
        return cls() if files < 0 else cls(overall=max(min(cls().overall, files // 8), 1))


@dataclass(frozen=True, slots=True)
class ContainerPeer:
    """The peer of a connection: its socket, its process, and the container of that process."""

    socket: ContainerSocket
    pid: int
    container: ContainerCgroup | None


class _Listener:
    """One container's socket, with its limits for connections and for log lines."""

    def __init__(self, at: ContainerSocket, budget: ConnectionBudget) -> None:
        self.socket = at
        self._gap = 1 / budget.per_second
        self._burst_seconds = (budget.burst - 1) * self._gap
        self._next = 0.0
        self._log_again_at = 0.0

    def pause(self, now: float) -> float:
        """Count a connection; return the seconds until the next is allowed."""
        self._next = max(self._next, now) + self._gap
        return max(self._next - self._burst_seconds - now, 0.0)

    def warn(self, message: str, reason: str, now: float) -> None:
        """Log at most once a minute: a container could cause any number of lines."""
        if now >= self._log_again_at:
            self._log_again_at = now + 60.0
            log.warning(message, extra={"directory": self.socket.digest, "reason": reason})


class ContainerSocketServer:
    """Listens at the containers' sockets. Safe to share between threads."""

    def __init__(self, *, upstream: Path, identify: Identify, budget: ConnectionBudget) -> None:
        """Prepare; nothing runs before :meth:`start`. Only this server may reach *upstream*."""
        self._upstream = str(upstream)
        self._identify = identify
        self._budget = budget
        self._thread = threading.Thread(target=self._run, name="vcuda-sockets", daemon=True)
        self._lock = threading.Lock()
        self._running = False  # changed only under the lock, as the next one
        self._listeners: dict[str, _Listener] = {}
        self._loop: asyncio.AbstractEventLoop  # used only by the event loop, as the next ones
        self._stopping = asyncio.Event()
        self._connections: dict[asyncio.Task[None], ContainerSocket] = {}
        self._peers: dict[str, ContainerPeer] = {}
        prefix = f"gpu-turnstile-{secrets.token_hex(8)}-"
        self._names = (f"{prefix}{number}" for number in itertools.count(1))

    # --- for other threads -----------------------------------------------------------------

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
        """Stop accepting, serve existing connections for a while, then end the thread."""
        with self._lock:
            if not self._running:
                return
            self._running = False
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(self._budget.last_seconds + _STOP_SECONDS)

    def open(self, digest: str, folder: int) -> None:
        """Listen in a container's directory; *folder* is its descriptor, which the server closes.

        Raises:
            OSError: a socket cannot be made there, or the directory was removed meanwhile.
        """
        with self._lock:
            before = self._listeners.get(digest)
            if not self._running or (before is not None and before.socket.listens_in(folder)):
                os.close(folder)
                return
            made = _Listener(ContainerSocket(digest, folder), self._budget)
            self._listeners[digest] = made
            if before is not None:
                self._end_soon(before)
            self._loop.call_soon_threadsafe(self._listen, made)

    def close(self, digest: str) -> None:
        """Stop listening at a socket, if there is one, and end its connections."""
        with self._lock:
            if self._running and digest in self._listeners:
                self._end_soon(self._listeners.pop(digest))

    def sockets(self) -> tuple[ContainerSocket, ...]:
        """Return the listening sockets."""
        with self._lock:
            return tuple(each.socket for each in self._listeners.values())

    def peer(self, address: str) -> ContainerPeer | None:
        """Return the peer of a connection, by gRPC's ``context.peer()``."""
        return self._peers.get(address.removeprefix("unix-abstract:"))

    def _end_soon(self, listener: _Listener) -> None:
        listener.socket.stop_lending()
        self._loop.call_soon_threadsafe(self._end, listener)

    # --- the event loop ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve_until_stopped())
        finally:
            with self._lock:
                self._running = False

    async def _serve_until_stopped(self) -> None:
        await self._stopping.wait()
        for each in self._listeners.values():
            self._stop_listening(each)
        if self._connections:
            await asyncio.wait(self._connections, timeout=self._budget.last_seconds)
        for each in self._listeners.values():
            self._end(each)
        self._listeners.clear()

    def _listen(self, listener: _Listener) -> None:
        if listener.socket.listening.fileno() >= 0:
            self._loop.add_reader(listener.socket.listening, self._accept, listener)

    def _stop_listening(self, listener: _Listener) -> None:
        if listener.socket.listening.fileno() >= 0:
            self._loop.remove_reader(listener.socket.listening)
            listener.socket.listening.close()

    def _end(self, listener: _Listener) -> None:
        self._stop_listening(listener)
        listener.socket.close()
        for connection, at in self._connections.items():
            if at is listener.socket:
                connection.cancel()

    def _accept(self, listener: _Listener) -> None:
        """Accept a connection; serve it, or close it at once if a bound is reached."""
        at, now = listener.socket, self._loop.time()
        try:
            accepted, _ = at.listening.accept()
        except OSError as error:  # too many open files: the connection waits in the queue
            listener.warn("cannot accept", str(error), now)
        else:
            own = list(self._connections.values()).count(at)
            if own >= self._budget.container or len(self._connections) >= self._budget.overall:
                reason = f"{own} of this container, {len(self._connections)} of all"
                listener.warn("too many connections", reason, now)
                accepted.close()
            else:
                accepted.settimeout(0)
                connection = self._loop.create_task(self._serve(at, accepted))
                self._connections[connection] = at
                connection.add_done_callback(lambda _ended: accepted.close())
                connection.add_done_callback(self._connections.pop)
        pause = listener.pause(now)
        if pause:
            self._loop.remove_reader(at.listening)
            self._loop.call_later(pause, self._listen, listener)

    async def _serve(self, at: ContainerSocket, accepted: socket.socket) -> None:
        """Copy the bytes between a peer and the gRPC server until both end or one disconnects."""
        peer = identify_peer(at, accepted, self._identify)
        if peer is None:
            return
        name = next(self._names)
        try:
            upstream = _connect(self._upstream, name)
        except OSError as error:
            log.warning(
                "cannot connect to the registration server",
                extra={"directory": at.digest, "reason": str(error)},
            )
            return
        self._peers[name] = peer  # before the service gets the first request and looks it up
        try:
            with upstream:
                async with asyncio.timeout(self._budget.seconds), asyncio.TaskGroup() as both:
                    both.create_task(self._copy(accepted, upstream))
                    both.create_task(self._copy(upstream, accepted))
        except* TimeoutError:
            log.warning("connection timed out", extra={"directory": at.digest})
        except* OSError:  # one side has disconnected
            pass
        finally:
            del self._peers[name]

    async def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        """Copy bytes as fast as *sink* accepts them, then shut *sink* down for writing.

        Raises:
            OSError: a side has disconnected, or has sent too much.
        """
        left = self._budget.bytes
        while data := await self._loop.sock_recv(source, _CHUNK):
            left -= len(data)
            if left < 0:
                raise ConnectionAbortedError("a peer sent too much")
            await self._loop.sock_sendall(sink, data)
        sink.shutdown(socket.SHUT_WR)


def identify_peer(
    at: ContainerSocket, accepted: socket.socket, identify: Identify
) -> ContainerPeer | None:
    """Return the peer of a connection; ``None`` if it has ended or is not visible to the agent."""
    raw = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid: int = _UCRED.unpack(raw)[0]
    if pid == 0:
        log.error(
            "a peer's process is not visible to the agent: its pod needs hostPID: true",
            extra={"directory": at.digest},
        )
        return None
    started = read_start_time(pid)
    container = None
    try:
        container = identify(pid)
    except (CgroupError, Unavailable) as error:
        log.warning(
            "container of a peer not known",
            extra={"directory": at.digest, "peer_pid": pid, "reason": str(error)},
        )
    is_same = started and read_start_time(pid) == started
    return ContainerPeer(at, pid, container) if is_same else None


def read_start_time(pid: int, *, proc: Path = Path("/proc")) -> str:
    """Return the start time of a process, in the kernel's ticks; empty if it has ended."""
    try:
        text = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return ""
    fields = text.rpartition(b")")[2].split()  # the name before it may have any characters
    return fields[19].decode() if len(fields) > 19 and fields[0] not in {b"Z", b"X"} else ""


def _connect(upstream: str, name: str) -> socket.socket:
    """Connect to the gRPC server from the abstract socket *name*, by which it identifies the peer.

    Raises:
        OSError: the process has too many open files, or the server does not run or is too busy.
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
