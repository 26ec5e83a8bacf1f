"""The process: gunicorn with one worker of many threads, and the threads that follow.

One worker, because the model is in memory. HTTP without TLS: browsers reach the page through a
tunnel of the API server, ``kubectl port-forward`` or ``kubectl proxy``, which has both TLS and the
rights of whoever opened it.
"""

import logging
import os
import socket
import struct
import sys
from typing import TYPE_CHECKING, Any

from gunicorn.app.base import BaseApplication
from gunicorn.workers.gthread import ThreadWorker

from common.apiserver.errors import CredentialsError
from common.serving.errors import SettingsError
from common.serving.master import JsonLogger, memory_directory
from view.cluster.connection import Connection, connect
from view.model.state import ClusterState
from view.web.app import create_app
from view.web.feed import Feed
from view.web.live import Live
from view.web.metrics import Metrics
from view.web.settings import Settings

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

_log = logging.getLogger(__name__)

_USER_AGENT = "gpu-turnstile-view"
_GRACE_SECONDS = 10
_THREADS = 16
"""For requests; each stream has one more."""
_CONNECTIONS = 800
"""Also of browsers that keep one between two requests; fewer than the files of a process (1024)."""
_SLOW_SECONDS = 20
"""For one read or write: whoever sends or takes nothing for so long is dropped."""


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        SettingsError: the credentials cannot be used.
        SystemExit: always, at the end; status 0 after a signal.
    """
    connection_of(settings).client.close()
    Master(settings).run()


def connection_of(settings: Settings) -> Connection:
    """Return a client of the API server; nothing is asked yet.

    Raises:
        SettingsError: the credentials cannot be used.
    """
    kubeconfig = str(settings.kubeconfig) if settings.kubeconfig else None
    try:
        return connect(kubeconfig, None, os.environ, user_agent=_USER_AGENT)
    except CredentialsError as error:
        raise SettingsError(str(error)) from error


class Master(BaseApplication):  # type: ignore[misc]  # gunicorn has no type information
    """gunicorn, configured in code only: it reads neither files nor environment.

    Args:
        settings: of the operator.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._live: Live | None = None
        super().__init__()

    def load_config(self) -> None:
        """Hand our settings to gunicorn."""
        for name, value in self._gunicorn_settings().items():
            # Some settings exist in newer releases only, and so does what they switch off.
            if name in self.cfg.settings:
                self.cfg.set(name, value)

    def load(self) -> "WSGIApplication":
        """Make the application and start its threads; runs in the worker, after the fork."""
        metrics, feed = Metrics(), Feed(self.settings.streams)
        connection = connection_of(self.settings)
        state = ClusterState(self.settings.names, self.settings.policy)
        live = self._live = Live(
            connection.client, state, feed, metrics, namespace=connection.namespace
        )
        live.start()
        return create_app(live, feed, hosts=self.settings.hosts, metrics=metrics)

    def _gunicorn_settings(self) -> dict[str, Any]:
        threads = self.settings.streams + _THREADS
        return {
            "bind": self.settings.listen,
            "workers": 1,
            "threads": threads,
            "worker_class": _Worker,
            "worker_connections": max(4 * threads, _CONNECTIONS),
            "keepalive": 30,
            "graceful_timeout": _GRACE_SECONDS,
            "worker_tmp_dir": memory_directory(),
            "control_socket_disable": True,
            "logger_class": _Logger,
            "accesslog": None,
            "when_ready": _ready,
            "worker_int": lambda _worker: self.end(),
            "worker_exit": lambda _server, _worker: self.end(),
            "proc_name": "gpu-turnstile-view",
        }

    def end(self) -> None:
        """End the streams and stop following the cluster; as often as one likes."""
        if self._live is not None:
            self._live.stop()


class _Worker(ThreadWorker):  # type: ignore[misc]  # gunicorn has no type information
    """Ends the streams on SIGTERM: they would keep their connections until the last moment."""

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.app.end()
        super().handle_exit(sig, frame)


def _ready(arbiter: Any) -> None:
    for listener in arbiter.LISTENERS:
        drop_slow_clients(listener.sock)
    _log.info("listening", extra={"addresses": [str(each) for each in arbiter.LISTENERS]})


def drop_slow_clients(listener: socket.socket, seconds: float = _SLOW_SECONDS) -> None:
    """Let the kernel end reads and writes that last too long.

    Args:
        listener: a socket whose connections inherit this. Python's own timeouts they do not
            inherit, and gunicorn sets none: each slow client would hold a thread for ever.
        seconds: for one read or write.
    """
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


class _Logger(JsonLogger):
    """Takes a slow client for no error."""

    def exception(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(sys.exc_info()[1], BlockingIOError):  # a slow client, dropped by the kernel
            _log.info("slow client dropped")
        else:
            super().exception(msg, *args, **kwargs)
