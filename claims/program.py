"""Assembles one replica: state, watches, writer, probes and metrics."""

from collections.abc import Callable

from claims.cluster import ClaimsApi, follow
from claims.metrics import Metrics
from claims.settings import Settings
from claims.state import TemplateState
from claims.writer import TemplateWriter
from common.replica import StatusReplica
from contract.claims import driver_name


class ClaimsProgram(StatusReplica):
    """The parts of one replica, and their threads."""

    def __init__(self, settings: Settings) -> None:
        """Read the credentials; no request is sent before :meth:`start`.

        Raises:
            InvalidName: the domain is too long for a driver's name.
            SettingsError: the credentials cannot be used.
        """
        driver_name(settings.names)
        metrics, api = Metrics(), ClaimsApi(settings.kubeconfig)
        state = TemplateState(settings.names)
        followers = follow(state, api)
        writer = TemplateWriter(
            state,
            api,
            metrics,
            names=settings.names,
            most=settings.most_templates,
            unused=settings.unused,
        )
        export_gauges(metrics, state, in_step=lambda: followers.in_step)
        super().__init__(
            followers,
            metrics,
            host=settings.http_host,
            port=settings.http_port,
            close=api.close,
            unlisted="pods and templates are not listed yet",
            wake=state.changed.set,
            writer=lambda stop: writer.run(stop, lambda: followers.in_step),
        )

    def start(self) -> None:
        """Follow the cluster, too."""
        super().start()
        self._followers.start()


def export_gauges(metrics: Metrics, state: TemplateState, *, in_step: Callable[[], bool]) -> None:
    """Export the gauges that are computed at each scrape."""
    for name, text, value in (
        ("in_step", "1 while pods and templates are listed and watched.", in_step),
        ("pods", "Pods that name a template.", lambda: state.counts[0]),
        ("waiting_pods", "Pods that wait for their claim.", lambda: state.counts[1]),
        ("templates", "Templates.", lambda: state.counts[2]),
    ):
        metrics.export(name, text, value)
