"""Probes and metrics over HTTP. The only importer of ``waitress`` and ``prometheus_client``."""

import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from waitress.server import create_server

from proxy.errors import SettingsError
from proxy.kubelet import Front

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_PREFIX = "gpu_turnstile_proxy_"
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_CONNECTIONS = 64
_IDLE_SECONDS = 10
_LARGEST = 8 * 1024

Page = Callable[[], tuple[int, str]]
"""Gives status and text."""


class Figures(Collector):
    """The proxy's metrics, read anew for each scrape."""

    def __init__(self, fronts: Mapping[str, Front], refused: Callable[[], int]) -> None:
        """Prepare.

        Args:
            fronts: what is served, by resource.
            refused: returns how many registrations were refused.
        """
        self._fronts = fronts
        self._refused = refused

    def collect(self) -> Iterator[Metric]:
        """Read all metrics."""
        fronts = dict(self._fronts)

        def gauge(name: str, text: str, value: Callable[[Front], float]) -> Metric:
            family = GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=["resource"])
            for resource, front in fronts.items():
                family.add_metric([resource], value(front))
            return family

        yield gauge(
            "connected_plugins",
            "Plugins that are connected; the newest that answers is asked.",
            lambda front: len(front.resource.roster.plugins),
        )
        yield gauge(
            "waiting_calls",
            "Calls of the kubelet that wait for a plugin.",
            lambda front: front.calls.waiting,
        )
        yield gauge(
            "longest_wait_seconds",
            "The longest that a call has waited for a plugin, now or in the last minute.",
            lambda front: front.calls.longest_wait(),
        )
        yield gauge(
            "kubelet_registered",
            "Whether the kubelet that is there now knows the resource.",
            lambda front: front.registered,
        )
        yield gauge(
            "given_up",
            "Whether the kubelet is told that all devices are unhealthy, since no plugin serves.",
            lambda front: front.resource.roster.given_up,
        )
        again = CounterMetricFamily(
            f"{_PREFIX}asked_again_calls",
            "Calls that were asked again, since their plugin had gone.",
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


class StatusServer:
    """Serves the probes and metrics on threads of its own."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Page]) -> None:
        """Bind and serve.

        Args:
            host: address to listen on.
            port: port; 0 takes a free one.
            pages: what is served, by path.

        Raises:
            SettingsError: the port cannot be bound.
        """

        def application(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
            page = pages.get(environ["PATH_INFO"])
            status, text = (404, "not found\n") if page is None else page()
            words = {200: "200 OK", 404: "404 Not Found", 503: "503 Service Unavailable"}
            start(words[status], [("Content-Type", _CONTENT_TYPE)])
            return [text.encode()]

        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listening = socket.create_server((host, port), family=family)
            self._server = create_server(
                application,
                sockets=[listening],
                threads=1,
                ident=None,
                connection_limit=_CONNECTIONS,
                channel_timeout=_IDLE_SECONDS,
                cleanup_interval=_IDLE_SECONDS,
                max_request_header_size=_LARGEST,
                max_request_body_size=_LARGEST,
                asyncore_use_poll=True,
                clear_untrusted_proxy_headers=True,
            )
        except OSError as error:
            raise SettingsError(f"http-port: cannot listen on {host}:{port}: {error}") from error
        self.port: int = listening.getsockname()[1]
        threading.Thread(target=self._server.run, name="http", daemon=True).start()


def probe(why_not: Callable[[], str]) -> Page:
    """Make a page that answers 200 ``ok``, or 503 with the reason if there is one."""

    def page() -> tuple[int, str]:
        reason = why_not()
        return (503, f"{reason}\n") if reason else (200, "ok\n")

    return page


def metrics(figures: Figures) -> Page:
    """Make the page of all metrics."""
    registry = CollectorRegistry()
    registry.register(figures)
    return lambda: (200, generate_latest(registry).decode())
