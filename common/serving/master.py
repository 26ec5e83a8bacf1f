"""The master process: gunicorn keeps the port open and the number of workers.

It judges the certificate before anything is served. Each worker makes its own application
after the fork.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.glogging import Logger

from common.logs import JsonFormatter
from common.serving.settings import Metrics, Serving
from common.serving.tls import Certificate
from common.serving.worker import DRAIN_SECONDS, HttpsWorker

_log = logging.getLogger(__name__)


class Master(BaseApplication):  # type: ignore[misc]  # gunicorn has no type information
    """gunicorn, configured in code only: it reads neither files nor environment.

    A program extends it by :meth:`load` and :attr:`metrics`.

    Args:
        serving: the settings.
        certificate: to serve; new workers use it when the files cannot be used any more.
        hooks: functions that gunicorn calls, by the names of its settings.
    """

    def __init__(
        self, serving: Serving, certificate: Certificate, hooks: Mapping[str, Any] | None = None
    ) -> None:
        self.serving = serving
        self.certificate = certificate
        self.draining = False
        self._hooks = hooks or {}
        super().__init__()

    @property
    def metrics(self) -> Metrics:
        """The metrics of this worker."""
        raise NotImplementedError

    def keeps_connections(self) -> bool:
        """Return whether connections are kept after an answer."""
        return True

    def end(self) -> None:
        """Let go of what the application holds: its worker takes no more connections soon.

        Called in a thread.
        """

    def load_config(self) -> None:
        """Hand our settings to gunicorn."""
        for name, value in ({**_gunicorn_settings(self.serving), **self._hooks}).items():
            # Some settings exist in newer releases only, and so does what they switch off.
            if name in self.cfg.settings:
                self.cfg.set(name, value)


def _gunicorn_settings(serving: Serving) -> dict[str, Any]:
    """Translate our settings into gunicorn's."""
    return {
        "bind": serving.address,
        "workers": serving.workers,
        "worker_class": HttpsWorker,
        "graceful_timeout": int(serving.drain_delay + DRAIN_SECONDS) + 2,
        # A root file system may be read-only; heartbeats need no disk.
        "worker_tmp_dir": memory_directory(),
        "control_socket_disable": True,
        # gunicorn does not read them here, but logs "https" as the scheme.
        "certfile": str(serving.files.cert),
        "keyfile": str(serving.files.key),
        "logger_class": JsonLogger,
        "accesslog": None,
        "when_ready": _report_listening,
        "proc_name": serving.name,
    }


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
