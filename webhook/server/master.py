"""The master process: gunicorn keeps the port open and the number of workers.

It judges the certificate before anything is served. Each worker makes its own application
after the fork, and with it its own writer of stamps: no two workers write the same stamp.
"""

import logging
import os
import secrets
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gunicorn.app.base import BaseApplication
from gunicorn.glogging import Logger

from common.logs import JsonFormatter
from contract.stamps import Stamper, writer_name
from webhook.admission.reviewer import Reviewer
from webhook.handler import Handler
from webhook.metrics import Metrics, share
from webhook.server.app import create_app
from webhook.server.tls import Certificate
from webhook.server.worker import DRAIN_SECONDS, HttpsWorker
from webhook.settings import Settings

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

_log = logging.getLogger(__name__)


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight are answered first.

    Raises:
        SettingsError: the certificate cannot be used.
        SystemExit: always, at the end; status 0 after a signal.
    """
    certificate = Certificate(settings.files)
    master = os.getpid()
    shared = Path(tempfile.mkdtemp(prefix="gpu-turnstile-webhook-", dir=_memory_directory()))
    try:
        Master(settings, certificate, shared).run()
    finally:
        if os.getpid() == master:  # workers come by here as well
            shutil.rmtree(shared, ignore_errors=True)


class Master(BaseApplication):  # type: ignore[misc]  # gunicorn has no type information
    """gunicorn, configured in code only: it reads neither files nor environment.

    Args:
        settings: of the operator.
        certificate: to serve; new workers use it when the files cannot be used any more.
        shared: the directory of the workers' metrics.
    """

    def __init__(self, settings: Settings, certificate: Certificate, shared: Path) -> None:
        self.settings = settings
        self.certificate = certificate
        self.draining = False
        self._shared = shared
        self._places: dict[Any, int] = {}
        self._metrics: Metrics | None = None
        super().__init__()

    def load_config(self) -> None:
        """Hand our settings to gunicorn."""
        hooks = {
            "pre_fork": self._give_place,
            "post_fork": self._share_metrics,
            "child_exit": self._free_place,
        }
        for name, value in (gunicorn_settings(self.settings) | hooks).items():
            # Some settings exist in newer releases only, and so does what they switch off.
            if name in self.cfg.settings:
                self.cfg.set(name, value)

    @property
    def metrics(self) -> Metrics:
        """The metrics of this worker."""
        if self._metrics is None:
            self._metrics = Metrics(self._shared)
        return self._metrics

    def load(self) -> "WSGIApplication":
        """Make the application of one worker; runs after the fork."""
        writer = writer_name(socket.gethostname(), secrets.token_hex(8))
        reviewer = Reviewer(
            names=self.settings.names,
            stamp=Stamper(clock=time.time_ns, writer=writer).next,
            options=self.settings.options,
        )
        handler = Handler(
            reviewer,
            only_verified=self.settings.files.client_ca is not None,
            metrics=self.metrics,
        )
        return create_app(handler, is_ready=lambda: not self.draining)

    def _give_place(self, _arbiter: Any, worker: Any) -> None:
        """Assign the lowest place that no living worker has; runs in the master."""
        self.certificate.refresh()
        taken = set(self._places.values())
        self._places[worker] = next(each for each in range(len(taken) + 1) if each not in taken)

    def _free_place(self, _arbiter: Any, worker: Any) -> None:
        self._places.pop(worker, None)

    def _share_metrics(self, _arbiter: Any, worker: Any) -> None:
        share(self._shared, self._places[worker])


def gunicorn_settings(settings: Settings) -> dict[str, Any]:
    """Translate our settings into gunicorn's."""
    return {
        "bind": settings.address,
        "workers": settings.workers,
        "worker_class": HttpsWorker,
        "graceful_timeout": int(settings.drain_delay + DRAIN_SECONDS) + 2,
        # A root file system may be read-only; heartbeats need no disk.
        "worker_tmp_dir": _memory_directory(),
        "control_socket_disable": True,
        # gunicorn does not read them here, but logs "https" as the scheme.
        "certfile": str(settings.files.cert),
        "keyfile": str(settings.files.key),
        "logger_class": _JsonLogger,
        "accesslog": None,
        "when_ready": _report_listening,
        "proc_name": "gpu-turnstile-webhook",
    }


def _memory_directory() -> str | None:
    candidate = Path("/dev/shm")  # noqa: S108 - files are created safely there
    return str(candidate) if candidate.is_dir() and os.access(candidate, os.W_OK) else None


def _report_listening(arbiter: Any) -> None:
    addresses = [str(listener) for listener in arbiter.LISTENERS]
    _log.info("listening", extra={"addresses": addresses})


class _JsonLogger(Logger):  # type: ignore[misc]  # gunicorn has no type information
    """gunicorn's own messages, as JSON like ours."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        for handler in self.error_log.handlers:
            handler.setFormatter(JsonFormatter())
