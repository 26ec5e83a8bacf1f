"""The process: gunicorn with one worker, and the threads that follow the cluster.

One worker, because the model is in memory. HTTP without TLS: browsers reach the page through a
tunnel of the API server, ``kubectl port-forward`` or ``kubectl proxy``, which has both TLS and the
permissions of the user who opened it. Pages are rendered on threads; streams of events wait on the
event loop.
"""

import os
from concurrent.futures import ThreadPoolExecutor

from common.apiserver.errors import CredentialsError
from common.errors import SettingsError
from common.serving import server
from common.serving.wsgi import Wsgi
from view.cluster.connection import ClusterConnection, connect
from view.model.state import ClusterState
from view.web.app import contact, create_app
from view.web.feed import Feed
from view.web.live import Live
from view.web.metrics import Metrics
from view.web.settings import Settings

_USER_AGENT = "gpu-turnstile-view"
_THREADS = 16
_LARGEST_BODY = 1024  # no route reads a body
_CONNECTIONS = 800
"""Connections that browsers keep open between requests; each stream needs one more."""
_QUICK = ("/healthz", "/readyz", "/events")


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        SettingsError: the credentials cannot be used.
        SystemExit: always, at the end; status 0 after a signal.
    """
    connection_of(settings).client.close()
    PageServer(settings).run()


def connection_of(settings: Settings) -> ClusterConnection:
    """Return a client of the API server; no request is sent yet.

    Raises:
        SettingsError: the credentials cannot be used.
    """
    kubeconfig = str(settings.kubeconfig) if settings.kubeconfig else None
    try:
        return connect(kubeconfig, None, os.environ, user_agent=_USER_AGENT)
    except CredentialsError as error:
        raise SettingsError(str(error)) from error


class PageServer(server.GunicornServer):
    """The page's process."""

    metrics: Metrics

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._live: Live | None = None
        super().__init__(
            "gpu-turnstile-view",
            settings.host,
            settings.port,
            Metrics(),
            None,
            connections=settings.streams + _CONNECTIONS,
            drain_delay=0.0,
        )

    def load(self) -> Wsgi:
        """Build the application and start its threads; runs in the worker, after the fork."""
        settings = self._settings
        feed = Feed(settings.streams, contact=lambda: contact(live.freshness, live.now()))
        connection = connection_of(settings)
        state = ClusterState(settings.names, settings.policy, pool_labels=settings.pool_labels)
        live = self._live = Live(
            connection.client,
            state,
            feed,
            self.metrics,
            namespace=connection.namespace,
            agents=settings.agents,
            prometheus=settings.prometheus,
        )
        live.start()
        app = create_app(
            live, feed, hosts=settings.hosts, metrics=self.metrics, dashboard=settings.dashboard
        )
        return Wsgi(
            application=app.wsgi_app,
            largest=_LARGEST_BODY,
            threads=ThreadPoolExecutor(_THREADS, "page"),
            quick=_QUICK,
        )

    def end(self) -> None:
        """End the streams and stop following the cluster; may be called again."""
        if self._live is not None:
            self._live.stop()
