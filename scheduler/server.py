"""The process: gunicorn with TLS, one worker of many threads, and the threads that follow.

One worker, because the state is in memory. gunicorn asks for a TLS context for each connection, so
a certificate that was renewed is served from the next one on.
"""

import logging
import os
import secrets
import ssl
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gunicorn.app.base import BaseApplication
from gunicorn.glogging import Logger

from common.logs import JsonFormatter
from common.serving.tls import Certificate
from scheduler.app import create_app
from scheduler.binding import Binder
from scheduler.cluster import Cluster
from scheduler.decisions import Decisions
from scheduler.election import Election
from scheduler.following import Watches
from scheduler.handler import NOT_IN_STEP, Handler
from scheduler.leadership import Endpoint, Leadership
from scheduler.metrics import Metrics
from scheduler.settings import Settings
from scheduler.state import State

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

_log = logging.getLogger(__name__)

_GRACE_SECONDS = 10
_HANDSHAKE_SECONDS = 10.0
_REFRESH_SECONDS = 1.0


class Extender:
    """The parts of one replica, put together; without HTTP."""

    def __init__(self, settings: Settings) -> None:
        """Read the credentials; nothing is asked before :meth:`start`.

        Args:
            settings: of the operator.

        Raises:
            SettingsError: the credentials cannot be used.
        """
        self.state = State(settings.names, settings.policy)
        self.metrics = Metrics()
        self._cluster = Cluster(settings.kubeconfig)
        self.watches = Watches(self.state, self._cluster)
        election = None
        if settings.lease:
            election = Election(
                self._cluster,
                namespace=settings.namespace,
                name=settings.lease,
                identity=f"{settings.identity}_{secrets.token_hex(4)}",
                clock=time.monotonic,
                now=lambda: datetime.now(UTC),
            )
        endpoint = Endpoint(
            self._cluster,
            namespace=settings.namespace,
            name=settings.endpoint_slice,
            address=settings.address,
            port=settings.port,
        )
        self.leadership = Leadership(election, self.watches, endpoint, clock=time.monotonic)
        self.handler = Handler(
            decisions=Decisions(self.state, settings.names, settings.node_policy),
            binder=Binder(
                self.state,
                self._cluster,
                names=settings.names,
                policy=settings.policy,
                on_result=self.metrics.bound,
            ),
            names=settings.names,
            metrics=self.metrics,
            in_step=lambda: self.watches.in_step,
            not_binding=self.leadership.not_binding,
        )
        self._stop = threading.Event()
        observe(
            self.metrics,
            self.state,
            leads=lambda: not self.leadership.not_binding(),
            in_step=lambda: self.watches.in_step,
        )

    def start(self) -> None:
        """Begin to follow the cluster and to take part in the election; returns at once."""
        threading.Thread(target=self._run, name="leadership", daemon=True).start()

    def not_ready(self) -> str:
        """Return why this replica is not ready; empty when it is."""
        if self._stop.is_set():
            return "shutting down"
        return "" if self.watches.in_step else NOT_IN_STEP

    def stop(self) -> None:
        """Bind nothing more, give the lease back, and end the watches."""
        self.leadership.end()
        self._stop.set()
        self.watches.stop()
        self._cluster.close()

    def _run(self) -> None:
        # A list that begins after the lease was taken need not be made again.
        follow = threading.Thread(target=self._follow, name="follow", daemon=True)
        follow.start()
        self.leadership.run(self._stop)

    def _follow(self) -> None:
        self.leadership.first_step.wait()
        self.watches.start()


def observe(
    metrics: Metrics, state: State, *, leads: Callable[[], bool], in_step: Callable[[], bool]
) -> None:
    """Export what is looked at when somebody asks.

    Args:
        metrics: where.
        state: the cluster.
        leads: whether this replica binds.
        in_step: whether nodes and pods are followed.
    """
    for name, text, value in (
        ("leader", "1 while this replica binds.", lambda: float(leads())),
        ("in_step", "1 while nodes and pods are followed.", lambda: float(in_step())),
        ("known_nodes", "Nodes that are known.", lambda: float(state.counts[0])),
        ("known_pods", "GPU pods that count on a node.", lambda: float(state.counts[1])),
        (
            "assumed_pods",
            "Pods bound here that the watch does not show.",
            lambda: float(state.assumed),
        ),
    ):
        metrics.observe(name, text, value)


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight are answered first.

    Raises:
        SettingsError: certificate or credentials cannot be used.
        SystemExit: always, at the end; status 0 after a signal.
    """
    certificate = Certificate(settings.files)
    Cluster(settings.kubeconfig).close()
    Master(settings, certificate).run()


class Master(BaseApplication):  # type: ignore[misc]  # gunicorn has no type information
    """gunicorn, configured in code only: it reads neither files nor environment.

    Args:
        settings: of the operator.
        certificate: to serve.
    """

    def __init__(self, settings: Settings, certificate: Certificate) -> None:
        self.settings = settings
        self.certificate = certificate
        self._extender: Extender | None = None
        self._refreshed = 0.0
        super().__init__()

    def load_config(self) -> None:
        """Hand our settings to gunicorn."""
        for name, value in self._gunicorn_settings().items():
            # Some settings exist in newer releases only, and so does what they switch off.
            if name in self.cfg.settings:
                self.cfg.set(name, value)

    def load(self) -> "WSGIApplication":
        """Make the application and start its threads; runs in the worker, after the fork."""
        extender = self._extender = Extender(self.settings)
        extender.metrics.certificate_ends(self.certificate.expires)
        extender.start()
        return create_app(
            extender.handler,
            is_ready=extender.not_ready,
            is_verified=_is_verified if self.settings.files.client_ca else lambda _: True,
        )

    def _gunicorn_settings(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "bind": settings.listen,
            "workers": 1,
            "threads": settings.threads,
            "worker_class": "gthread",
            "worker_connections": 1000,
            "keepalive": 60,
            "graceful_timeout": _GRACE_SECONDS,
            "worker_tmp_dir": _memory_directory(),
            "control_socket_disable": True,
            "certfile": str(settings.files.cert),
            "keyfile": str(settings.files.key),
            "ssl_context": self._context,
            "logger_class": _JsonLogger,
            "accesslog": None,
            "when_ready": _report_listening,
            "pre_request": lambda _worker, request: self._lead_on(request),
            "worker_int": lambda _worker: self._end(),
            "worker_exit": lambda _server, _worker: self._end(),
            "proc_name": "gpu-turnstile-scheduler",
        }

    def _context(self, _config: Any, _default: Any) -> ssl.SSLContext:
        """Return the context for the next connection; looks at the files once a second."""
        now = time.monotonic()
        if now - self._refreshed >= _REFRESH_SECONDS:
            self._refreshed = now
            self.certificate.refresh()
            if self._extender is not None:
                self._extender.metrics.certificate_ends(self.certificate.expires)
        return self.certificate.context

    def _lead_on(self, request: Any) -> None:
        """Close the connection of a client that is wrong here: its next one finds the leader."""
        if self._extender is not None and not self._extender.leadership.leads:
            request.force_close()

    def _end(self) -> None:
        if self._extender is not None:
            self._extender.stop()


def _is_verified(environ: dict[str, Any]) -> bool:
    connection = environ.get("gunicorn.socket")
    return isinstance(connection, ssl.SSLSocket) and bool(connection.getpeercert())


def _memory_directory() -> str | None:
    candidate = Path("/dev/shm")  # noqa: S108 - files are created safely there
    return str(candidate) if candidate.is_dir() and os.access(candidate, os.W_OK) else None


def _report_listening(arbiter: Any) -> None:
    _log.info("listening", extra={"addresses": [str(each) for each in arbiter.LISTENERS]})


class _JsonLogger(Logger):  # type: ignore[misc]  # gunicorn has no type information
    """gunicorn's own messages, as JSON like ours."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        for handler in self.error_log.handlers:
            handler.setFormatter(JsonFormatter())
