"""The process: gunicorn with one worker, and the threads that follow the cluster.

One worker, because the model is in memory. HTTP without TLS: browsers reach the page through a
tunnel of the API server, ``kubectl port-forward`` or ``kubectl proxy``, which has both TLS and the
rights of whoever opened it. Pages are made on threads; streams of events wait on the event loop.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from time import time

from common.apiserver.errors import CredentialsError
from common.serving import master
from common.serving.asgi import Adapter
from common.serving.errors import SettingsError
from common.serving.master import Serving
from view.cluster.connection import Connection, connect
from view.model.state import ClusterState
from view.web.app import contact, create_app
from view.web.feed import Feed
from view.web.live import Live
from view.web.metrics import Metrics
from view.web.settings import Settings

_USER_AGENT = "gpu-turnstile-view"
_THREADS = 16
_LARGEST_BODY = 1024  # nothing that is served reads one
_CONNECTIONS = 800
"""Of browsers that keep one between two requests; each stream has one more."""
_QUICK = ("/healthz", "/readyz", "/events")


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


class Master(master.Master):
    """The page's processes."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._metrics = Metrics()
        self._live: Live | None = None
        serving = Serving(
            "gpu-turnstile-view",
            settings.host,
            settings.port,
            connections=settings.streams + _CONNECTIONS,
            drain_delay=0,
        )
        super().__init__(serving, None, {"worker_exit": lambda _server, _worker: self.end()})

    @property
    def metrics(self) -> Metrics:
        """The metrics of the worker."""
        return self._metrics

    def load(self) -> Adapter:
        """Make the application and start its threads; runs in the worker, after the fork."""
        feed = Feed(self.settings.streams, contact=lambda: contact(live.freshness, time()))
        connection = connection_of(self.settings)
        state = ClusterState(
            self.settings.names, self.settings.policy, pool_labels=self.settings.pool_labels
        )
        live = self._live = Live(
            connection.client,
            state,
            feed,
            self._metrics,
            namespace=connection.namespace,
            agents=self.settings.agents,
            prometheus=self.settings.prometheus,
        )
        live.start()
        app = create_app(
            live,
            feed,
            hosts=self.settings.hosts,
            metrics=self._metrics,
            dashboard=self.settings.dashboard,
        )
        return Adapter(
            app.wsgi_app,
            self._metrics,
            largest=_LARGEST_BODY,
            threads=ThreadPoolExecutor(_THREADS, "page"),
            quick=_QUICK,
        )

    def end(self) -> None:
        """End the streams and stop following the cluster; as often as one likes."""
        if self._live is not None:
            self._live.stop()
