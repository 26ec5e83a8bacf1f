"""The proxy's metrics. Only this module imports ``prometheus_client``."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.status import Page
from proxy.kubelet import KubeletEndpoint

_PREFIX = "gpu_turnstile_proxy_"
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ProxyMetrics(Collector):
    """The proxy's metrics, computed at each scrape."""

    def __init__(self, fronts: Mapping[str, KubeletEndpoint], refused: Callable[[], int]) -> None:
        """Prepare.

        Args:
            fronts: the served resources, by name.
            refused: returns the number of refused registrations.
        """
        self._fronts = fronts
        self._refused = refused

    def collect(self) -> Iterator[Metric]:
        """Read all metrics."""
        fronts = dict(self._fronts)

        def gauge(name: str, text: str, value: Callable[[KubeletEndpoint], float]) -> Metric:
            family = GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=["resource"])
            for resource, front in fronts.items():
                family.add_metric([resource], value(front))
            return family

        yield gauge(
            "connected_plugins",
            "Connected plugins; the newest that responds gets the calls.",
            lambda front: len(front.resource.roster.plugins),
        )
        yield gauge(
            "waiting_calls",
            "Calls of the kubelet that wait for a plugin.",
            lambda front: front.calls.waiting,
        )
        yield gauge(
            "longest_wait_seconds",
            "Longest wait of a call for a plugin, now or in the last minute.",
            lambda front: front.calls.longest_wait(),
        )
        yield gauge(
            "kubelet_registered",
            "Whether the resource is registered with the current kubelet.",
            lambda front: front.registered,
        )
        yield gauge(
            "given_up",
            "Whether all devices are reported unhealthy to the kubelet, because no plugin serves.",
            lambda front: front.resource.roster.given_up,
        )
        again = CounterMetricFamily(
            f"{_PREFIX}asked_again_calls",
            "Calls that were sent again because their plugin had ended.",
            labels=["resource"],
        )
        for resource, front in fronts.items():
            again.add_metric([resource], front.calls.asked_again)
        yield again
        yield CounterMetricFamily(
            f"{_PREFIX}refused_registrations",
            "Registrations of plugins that were refused.",
            value=self._refused(),
        )


def metrics(figures: ProxyMetrics) -> Page:
    """Make the page of all metrics."""
    registry = CollectorRegistry()
    registry.register(figures)
    return lambda: (200, _CONTENT_TYPE, generate_latest(registry))
