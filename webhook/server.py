"""The master process of the webhook, and what each of its workers serves.

Each worker makes its own application after the fork, and with it its own writer of stamps: no
two workers write the same stamp.
"""

import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.serving import master
from common.serving.app import Application
from common.serving.asgi import Adapter
from common.serving.master import Serving, memory_directory
from common.serving.tls import Certificate
from contract.stamps import Stamper, writer_name
from webhook.admission.reviews import LARGEST_BODY
from webhook.admission.routes import make_routes
from webhook.app import Handler, create_app
from webhook.metrics import Metrics, share
from webhook.settings import Settings


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight are answered first.

    Raises:
        SettingsError: the certificate cannot be used.
        SystemExit: always, at the end; status 0 after a signal.
    """
    certificate = Certificate(settings.files)
    process = os.getpid()
    shared = Path(tempfile.mkdtemp(prefix="gpu-turnstile-webhook-", dir=memory_directory()))
    try:
        Master(settings, certificate, shared).run()
    finally:
        if os.getpid() == process:  # workers come by here as well
            shutil.rmtree(shared, ignore_errors=True)


def make_app(
    settings: Settings, metrics: Metrics, *, is_ready: Callable[[], str] = lambda: ""
) -> Application:
    """Make the application of one process, with a writer of stamps of its own.

    Args:
        settings: of the operator.
        metrics: counts.
        is_ready: returns why new requests are not welcome; empty when they are.
    """
    writer = writer_name(socket.gethostname(), secrets.token_hex(8))
    routes = make_routes(
        names=settings.names,
        stamp=Stamper(clock=time.time_ns, writer=writer).next,
        options=settings.options,
    )
    only_verified = settings.files.client_ca is not None
    handler = Handler(routes, only_verified=only_verified, metrics=metrics)
    return create_app(handler, is_ready=is_ready)


class Master(master.Master):
    """The webhook's processes.

    Args:
        settings: of the operator.
        certificate: to serve.
        shared: the directory of the workers' metrics.
    """

    def __init__(self, settings: Settings, certificate: Certificate, shared: Path) -> None:
        self.settings = settings
        self._shared = shared
        self._places: dict[Any, int] = {}
        self._metrics: Metrics | None = None
        serving = Serving(
            "gpu-turnstile-webhook",
            settings.host,
            settings.port,
            workers=settings.workers,
            connections=settings.connections,
            drain_delay=settings.drain_delay,
        )
        hooks = {
            "pre_fork": self._assign_place,
            "post_fork": self._share_metrics,
            "child_exit": self._free_place,
        }
        super().__init__(serving, certificate, hooks)

    @property
    def metrics(self) -> Metrics:
        """The metrics of this worker."""
        if self._metrics is None:
            self._metrics = Metrics(self._shared)
        return self._metrics

    def load(self) -> Adapter:
        """Make the application of one worker; runs after the fork."""
        app = make_app(self.settings, self.metrics, is_ready=self.not_ready)
        return Adapter(app, self.metrics, largest=LARGEST_BODY, keeps=lambda: not self.draining)

    def _assign_place(self, _arbiter: Any, worker: Any) -> None:
        """Assign the lowest place that no living worker has; runs in the master."""
        taken = set(self._places.values())
        self._places[worker] = next(each for each in range(len(taken) + 1) if each not in taken)

    def _free_place(self, _arbiter: Any, worker: Any) -> None:
        self._places.pop(worker, None)

    def _share_metrics(self, _arbiter: Any, worker: Any) -> None:
        share(self._shared, self._places[worker])
