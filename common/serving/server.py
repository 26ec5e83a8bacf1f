"""gunicorn, configured for our servers: its main process, and one ``asgi`` worker.

gunicorn keeps the port open, implements HTTP, and restarts a worker that ends or hangs. Added here:
a certificate that is checked before the start and reloaded while serving, a bound on connections,
deadlines for requests, and a shutdown in which the server becomes not ready first.
"""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import socket
import ssl
from functools import partial
from pathlib import Path
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.glogging import Logger
from gunicorn.workers.gasgi import ASGIWorker

from common.listener import Listener, bindable, shown_address
from common.logs import JsonFormatter
from common.serving.connection import SECONDS, ClientConnection, Phase
from common.serving.metrics import ServerMetrics
from common.serving.tls import ServedCertificate

_log = logging.getLogger(__name__)

DRAIN_SECONDS = 16
"""Together with the drain delay, less than the 30 s that a pod has by default to end."""
HANDSHAKE_SECONDS = 10.0

_CLOSE_SECONDS = 5.0  # for a client to read its last response and confirm the end of TLS
_SPARE_DESCRIPTORS = 64
# A decoded pod has hundreds of objects without a cycle. By default Python would search for cycles
# after every other request, and find none.
_GARBAGE = 20_000


class GunicornServer(BaseApplication):  # type: ignore[misc]  # gunicorn has no type information
    """A server's settings, only in code: gunicorn reads neither files nor environment.

    A program overrides :meth:`load` and, if it must release something, :meth:`end`.

    Attributes:
        metrics: metrics of connections, requests and certificate.
        certificate: the certificate to serve; ``None`` for HTTP without TLS.
        connections: most connections at a time.
        all_bodies: most bytes of all arriving bodies; above, the largest one is ended.
        drain_delay: seconds after SIGTERM in which the server is not ready but accepts connections.
        draining: whether this process is about to end.
    """

    def __init__(  # noqa: PLR0913 -- address and, by keyword, bounds
        self,
        name: str,
        host: str,
        port: int,
        metrics: ServerMetrics,
        certificate: ServedCertificate | None,
        *,
        connections: int = 1000,
        all_bodies: int = 2**26,
        drain_delay: float = 2.0,
    ) -> None:
        """Configure gunicorn; *name* is the name of its processes."""
        self.name = name
        # gunicorn's IPv6 socket accepts IPv4 too, as Linux does by default.
        self.address = shown_address(bindable(host), port)
        self.metrics = metrics
        self.certificate = certificate
        self.connections = connections
        self.all_bodies = all_bodies
        self.drain_delay = drain_delay
        self.draining = False
        super().__init__()

    def load(self) -> Any:
        """Return the ASGI application; called in the worker, after the fork."""
        raise NotImplementedError

    def end(self) -> None:
        """Release resources of the application; called on a thread before the worker ends."""

    def keeps(self) -> bool:
        """Return whether connections are kept after a response."""
        return not self.draining

    def not_ready(self) -> str:
        """Return why the server is not ready; empty if it is."""
        return "shutting down" if self.draining else ""

    def load_config(self) -> None:
        """Set gunicorn's settings."""
        memory = Path("/dev/shm")  # noqa: S108 -- gunicorn makes its files safely
        settings: dict[str, Any] = {
            "bind": self.address,
            "worker_class": Worker,
            "graceful_timeout": int(self.drain_delay) + DRAIN_SECONDS + 2,
            "keepalive": int(SECONDS[Phase.IDLE])
            + 5,  # later than our own deadline, which counts it
            "asgi_loop": "asyncio",
            "asgi_disconnect_grace_period": 0,
            # A root file system may be read-only; heartbeats need no disk.
            "worker_tmp_dir": str(memory) if os.access(memory, os.W_OK) else None,
            "control_socket_disable": True,
            "logger_class": JsonLogger,
            "accesslog": None,
            "when_ready": _report_listening,
            "proc_name": self.name,
        }
        if self.certificate is not None:  # only for its log lines
            settings["certfile"] = str(self.certificate.files.cert)
        for name, value in settings.items():
            self.cfg.set(name, value)


class Worker(ASGIWorker):  # type: ignore[misc]  # gunicorn has no type information
    """gunicorn's ``asgi`` worker.

    Attributes:
        connections: the connections after their handshake.
        listener: accepts the connections.
        arriving: bytes of all bodies that are arriving.
    """

    app: GunicornServer

    async def _serve(self) -> None:
        """Serve until a signal to end, or until the main process has ended; then drain.

        gunicorn's own method uses asyncio's server, which has no bounds.
        """
        self._ending: asyncio.Future[None] | None = None
        self.connections: set[ClientConnection] = set()
        self.arriving = 0
        self.listener = Listener(
            self.sockets[0].sock,
            self._serve_client,
            most=open_files(self.app.connections),
            on_full=partial(self.app.metrics.ended, "no-room"),
        )
        tune_garbage_collector()
        accepting = self.loop.create_task(self.listener.run())
        while self.alive and self.ppid == os.getppid():
            self.notify()
            self._check_all()
            await asyncio.sleep(1)
        accepting.cancel()
        for each in list(self.connections):
            each.end_if_idle()
        await self._shutdown()  # gunicorn's: waits for the requests that have begun
        await (self._ending or asyncio.to_thread(self.app.end))

    def handle_exit_signal(self) -> None:
        """Become not ready at SIGTERM, and run gunicorn's handler after the drain delay.

        Until then requests are accepted, because clients need time to notice.
        """
        if not self.app.draining:
            self.app.draining = True
            self._ending = self.loop.run_in_executor(None, self.app.end)
            self.loop.call_later(self.app.drain_delay, super().handle_exit_signal)

    def _check_all(self) -> None:
        """Check deadlines and certificate; called once a second."""
        now = self.loop.time()
        for each in list(self.connections):
            each.end_if_late(now)
        certificate = self.app.certificate
        if certificate is not None:
            self.app.metrics.certificate(certificate.refresh(), certificate.expires)

    async def _serve_client(self, accepted: socket.socket) -> None:
        """Serve one client, from its handshake to its end."""
        tls: dict[str, Any] = {}
        if self.app.certificate is not None:
            tls = {
                "ssl": self.app.certificate.context,
                "ssl_handshake_timeout": HANDSHAKE_SECONDS,
                "ssl_shutdown_timeout": _CLOSE_SECONDS,
            }
        connection = ClientConnection(self)
        try:
            await self.loop.connect_accepted_socket(lambda: connection, accepted, **tls)
            await connection.gone
        except (OSError, asyncio.CancelledError) as error:
            if isinstance(error, ssl.SSLError):
                self.app.metrics.ended("tls")
                _log.info("handshake failed", extra={"reason": error.reason})
            # asyncio's frames and this error refer to each other, and would keep TLS in memory.
            error.__traceback__ = None
        if connection.transport is not None:
            connection.transport.abort()


def tune_garbage_collector() -> None:
    """Collect garbage now, and rarely from now on, because requests wait meanwhile."""
    gc.collect()
    gc.freeze()  # objects that exist now will stay
    gc.set_threshold(_GARBAGE)


def open_files(connections: int) -> int:
    """Raise the limit of open files as far as allowed; return how many connections it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return max(min(connections, soft - _SPARE_DESCRIPTORS), 1)


def _report_listening(arbiter: Any) -> None:
    scheme = "https" if arbiter.cfg.certfile else "http"
    addresses = [
        f"{scheme}://{shown_address(*listener.getsockname()[:2])}" for listener in arbiter.LISTENERS
    ]
    _log.info("listening", extra={"addresses": addresses})


class JsonLogger(Logger):  # type: ignore[misc]  # gunicorn has no type information
    """gunicorn's own messages, as JSON like ours."""

    def setup(self, cfg: Any) -> None:
        """Format gunicorn's messages as JSON."""
        super().setup(cfg)
        for handler in self.error_log.handlers:
            handler.setFormatter(JsonFormatter())
