"""The webhook's process."""

import secrets
import socket
import time
from collections.abc import Callable

from common.serving import server
from common.serving.app import Application
from common.serving.tls import ServedCertificate
from contract.stamps import Stamper, writer_name
from webhook.admission.routes import make_routes
from webhook.app import ReviewHandler, create_app
from webhook.metrics import Metrics
from webhook.settings import Settings


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight are finished first.

    Raises:
        SettingsError: the certificate cannot be used.
        SystemExit: always, at the end; status 0 after a signal.
    """
    WebhookServer(settings, ServedCertificate(settings.files)).run()


def make_app(
    settings: Settings, metrics: Metrics, *, is_ready: Callable[[], str] = lambda: ""
) -> Application:
    """Make the application of one process, which stamps under a unique writer name.

    *is_ready* returns why the server is not ready; empty if it is.
    """
    writer = writer_name(socket.gethostname(), secrets.token_hex(8))
    routes = make_routes(
        names=settings.names,
        stamp=Stamper(clock=time.time_ns, writer=writer).next,
        options=settings.options,
    )
    only_verified = settings.files.client_ca is not None
    handler = ReviewHandler(routes, only_verified=only_verified, metrics=metrics)
    return create_app(handler, is_ready=is_ready)


class WebhookServer(server.GunicornServer):
    """The webhook's process."""

    metrics: Metrics

    def __init__(self, settings: Settings, certificate: ServedCertificate) -> None:
        self._settings = settings
        super().__init__(
            "gpu-turnstile-webhook",
            settings.host,
            settings.port,
            Metrics(settings.accept),
            certificate,
            connections=settings.connections,
            drain_delay=settings.drain_delay,
        )

    def load(self) -> Application:
        """Make the application after the fork, so that no two workers write the same stamp."""
        return make_app(self._settings, self.metrics, is_ready=self.not_ready)
