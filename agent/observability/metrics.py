"""The agent's Prometheus metrics. The only importer of ``prometheus_client`` here."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from agent.observability.series import Series, card_series

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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

    content_type = CONTENT_TYPE

    def __init__(self) -> None:
        """Make the metrics, all at zero."""
        self.registry = CollectorRegistry()
        self.read_series: Callable[[], Iterable[Series]] = card_series
        """Gives what containers hold and use of cards, as it is now."""
        self.registry.register(_Snapshot(self._series))
        prefix = "gpu_turnstile_agent_"
        self.decisions = Counter(
            f"{prefix}decisions",
            "Calls of the kubelet that were settled, by call and evidence.",
            ["call", "evidence"],
            registry=self.registry,
        )
        self.refusals = Counter(
            f"{prefix}refusals",
            "Calls of the kubelet that were refused.",
            ["call", "resource"],
            registry=self.registry,
        )
        self.corrections = Counter(
            f"{prefix}corrections",
            "Guesses that the kubelet's record showed to be wrong.",
            registry=self.registry,
        )
        self.unproven = Counter(
            f"{prefix}unproven_starts",
            "Containers that started without proof of whose devices they hold.",
            registry=self.registry,
        )
        self.checkpoint_readable = Gauge(
            f"{prefix}checkpoint_readable",
            "Whether the kubelet's checkpoint can be read, which proves each start.",
            registry=self.registry,
        )
        self.unadvised = Counter(
            f"{prefix}unadvised_choices",
            "Choices of cards made while the wishes of the pod's author were not known.",
            registry=self.registry,
        )
        self.blind = Counter(
            f"{prefix}witness_failures",
            "Times the kubelet's record could not be had.",
            registry=self.registry,
        )
        self.patches = Counter(
            f"{prefix}patches",
            "Allocations written to pods, by result.",
            ["result"],
            registry=self.registry,
        )
        self.pending = Gauge(
            f"{prefix}patches_pending",
            "Allocations that are not written yet.",
            registry=self.registry,
        )
        self.events = Counter(
            f"{prefix}events",
            "Kubernetes Events on refused pods and on the node, by result.",
            ["result"],
            registry=self.registry,
        )
        self.registered = Gauge(
            f"{prefix}registered",
            "Whether the kubelet knows this agent's resources.",
            registry=self.registry,
        )
        self.unregistered = Histogram(
            f"{prefix}unregistered_seconds",
            "How long a kubelet.sock was there that did not know this agent, before each "
            "registration.",
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
            registry=self.registry,
        )
        self.registrations = Counter(
            f"{prefix}registrations",
            "Containers that registered at the virtual manager, or tried to, by result.",
            ["result"],
            registry=self.registry,
        )

        self.overuse = Counter(
            f"{prefix}overuse",
            "Containers that took more of a card than they hold, for half a minute; each once.",
            registry=self.registry,
        )
        self.card_healthy = Gauge(
            f"{prefix}card_healthy",
            "Whether a card may be given to new containers.",
            ["card", "index", "model"],
            registry=self.registry,
        )
        self.card_events = Counter(
            f"{prefix}card_events",
            "Events that the driver told of, by whose fault they are: the card's or an "
            "application's.",
            ["card", "kind", "xid", "fault"],
            registry=self.registry,
        )
        self.cards = Gauge(
            f"{prefix}cards",
            "Cards of the node: served, faulty (could not be read when the agent looked), mig "
            "(in MIG mode, left out), late (served after a restart of the agent).",
            ["state"],
            registry=self.registry,
        )
        self.cards_problem = Gauge(
            f"{prefix}cards_problem",
            "Whether the cards cannot be looked at: no driver, or NVML does not answer.",
            registry=self.registry,
        )
        self.cards_unwatched = Gauge(
            f"{prefix}cards_unwatched",
            "Cards whose driver tells of no events: their health shows in probes alone.",
            registry=self.registry,
        )
        self.cards_age = Gauge(
            f"{prefix}cards_look_age_seconds",
            "Time since every card was last asked how it is; grows while a call of NVML hangs.",
            registry=self.registry,
        )
        self.driver_files_problem = Gauge(
            f"{prefix}driver_files_problem",
            "Whether the folder of driver files (--driver-dir auto) is not that of the host's "
            "driver.",
            registry=self.registry,
        )
        self.inventory = Counter(
            f"{prefix}inventory_writes",
            "Inventories written to the node, by result.",
            ["result"],
            registry=self.registry,
        )

    def _series(self) -> Iterable[Series]:
        return self.read_series()

    def render(self) -> bytes:
        """Write all metrics in the text format."""
        return generate_latest(self.registry)
