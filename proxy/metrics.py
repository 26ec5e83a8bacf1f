"""The proxy's metrics. Only this module imports ``prometheus_client``."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.status import Page
from proxy.drivers import ProxiedDriver
from proxy.kubelet import KubeletEndpoint
from proxy.waiting import ProxiedService

_PREFIX = "gpu_turnstile_proxy_"
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Kind = type[GaugeMetricFamily | CounterMetricFamily]
_Add = Callable[[Iterable[float]], float]
_Value = Callable[[ProxiedService[Any]], float]
_METRICS: tuple[tuple[_Kind, str, _Add, _Value, str], ...] = (
    (
        GaugeMetricFamily, "connected_plugins", sum, lambda each: len(each.roster.instances),
        "Connected plugins, or instances of a driver; the newest that responds gets the calls.",
    ),
    (
        GaugeMetricFamily, "waiting_calls", sum, lambda each: each.waits.waiting,
        "Calls of the kubelet that wait for a plugin.",
    ),
    (
        GaugeMetricFamily, "longest_wait_seconds", max, lambda each: each.waits.longest(),
        "Longest wait of a call for a plugin, now or in the last minute.",
    ),
    (
        GaugeMetricFamily, "kubelet_registered", max, lambda each: each.registered,
        "Whether the resource is registered with the current kubelet.",
    ),
    (
        GaugeMetricFamily, "given_up", min, lambda each: each.roster.given_up,
        (
            "Whether the kubelet was told that no plugin serves: all devices are unhealthy, or the "
            "driver is not registered any more."
        ),
    ),
    (
        CounterMetricFamily, "asked_again_calls", sum, lambda each: each.repeated,
        "Calls that were sent again because their plugin had ended.",
    ),
    (
        CounterMetricFamily, "unanswered_calls", sum, lambda each: each.unanswered,
        "Calls that ended without a response of a plugin.",
    ),
)  # fmt: skip
"""Kind, name, how the values of one name's services are added up, value of one, description."""


class ProxyMetrics(Collector):
    """The proxy's metrics, computed at each scrape."""

    def __init__(
        self,
        endpoints: Mapping[str, KubeletEndpoint],
        drivers: Mapping[tuple[str, ...], ProxiedDriver],
        refused: Callable[[], int],
    ) -> None:
        """Prepare.

        *refused* returns the number of refused registrations.
        """
        self._endpoints = endpoints
        self._drivers = drivers
        self._refused = refused

    def collect(self) -> Iterator[Metric]:
        """Read all metrics, added up by name: a driver has two while its services change."""
        services: dict[str, list[ProxiedService[Any]]] = {}
        for endpoint in tuple(self._endpoints.values()):
            services.setdefault(endpoint.resource.name, []).append(endpoint.resource)
        for driver in tuple(self._drivers.values()):
            services.setdefault(driver.name, []).append(driver)

        for kind, name, add, value, text in _METRICS:
            family = kind(f"{_PREFIX}{name}", text, labels=["resource"])
            for resource, found in services.items():
                family.add_metric([resource], add(map(value, found)))
            yield family
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
