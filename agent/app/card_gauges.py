"""Report what containers hold and use of the cards: gauges, gpu-manager's page, Events."""

import logging
from collections.abc import Callable

from agent.cards.nvml_use import read_use
from agent.holdings.holding import NodeHoldings
from agent.observability.decision_log import named
from agent.observability.metrics import Metrics, render_series
from agent.observability.series import card_series, gpu_manager_series
from agent.runtime.cgroups import Cgroups
from agent.runtime.cri import Cri
from agent.settings import MetricsNames, Settings
from agent.usage.join import NodeMeasurement, Overuse
from agent.usage.meter import Meter, Owners
from common.apiserver.events import EventSubject, Notice
from common.status import Page
from contract.inventory import Inventory

log = logging.getLogger(__name__)


class CardGauges:
    """Reports what containers hold of the cards, and what they use if that is measured.

    Attributes:
        meter: measures the use of cards, once it is run; ``None`` without ``--measure-use``.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        metrics: Metrics,
        holdings: Callable[[], NodeHoldings | None],
        inventory: Callable[[], Inventory | None],
        send_event: Callable[[Notice], None],
    ) -> None:
        """Add the gauges to *metrics*; holdings and cards may not be known yet."""
        self._settings = settings
        self._metrics = metrics
        self._holdings = holdings
        self._inventory = inventory
        self._send_event = send_event
        self.meter = self._make_meter() if settings.measure_use else None
        metrics.read_series = lambda: card_series(holdings(), self._measured)

    def pages(self) -> dict[str, Page]:
        """Return the pages to serve besides ``/metrics``, by path."""
        if self._settings.metrics_names is MetricsNames.GPU_MANAGER:
            return {"/metric": self._as_gpu_manager}
        return {}

    @property
    def _measured(self) -> NodeMeasurement | None:
        return self.meter.measured if self.meter is not None else None

    def _make_meter(self) -> Meter:
        cri = Cri(self._settings.cri_socket)
        return Meter(
            read=read_use,
            owners=Owners(Cgroups(), cri),
            holdings=self._holdings,
            period=self._settings.use_period,
            on_overuse=self._overused,
            close=cri.close,
        )

    def _overused(self, overuse: Overuse) -> None:
        """Count and log a container that uses more than it holds, and send an Event."""
        ref, pod = overuse.ref, overuse.ref.pod
        self._metrics.overuse.inc()
        log.warning("uses more than it holds", extra={**named(ref), "reason": overuse.text})
        subject = EventSubject("Pod", pod.namespace, pod.name, pod.uid)
        self._send_event(
            Notice(subject, "GPUOveruse", f"container {ref.container}: {overuse.text}")
        )

    def _as_gpu_manager(self) -> tuple[int, str, bytes]:
        inventory = self._inventory()
        indices = {card.uuid: card.index for card in inventory.cards} if inventory else {}
        found = gpu_manager_series(
            self._settings.node_name, indices, self._holdings(), self._measured
        )
        return 200, self._metrics.content_type, render_series(found)
