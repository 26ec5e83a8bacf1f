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

    def __init__(
        self, endpoints: Mapping[str, KubeletEndpoint], refused: Callable[[], int]
    ) -> None:
        """Prepare.

        Args:
            endpoints: the served resources, by name.
            refused: returns the number of refused registrations.
        """
        self._endpoints = endpoints
        self._refused = refused

    def collect(self) -> Iterator[Metric]:
        """Read all metrics."""
        endpoints = dict(self._endpoints)

        def gauge(name: str, text: str, value: Callable[[KubeletEndpoint], float]) -> Metric:
            family = GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=["resource"])
            for resource, endpoint in endpoints.items():
                family.add_metric([resource], value(endpoint))
            return family

        yield gauge(
            "connected_plugins",
            "Connected plugins; the newest that responds gets the calls.",
            lambda endpoint: len(endpoint.resource.roster.plugins),
        )
        yield gauge(
            "waiting_calls",
            "Calls of the kubelet that wait for a plugin.",
            lambda endpoint: endpoint.calls.waiting,
        )
        yield gauge(
            "longest_wait_seconds",
            "Longest wait of a call for a plugin, now or in the last minute.",
            lambda endpoint: endpoint.calls.longest_wait(),
        )
        yield gauge(
            "kubelet_registered",
            "Whether the resource is registered with the current kubelet.",
            lambda endpoint: endpoint.registered,
        )
        yield gauge(
            "given_up",
            "Whether all devices are reported unhealthy to the kubelet, because no plugin serves.",
            lambda endpoint: endpoint.resource.roster.given_up,
        )
        again = CounterMetricFamily(
            f"{_PREFIX}asked_again_calls",
            "Calls that were sent again because their plugin had ended.",
            labels=["resource"],
        )
        for resource, endpoint in endpoints.items():
            again.add_metric([resource], endpoint.calls.repeated)
        yield again
        yield CounterMetricFamily(
            f"{_PREFIX}refused_registrations",
            "Registrations of plugins that were refused.",
            value=self._refused(),
        )


def metrics(collector: ProxyMetrics) -> Page:
    """Make the page of all metrics."""
    registry = CollectorRegistry()
    registry.register(collector)
    return lambda: (200, _CONTENT_TYPE, generate_latest(registry))
