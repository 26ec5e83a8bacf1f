"""The proxy's metrics. Only this module imports ``prometheus_client``."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.status import Page
from proxy.drivers import ProxiedDriver
from proxy.kubelet import KubeletEndpoint
from proxy.waiting import ProxiedService

_Add = Callable[[Iterable[float]], float]
F = TypeVar("F", GaugeMetricFamily, CounterMetricFamily)
_PREFIX = "gpu_turnstile_proxy_"
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ProxyMetrics(Collector):
    """The proxy's metrics, computed at each scrape."""

    def __init__(
        self,
        endpoints: Mapping[str, KubeletEndpoint],
        drivers: Mapping[tuple[str, ...], ProxiedDriver],
        refused: Callable[[], int],
    ) -> None:
        """Prepare.

        Args:
            endpoints: the served resources, by name.
            drivers: the served drivers, by name and services.
            refused: returns the number of refused registrations.
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

        def filled(family: F, value: Callable[[ProxiedService[Any]], float], add: _Add) -> F:
            for name, found in services.items():
                family.add_metric([name], add(map(value, found)))
            return family

        def gauge(
            name: str, text: str, value: Callable[[ProxiedService[Any]], float], add: _Add = sum
        ) -> Metric:
            family = GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=["resource"])
            return filled(family, value, add)

        def counter(name: str, text: str, value: Callable[[ProxiedService[Any]], int]) -> Metric:
            family = CounterMetricFamily(f"{_PREFIX}{name}", text, labels=["resource"])
            return filled(family, value, sum)

        yield gauge(
            "connected_plugins",
            "Connected plugins, or instances of a driver; the newest that responds gets the calls.",
            lambda each: len(each.roster.instances),
        )
        yield gauge(
            "waiting_calls",
            "Calls of the kubelet that wait for a plugin.",
            lambda each: each.waits.waiting,
        )
        yield gauge(
            "longest_wait_seconds",
            "Longest wait of a call for a plugin, now or in the last minute.",
            lambda each: each.waits.longest(),
            max,
        )
        yield gauge(
            "kubelet_registered",
            "Whether the resource is registered with the current kubelet.",
            lambda each: each.registered,
            max,
        )
        yield gauge(
            "given_up",
            "Whether the kubelet was told that no plugin serves: all devices are unhealthy, or the "
            "driver is not registered any more.",
            lambda each: each.roster.given_up,
            min,
        )
        yield counter(
            "asked_again_calls",
            "Calls that were sent again because their plugin had ended.",
            lambda each: each.repeated,
        )
        yield counter(
            "unanswered_calls",
            "Calls that ended without a response of a plugin.",
            lambda each: each.unanswered,
        )
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
