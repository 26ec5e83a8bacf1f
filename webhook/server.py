"""The processes: gunicorn with TLS, worker processes and threads. The one module that knows it.

The master checks the certificate and opens the port. Each worker makes its own
application after the fork, and with it its own writer of stamps: two workers never
write the same stamp.
"""

import logging
import os
import secrets
import socket
import ssl
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gunicorn.app.base import BaseApplication
from gunicorn.glogging import Logger
from gunicorn.http.errors import ParseException

from contract.stamps import Stamper, writer_name
from webhook.app import create_app
from webhook.logs import JsonFormatter, fields
from webhook.settings import Settings
from webhook.tls import server_context

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_log = logging.getLogger(__name__)

# The API server keeps idle connections for 90 s. Closing first would race with the
# review it is about to send, which it may not send again.
_KEEPALIVE_SECONDS = 120
# Within the 30 s that Kubernetes grants a pod by default.
_GRACEFUL_SECONDS = 20


class Server(BaseApplication):  # type: ignore[misc]  # gunicorn has no type information
    """gunicorn, told in code what it needs to know and nothing by files or environment."""

    def __init__(self, settings: Settings, context: ssl.SSLContext) -> None:
        """Prepare to serve.

        Args:
            settings: what the operator set.
            context: the server's side of TLS.
        """
        self._settings = settings
        self._context = context
        super().__init__()

    def load_config(self) -> None:
        """Hand our settings to gunicorn."""
        for name, value in gunicorn_settings(self._settings, self._context).items():
            # Some settings exist in newer releases only, and so does what they switch off.
            if name in self.cfg.settings:
                self.cfg.set(name, value)

    def load(self) -> "WSGIApplication":
        """Make the application of one worker; runs after the fork."""
        writer = writer_name(socket.gethostname(), secrets.token_hex(8))
        stamper = Stamper(clock=time.time_ns, writer=writer)
        return _TranslateBody(create_app(names=self._settings.names, stamp=stamper.next))


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight are answered first.

    Raises:
        SettingsError: the certificate cannot be used.
        SystemExit: always, at the end; status 0 after a signal.
    """
    Server(settings, server_context(settings.cert, settings.key)).run()


def gunicorn_settings(settings: Settings, context: ssl.SSLContext) -> dict[str, Any]:
    """Translate our settings into gunicorn's."""
    return {
        "bind": settings.address,
        "workers": settings.workers,
        "worker_class": "gthread",
        "threads": settings.threads,
        "keepalive": _KEEPALIVE_SECONDS,
        "graceful_timeout": _GRACEFUL_SECONDS,
        # A root file system may be read-only; heartbeats need no disk.
        "worker_tmp_dir": _memory_directory(),
        "control_socket_disable": True,
        "certfile": str(settings.cert),
        "keyfile": str(settings.key),
        # gunicorn would read the files again for every connection.
        "ssl_context": lambda _config, _default: context,
        "logger_class": _JsonLogger,
        "accesslog": None,
        "when_ready": _report_listening,
        "proc_name": "gpu-turnstile-webhook",
    }


def _memory_directory() -> str | None:
    candidate = Path("/dev/shm")  # noqa: S108 - gunicorn makes its file there safely
    return str(candidate) if candidate.is_dir() and os.access(candidate, os.W_OK) else None


def _report_listening(arbiter: Any) -> None:
    addresses = [str(listener) for listener in arbiter.LISTENERS]
    _log.info("listening", extra=fields(addresses=addresses))


class _JsonLogger(Logger):  # type: ignore[misc]  # gunicorn has no type information
    """gunicorn's own messages, as JSON like ours."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        for handler in self.error_log.handlers:
            handler.setFormatter(JsonFormatter())


class _TranslateBody:
    """Turns gunicorn's errors of a broken chunked body into the OSError WSGI readers expect."""

    def __init__(self, app: "WSGIApplication") -> None:
        self._app = app

    def __call__(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        environ["wsgi.input"] = _Body(environ["wsgi.input"])
        return self._app(environ, start_response)


class _Body:
    def __init__(self, body: Any) -> None:
        self._body = body

    def read(self, size: int = -1) -> bytes:
        try:
            content: bytes = self._body.read(size)
        except ParseException as error:
            raise OSError(str(error)) from error
        return content
