"""A server of ours on a thread of this process, with a clock that only the test advances."""

import asyncio
import contextlib
import http.client
import itertools
import logging
import os
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from common.serving.server import GunicornServer, Worker
from common.serving.tls import Files

DEADLINE = 120
"""Seconds after which only a server that does not work has not responded."""


JSON = {"Content-Type": "application/json"}


class HttpsClient:
    """What clients of a server on this machine need, with the CA that they trust."""

    port: int
    certificates: Path

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificates / "ca.crt"))

    def plain(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE)

    def connect(self, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        plain = self.plain()
        try:
            return (context or self.tls()).wrap_socket(plain, server_hostname="localhost")
        except BaseException:
            plain.close()
            raise

    def http(self, context: ssl.SSLContext | None = None) -> http.client.HTTPConnection:
        return http.client.HTTPSConnection(
            "localhost", self.port, context=context or self.tls(), timeout=DEADLINE
        )

    def get(self, path: str) -> tuple[int, str]:
        with contextlib.closing(self.http()) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def post(
        self, body: Any, *, chunked: bool = False, context: ssl.SSLContext | None = None
    ) -> tuple[int, str]:
        with contextlib.closing(self.http(context)) as connection:
            connection.request("POST", "/mutate/pods", body, JSON, encode_chunked=chunked)
            response = connection.getresponse()
            return response.status, response.read().decode()


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time stands still until a test advances it."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__()

    def time(self) -> float:
        return self.now


class WorkerLog(logging.Logger):
    """gunicorn's log of a worker, in memory."""

    access_log_enabled = False

    def __init__(self) -> None:
        super().__init__("gunicorn")
        self.errors: list[str] = []
        self.addHandler(logging.NullHandler())

    def error(self, msg: object, *args: object, **_: Any) -> None:
        self.errors.append(str(msg) % args)


class InProcessServer(HttpsClient):
    """gunicorn's worker for a server of ours, without gunicorn's processes and signals."""

    def __init__(self, app: GunicornServer, certificates: Path) -> None:
        self.app = app
        self.certificates = certificates
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        self.loop = ManualLoop()
        self.log = WorkerLog()
        sockets = [SimpleNamespace(sock=listening, close=listening.close)]
        self.worker = Worker(0, os.getppid(), sockets, app, 30, app.cfg, self.log)
        self.worker.loop = self.loop
        self.worker.asgi = app.wsgi()
        self._thread = threading.Thread(target=self.worker.run, name="worker")
        self._thread.start()

    def call(self, act: Callable[[], object]) -> None:
        async def run() -> None:
            act()

        asyncio.run_coroutine_threadsafe(run(), self.loop).result(DEADLINE)

    def advance(self, seconds: float) -> None:
        async def run() -> None:
            self.loop.now += seconds
            for _ in range(10):
                await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(run(), self.loop).result(DEADLINE)

    def advance_until_received(
        self, client: socket.socket, *, step: float = 1.0, sends: bytes = b""
    ) -> tuple[float, bytes]:
        """Let time pass until the server ends a connection; return time and received bytes."""
        client.settimeout(0.005)
        passed, received = 0.0, b""
        while passed < 100 * step:
            with contextlib.suppress(ConnectionResetError, BrokenPipeError, ssl.SSLError):
                try:
                    if sends and not received:
                        client.sendall(sends)
                    while piece := client.recv(65536):
                        received += piece
                except TimeoutError:
                    self.advance(step)
                    passed += step
                    continue
            return passed, received
        raise AssertionError(f"not ended in {passed} s")

    def drain(self) -> None:
        """Do what the worker does at SIGTERM."""
        self.call(self.worker.handle_exit_signal)

    def ends(self) -> bool:
        for _ in range(1000):
            if not self._thread.is_alive():
                return True
            with contextlib.suppress(RuntimeError):  # it has ended meanwhile
                self.loop.call_soon_threadsafe(lambda: setattr(self.loop, "now", self.loop.now + 1))
            self._thread.join(0.01)
        return False

    def stop(self) -> None:
        """Do what the worker does at SIGQUIT."""
        with contextlib.suppress(RuntimeError):  # it has ended already
            self.loop.call_soon_threadsafe(self.worker.handle_quit_signal)
        assert self.ends()
        self.worker.tmp.close()


@contextlib.contextmanager
def served(app: GunicornServer, certificates: Path) -> Iterator[InProcessServer]:
    """Serve *app* in this process; its worker raises the limit of open files."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    server = InProcessServer(app, certificates)
    try:
        yield server
    finally:
        server.stop()
        resource.setrlimit(resource.RLIMIT_NOFILE, files)


class MountedSecret:
    """A Secret as the kubelet mounts it: links through one link, which changes at once."""

    def __init__(self, directory: Path) -> None:
        self.files = Files(directory / "tls.crt", directory / "tls.key")
        self._directory, self._version = directory, 0

    def update(self, content: Mapping[str, bytes]) -> None:
        self._version += 1
        folder, link = self._directory / f"..v{self._version}", self._directory / "..next"
        folder.mkdir()
        link.symlink_to(folder.name)
        for name, data in content.items():
            (folder / name).write_bytes(data)
            if not (self._directory / name).is_symlink():
                (self._directory / name).symlink_to(Path("..data") / name)
        link.replace(self._directory / "..data")


class Load:
    """Clients that call again at every response; *call* gets a unique number."""

    def __init__(self, call: Callable[[int], None], *, clients: int = 8) -> None:
        self._call = call
        self._over = threading.Event()
        self._numbers = itertools.count(1)
        self._began = time.monotonic()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]
        self.seconds: list[float] = []
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()

    def __str__(self) -> str:
        took = sorted(self.seconds) or [0.0]
        middle, late, longest = (
            took[at] * 1000 for at in (len(took) // 2, len(took) * 99 // 100, -1)
        )
        return (
            f"{len(self.seconds)} calls of {len(self._threads)} clients, {len(self.failures)} "
            f"failed; p50 {middle:.0f} ms, p99 {late:.0f} ms, longest {longest:.0f} ms"
        )

    def more(self, calls: int) -> Callable[[], bool]:
        until = len(self.seconds) + calls
        return lambda: len(self.seconds) >= until

    def _run(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            try:
                self._call(next(self._numbers))
            # Whatever it was: a load that ended early and silently would prove nothing.
            except Exception as error:  # noqa: BLE001
                after = began - self._began
                self.failures.append(f"after {after:.1f} s: {type(error).__name__}: {error}")
            self.seconds.append(time.monotonic() - began)
