"""gunicorn, set up for our servers: its master process, and its ``asgi`` worker.

gunicorn keeps the port open and the number of workers, speaks HTTP, and ends workers that hang.
What is added: a certificate that is judged before anything is served and reloaded in place, a bound
on connections and a deadline for headers, and an end in which readiness goes first.
"""

import contextlib
import gc
import logging
import os
import resource
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from ssl import SSLContext
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.glogging import Logger
from gunicorn.workers.gasgi import ASGIWorker

from common.logs import JsonFormatter
from common.serving.asgi import Adapter
from common.serving.client import IDLE_SECONDS, Connection, Listener
from common.serving.metrics import ServerMetrics
from common.serving.tls import Certificate, Handshake

_log = logging.getLogger(__name__)

DRAIN_SECONDS = 16
"""With the delay before it, within the 30 s that Kubernetes grants a pod by default."""

_IDLE_CLOSE_SECONDS = 1.5  # more than a turn of gunicorn's loop, which then accepts no more
_SPARE_DESCRIPTORS = 64
# A decoded pod is hundreds of objects without a cycle among them: a search for cycles after
# every other request, as Python does by default, finds nothing.
_GARBAGE = 20_000


@dataclass(frozen=True, slots=True)
class Serving:
    """The settings of a server.

    Attributes:
        name: of its processes.
        host: address to listen on.
        port: port to listen on.
        workers: processes.
        connections: of one worker at once.
        drain_delay: seconds from SIGTERM, while not ready, until no connection is accepted.
    """

    name: str
    host: str
    port: int
    workers: int = 1
    connections: int = 1000
    drain_delay: float = 2.0

    @property
    def address(self) -> str:
        """Host and port in one, an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Master(BaseApplication):  # type: ignore[misc]  # gunicorn has no type information
    """gunicorn, configured in code only: it reads neither files nor environment.

    A program extends it by :meth:`load` and :attr:`metrics`.

    Args:
        serving: the settings.
        certificate: to serve, HTTP without TLS where there is none; new workers use it when the
            files cannot be used any more.
        hooks: functions that gunicorn calls, by the names of its settings.

    Attributes:
        draining: whether this worker is about to end.
    """

    def __init__(
        self,
        serving: Serving,
        certificate: Certificate | None,
        hooks: Mapping[str, Any] | None = None,
    ) -> None:
        self.serving = serving
        self.certificate = certificate
        self.draining = False
        self._hooks = hooks or {}
        super().__init__()

    @property
    def metrics(self) -> ServerMetrics:
        """The metrics of this worker."""
        raise NotImplementedError

    def load(self) -> Adapter:
        """Make the application of one worker; runs after the fork."""
        raise NotImplementedError

    def not_ready(self) -> str:
        """Return why new requests are not welcome; empty when they are."""
        return "shutting down" if self.draining else ""

    def end(self) -> None:
        """Release what the application holds; called in a thread when the worker is told to end."""

    def load_config(self) -> None:
        """Hand our settings to gunicorn."""
        for name, value in (self._settings() | dict(self._hooks)).items():
            self.cfg.set(name, value)

    def _settings(self) -> dict[str, Any]:
        serving, certificate = self.serving, self.certificate
        settings: dict[str, Any] = {
            "bind": serving.address,
            "workers": serving.workers,
            "worker_class": Worker,
            "graceful_timeout": int(serving.drain_delay) + DRAIN_SECONDS + 2,
            "keepalive": IDLE_SECONDS + 5,  # later than we end it, and count it
            "asgi_loop": "asyncio",
            "asgi_lifespan": "off",
            "asgi_disconnect_grace_period": 0,
            # A root file system may be read-only; heartbeats need no disk.
            "worker_tmp_dir": memory_directory(),
            "control_socket_disable": True,
            "logger_class": JsonLogger,
            "accesslog": None,
            "when_ready": _report_listening,
            "proc_name": serving.name,
        }
        if certificate is not None:
            settings |= {
                "certfile": str(certificate.files.cert),
                "keyfile": str(certificate.files.key),
                "ssl_context": lambda _config, _default: certificate.listening_context(),
            }
        return settings


class Worker(ASGIWorker):  # type: ignore[misc]  # gunicorn has no type information
    """gunicorn's ``asgi`` worker; whatever is changed, it calls itself."""

    app: Master

    def run(self) -> None:
        """Serve until told to end, or until the master is gone; then drain."""
        self._connections: set[Connection] = set()
        self._ending = threading.Thread(target=self.app.end, name="end")
        # gunicorn leaves no choice of protocol and socket.
        self.loop.create_server = self._create_server
        Handshake.on_failure = partial(self.app.metrics.ended, "tls")
        settle_garbage()
        super().run()
        if self.app.draining:
            self._ending.join()

    async def _create_server(
        self, _protocol: Any, *, sock: socket.socket, ssl: SSLContext | None, **_: Any
    ) -> Listener:
        metrics = self.app.metrics
        return Listener(
            sock.dup(),
            lambda listener: Connection(self, listener, metrics, self._connections),
            metrics,
            most=open_files(self.app.serving.connections),
            tls=ssl,
        )

    def notify(self) -> None:
        """Do once a second what is due, and report that this worker lives."""
        super().notify()
        now = self.loop.time()
        for each in [each for each in self._connections if each.due and each.due <= now]:
            each.end("timeout")
        certificate, metrics = self.app.certificate, self.app.metrics
        metrics.tell()
        if certificate is not None:
            metrics.certificate(certificate.refresh(), certificate.expires)

    def handle_exit_signal(self) -> None:
        """Report "not ready" from now on: SIGTERM has arrived."""
        if not self.app.draining:
            self.app.draining = True
            # Requests are still accepted until everybody has had the time to notice.
            self._ending.start()
            self.loop.call_later(self.app.serving.drain_delay, self._drain)

    def _drain(self) -> None:
        """Answer the requests that have begun, and close idle connections a moment later."""
        super().handle_exit_signal()
        self.loop.call_later(_IDLE_CLOSE_SECONDS, self._close_idle)

    def _close_idle(self) -> None:
        for each in list(self._connections):
            if each.idle:
                each.close()


def settle_garbage() -> None:
    """Collect garbage now, and seldom from now on: not while requests wait."""
    gc.collect()
    gc.freeze()  # what has been made by now stays
    gc.set_threshold(_GARBAGE)


def open_files(connections: int) -> int:
    """Raise the limit of open files as far as allowed; return how many connections it holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _SPARE_DESCRIPTORS
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(min(connections, soft - _SPARE_DESCRIPTORS), 1)


def memory_directory() -> str | None:
    """Return a directory in memory for small files; ``None`` where there is none."""
    candidate = Path("/dev/shm")  # noqa: S108 - files are created safely there
    return str(candidate) if candidate.is_dir() and os.access(candidate, os.W_OK) else None


def _report_listening(arbiter: Any) -> None:
    addresses = [str(listener) for listener in arbiter.LISTENERS]
    _log.info("listening", extra={"addresses": addresses})


class JsonLogger(Logger):  # type: ignore[misc]  # gunicorn has no type information
    """gunicorn's own messages, as JSON like ours."""

    def setup(self, cfg: Any) -> None:
        """Write as JSON what gunicorn says."""
        super().setup(cfg)
        for handler in self.error_log.handlers:
            handler.setFormatter(JsonFormatter())
