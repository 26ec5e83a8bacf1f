"""The proxy's metrics. Only this module imports ``prometheus_client``."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.status import Page
from proxy.drivers import ProxiedDriver
from proxy.kubelet import KubeletEndpoint

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
        """Read the figures of each resource, and of each driver by its name."""
        of_drivers: dict[str, list[ProxiedDriver]] = {}
        for driver in tuple(self._drivers.values()):
            of_drivers.setdefault(driver.name, []).append(driver)
        return {name: _of_endpoint(each) for name, each in dict(self._endpoints).items()} | {
            name: _of_driver(each) for name, each in of_drivers.items()
        }


def _of_endpoint(endpoint: KubeletEndpoint) -> _Figures:
    calls, roster = endpoint.calls, endpoint.resource.roster
    return _Figures(
        connected=len(roster.plugins),
        waiting=calls.waits.waiting,
        longest_wait=calls.waits.longest(),
        registered=endpoint.registered,
        given_up=roster.given_up,
        repeated=calls.repeated,
        unanswered=calls.unanswered,
    )


def _of_driver(drivers: Collection[ProxiedDriver]) -> _Figures:
    """Add up the registrations of one driver: it has two while its services change."""
    return _Figures(
        connected=sum(each.connected for each in drivers),
        waiting=sum(each.waits.waiting for each in drivers),
        longest_wait=max(each.waits.longest() for each in drivers),
        registered=any(each.registered for each in drivers),
        given_up=all(each.given_up for each in drivers),
        repeated=sum(each.repeated for each in drivers),
        unanswered=sum(each.unanswered for each in drivers),
    )


def metrics(collector: ProxyMetrics) -> Page:
    """Make the page of all metrics."""
    registry = CollectorRegistry()
    registry.register(collector)
    return lambda: (200, _CONTENT_TYPE, generate_latest(registry))
