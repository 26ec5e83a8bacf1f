"""A server at containers' sockets that runs between real sockets, for tests."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from agent.enforcement.vcuda.socket_server import ConnectionBudget, ContainerSocketServer, Identify
from agent.runtime.cgroups import ContainerCgroup
from tests.agent.fakes import DEADLINE_S

T1, T2 = "1" * 20, "2" * 20


def of_pid(pid: int) -> ContainerCgroup:
    return ContainerCgroup(f"{pid:064x}", None, ())


class Upstream:
    """A server that reports its requests: ``<peer's name> <data>``, and the end."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(path))
        self.socket.listen(64)
        self.peers: list[str] = []
        self.hold = threading.Event()
        self.hold.set()
        self.open = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, address = self.socket.accept()
                name = bytes(address).lstrip(b"\0").decode()
                self.peers.append(name)
                threading.Thread(target=self._serve, args=(connection, name), daemon=True).start()

    def _serve(self, connection: socket.socket, name: str) -> None:
        with self._lock:
            self.open += 1
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(65536):
                self.hold.wait(DEADLINE_S)
                connection.sendall(data)
        with self._lock:
            self.open -= 1

    def close(self) -> None:
        self.hold.set()
        self.socket.close()


class SocketSite:
    def __init__(
        self,
        folder: Path,
        budget: ConnectionBudget,
        identify: Identify,
    ) -> None:
        self.folder = folder
        self.upstream = Upstream(folder / "up.sock")
        self.server = ContainerSocketServer(
            upstream=folder / "up.sock", identify=identify, budget=budget
        )
        self.server.start()

    def listen(self, digest: str) -> Path:
        path = self.folder / digest
        path.mkdir(exist_ok=True)
        self.server.open(digest, os.open(path, os.O_RDONLY | os.O_DIRECTORY))
        return path

    def connect(self, digest: str) -> socket.socket:
        made = dial(self.folder / digest)
        made.settimeout(DEADLINE_S)
        return made

    def peer(self, connection: socket.socket, sent: bytes = b"hello") -> str:
        """Send bytes, receive their echo, and return the upstream's name of this peer."""
        before = len(self.upstream.peers)
        connection.sendall(sent)
        assert receive(connection, len(sent)) == sent
        assert len(self.upstream.peers) >= max(before, 1)
        return self.upstream.peers[-1]

    def serves(self, digest: str) -> bool:
        with self.connect(digest) as connection, contextlib.suppress(OSError):
            connection.sendall(b"x")
            return receive(connection, 1) == b"x"
        return False

    def hangs_up(self, digest: str) -> bool:
        """Return whether a new, silent connection is closed by the server."""
        with self.connect(digest) as connection:
            return ended(connection)

    def close(self) -> None:
        self.server.stop()
        self.upstream.close()
        assert not self.server.alive


def dial(ticket_dir: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    try:
        made.connect(str(ticket_dir / "vcuda.sock"))
    except OSError:
        made.close()
        raise
    return made


def receive(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count and (data := connection.recv(count - len(received))):
        received += data
    return received


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


Make = Callable[..., SocketSite]
"""Makes a server that listens for two containers; its budget by keyword."""
