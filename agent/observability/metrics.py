"""The agent's Prometheus metrics. The only importer of ``prometheus_client`` here."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from agent.observability.series import Series, card_series

_NAMESPACE = "gpu_turnstile_agent"


class _Snapshot(Collector):
    """Gauges that are read anew for each scrape: what is gone is in none of them."""

    def __init__(self, read: Callable[[], Iterable[Series]]) -> None:
        self._read = read

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for each in self._read():
            family = GaugeMetricFamily(each.name, each.help, labels=each.labels)
            for labels, value in each.samples.items():
                family.add_metric(labels, value)
            yield family


def render_series(series: Iterable[Series]) -> bytes:
    """Write *series* alone in the text format."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(lambda: series))
    return generate_latest(registry)


class Metrics:
    """Every metric of one agent, in a registry of its own."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        """Make the metrics, all at zero."""
        self.registry = CollectorRegistry()
        self.read_series: Callable[[], Iterable[Series]] = card_series
        """Gives what containers hold and use of cards, as it is now."""
        self.registry.register(_Snapshot(lambda: self.read_series()))  # noqa: PLW0108 -- set later

        def counter(name: str, text: str, labels: Iterable[str] = ()) -> Counter:
            return Counter(name, text, labels, namespace=_NAMESPACE, registry=self.registry)

        def gauge(name: str, text: str, labels: Iterable[str] = ()) -> Gauge:
            return Gauge(name, text, labels, namespace=_NAMESPACE, registry=self.registry)

        self.decisions = counter(
            "decisions",
            "Calls of the kubelet that were settled, by call and evidence.",
            ["call", "evidence"],
        )
        self.refusals = counter(
            "refusals", "Calls of the kubelet that were refused.", ["call", "resource"]
        )
        self.corrections = counter(
            "corrections", "Guesses that the kubelet's record showed to be wrong."
        )
        self.unproven = counter(
            "unproven_starts", "Containers that started without proof of whose devices they hold."
        )
        self.checkpoint_readable = gauge(
            "checkpoint_readable",
            "Whether the kubelet's checkpoint can be read, which proves each start.",
        )
        self.list_readable = gauge(
            "list_readable",
            "Whether the kubelet has answered the last List of PodResources, which shows who asks.",
        )
        self.unadvised = counter(
            "unadvised_choices",
            "Choices of cards made while the wishes of the pod's author were not known.",
        )
        self.blind = counter("witness_failures", "Times the kubelet's record could not be had.")
        self.patches = counter("patches", "Allocations written to pods, by result.", ["result"])
        self.pending = gauge("patches_pending", "Allocations that are not written yet.")
        self.events = counter(
            "events", "Kubernetes Events on refused pods and on the node, by result.", ["result"]
        )
        self.registered = gauge("registered", "Whether the kubelet knows this agent's resources.")
        self.unregistered = Histogram(
            "unregistered_seconds",
            "How long a kubelet.sock was there that did not know this agent, before each "
            "registration.",
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
            namespace=_NAMESPACE,
            registry=self.registry,
        )
        self.registrations = counter(
            "registrations",
            "Containers that registered at the virtual manager, or tried to, by result.",
            ["result"],
        )
        self.overuse = counter(
            "overuse",
            "Containers that took more of a card than they hold, for half a minute; each once.",
        )
        self.card_healthy = gauge(
            "card_healthy",
            "Whether a card may be given to new containers.",
            ["card", "index", "model"],
        )
        self.card_events = counter(
            "card_events",
            "Events that the driver told of, by whose fault they are: the card's or an "
            "application's.",
            ["card", "kind", "xid", "fault"],
        )
        self.cards = gauge(
            "cards",
            "Cards of the node: served, faulty (could not be read when the agent looked), mig "
            "(in MIG mode, left out), late (served after a restart of the agent).",
            ["state"],
        )
        self.cards_problem = gauge(
            "cards_problem",
            "Whether the cards cannot be looked at: no driver, or NVML does not answer.",
        )
        self.cards_served_twice = gauge(
            "cards_served_twice",
            "Devices that another plugin offers of the node's cards, such as nvidia.com/gpu.",
        )
        self.cards_unwatched = gauge(
            "cards_unwatched",
            "Cards whose driver tells of no events: their health shows in probes alone.",
        )
        self.cards_age = gauge(
            "cards_look_age_seconds",
            "Time since every card was last asked how it is; grows while a call of NVML hangs.",
        )
        self.driver_files_problem = gauge(
            "driver_files_problem",
            "Whether the folder of driver files (--driver-dir auto) is not that of the host's "
            "driver.",
        )
        self.hami_core_outdated = gauge(
            "hami_core_outdated",
            "Whether the host's HAMi-core is older than 2026-02-03: programs wait for it at their "
            "start.",
        )
        self.inventory = counter(
            "inventory_writes", "Inventories written to the node, by result.", ["result"]
        )

    def render(self) -> bytes:
        """Write all metrics in the text format."""
        return generate_latest(self.registry)
