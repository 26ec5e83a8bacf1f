"""The process: one worker that serves, and the threads that follow the cluster.

There is one worker, because the state is in memory. It decides one request at a time; Bindings
wait for the API server concurrently.
"""

from common.serving import server
from common.serving.app import Application
from common.serving.tls import ServedCertificate
from scheduler.app import ONLY_CERTIFIED, ONLY_LOCAL, create_app
from scheduler.cluster import SchedulerApi
from scheduler.extender import Extender
from scheduler.metrics import Metrics
from scheduler.protocol import LARGEST_NODES
from scheduler.settings import Settings

_CONNECTIONS = 200
"""Connections of kube-schedulers, Prometheus and the kubelet."""


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight are finished first.

    Raises:
        SettingsError: certificate or credentials cannot be used.
        SystemExit: always, at the end; status 0 after a signal.
    """
    certificate = ServedCertificate(settings.files) if settings.files is not None else None
    SchedulerApi(settings.kubeconfig).close()
    ExtenderServer(settings, certificate).run()


class ExtenderServer(server.GunicornServer):
    """The extender's process."""

    metrics: Metrics

    def __init__(self, settings: Settings, certificate: ServedCertificate | None) -> None:
        self._settings = settings
        self._extender: Extender | None = None
        super().__init__(
            "gpu-turnstile-scheduler",
            settings.host,
            settings.port,
            Metrics(),
            certificate,
            connections=_CONNECTIONS,
            all_bodies=2 * LARGEST_NODES,
            drain_delay=0.0,
        )

    def load(self) -> Application:
        """Make the application and start its threads, in the worker after the fork."""
        extender = self._extender = Extender(self._settings, self.metrics)
        extender.start()
        files = self._settings.files
        needed = ""
        if files is None:
            needed = ONLY_LOCAL
        elif files.client_ca is not None:
            needed = ONLY_CERTIFIED
        return create_app(
            extender.handler, is_ready=extender.not_ready, is_broken=extender.broken, needed=needed
        )

    def keeps(self) -> bool:
        """Keep connections only if this replica leads: the next connection reaches the leader."""
        leads = self._extender is not None and self._extender.leadership.leads
        return leads and super().keeps()

    def end(self) -> None:
        """Release the lease, and end the watches."""
        if self._extender is not None:
            self._extender.stop()
