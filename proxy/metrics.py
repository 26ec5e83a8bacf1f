"""The proxy's metrics. Only this module imports ``prometheus_client``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.status import Page
from proxy.drivers import ProxiedDriver
from proxy.kubelet import KubeletEndpoint
from proxy.waiting import ProxiedService

_PREFIX = "gpu_turnstile_proxy_"
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Figures(NamedTuple):
    """What is exported of one resource, or of one driver."""

    connected: int
    waiting: int
    longest_wait: float
    registered: bool
    given_up: bool
    repeated: int
    unanswered: int


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
        """Read all metrics."""
        found = self._read()

        def gauge(name: str, text: str, value: Callable[[_Figures], float]) -> Metric:
            family = GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=["resource"])
            for resource, figures in found.items():
                family.add_metric([resource], value(figures))
            return family

        def counter(name: str, text: str, value: Callable[[_Figures], int]) -> Metric:
            family = CounterMetricFamily(f"{_PREFIX}{name}", text, labels=["resource"])
            for resource, figures in found.items():
                family.add_metric([resource], value(figures))
            return family

        yield gauge(
            "connected_plugins",
            "Connected plugins, or instances of a driver; the newest that responds gets the calls.",
            lambda each: each.connected,
        )
        yield gauge(
            "waiting_calls",
            "Calls of the kubelet that wait for a plugin.",
            lambda each: each.waiting,
        )
        yield gauge(
            "longest_wait_seconds",
            "Longest wait of a call for a plugin, now or in the last minute.",
            lambda each: each.longest_wait,
        )
        yield gauge(
            "kubelet_registered",
            "Whether the resource is registered with the current kubelet.",
            lambda each: each.registered,
        )
        yield gauge(
            "given_up",
            "Whether the kubelet was told that no plugin serves: all devices are unhealthy, or the "
            "driver is not registered any more.",
            lambda each: each.given_up,
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

    def _read(self) -> dict[str, _Figures]:
        """Read the figures of each resource, and of each driver by its name.

        A driver has two registrations while its services change; they are added up.
        """
        found: dict[str, list[tuple[ProxiedService[Any], bool]]] = {}
        for endpoint in tuple(self._endpoints.values()):
            found[endpoint.resource.name] = [(endpoint.resource, endpoint.registered)]
        for driver in tuple(self._drivers.values()):
            found.setdefault(driver.name, []).append((driver, driver.registered))
        return {name: _figures(each) for name, each in found.items()}


def _figures(services: Sequence[tuple[ProxiedService[Any], bool]]) -> _Figures:
    """Add up the figures of services, each with whether it is registered."""
    each = [service for service, _ in services]
    return _Figures(
        connected=sum(len(one.roster.instances) for one in each),
        waiting=sum(one.waits.waiting for one in each),
        longest_wait=max(one.waits.longest() for one in each),
        registered=any(registered for _, registered in services),
        given_up=all(one.roster.given_up for one in each),
        repeated=sum(one.repeated for one in each),
        unanswered=sum(one.unanswered for one in each),
    )


def metrics(collector: ProxyMetrics) -> Page:
    """Make the page of all metrics."""
    registry = CollectorRegistry()
    registry.register(collector)
    return lambda: (200, _CONTENT_TYPE, generate_latest(registry))
