"""The process: one worker that serves, and the threads that follow the cluster.

One worker, because the state is in memory. It decides one request at a time; Bindings wait for the
API server beside each other, without a thread for each.
"""

from common.serving import master
from common.serving.asgi import Adapter
from common.serving.master import Serving
from common.serving.tls import Certificate
from scheduler.app import create_app
from scheduler.cluster import Cluster
from scheduler.extender import Extender
from scheduler.metrics import Metrics
from scheduler.protocol import LARGEST_NODES
from scheduler.settings import Settings

_DRAIN_SECONDS = 0.0


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight are answered first.

    Raises:
        SettingsError: certificate or credentials cannot be used.
        SystemExit: always, at the end; status 0 after a signal.
    """
    certificate = Certificate(settings.files)
    Cluster(settings.kubeconfig).close()
    Master(settings, certificate).run()


class Master(master.Master):
    """The extender's processes.

    Args:
        settings: of the operator.
        certificate: to serve.
    """

    def __init__(self, settings: Settings, certificate: Certificate) -> None:
        self.settings = settings
        self._metrics = Metrics()
        self._extender: Extender | None = None
        serving = Serving(
            "gpu-turnstile-scheduler",
            settings.host,
            settings.port,
            drain_delay=_DRAIN_SECONDS,
        )
        super().__init__(serving, certificate, {"worker_exit": lambda _server, _worker: self.end()})

    @property
    def metrics(self) -> Metrics:
        """The metrics of the worker."""
        return self._metrics

    def load(self) -> Adapter:
        """Make the application and start its threads; runs in the worker, after the fork."""
        extender = self._extender = Extender(self.settings, self._metrics)
        extender.start()
        app = create_app(
            extender.handler,
            is_ready=extender.not_ready,
            is_broken=extender.broken,
            only_verified=self.settings.files.client_ca is not None,
        )
        # The next connection of a client of one that does not lead finds the leader.
        leads = extender.leadership
        return Adapter(
            app,
            self.metrics,
            largest=LARGEST_NODES,
            all_bodies=2 * LARGEST_NODES,
            keeps=lambda: leads.leads and not self.draining,
        )

    def end(self) -> None:
        """Release the lease, and end the watches."""
        if self._extender is not None:
            self._extender.stop()
