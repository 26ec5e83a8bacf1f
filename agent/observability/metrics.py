"""The agent's Prometheus metrics. The only importer of ``prometheus_client`` here."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from agent.observability.series import Series, card_series, limit_series
from contract.resource import Resource

_NAMESPACE = "gpu_turnstile_agent"


class _Snapshot(Collector):
    """Gauges that are computed for each scrape, so series of deleted pods disappear."""

    def __init__(self, read: Callable[[], Iterable[Series]]) -> None:
        self._read = read

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for each in self._read():
            family = GaugeMetricFamily(each.name, each.help, labels=each.labels)
            for labels, value in each.samples.items():
                family.add_metric(labels, value)
            yield family


class ProblemGauge(Collector):
    """A gauge that is 1 while there is a problem, with the reason as its label; else 0."""

    def __init__(self, registry: CollectorRegistry, name: str, text: str) -> None:
        """Start without a problem."""
        self._name = f"{_NAMESPACE}_{name}"
        self._text = text
        self._read: Callable[[], str] = str
        registry.register(self)

    def set(self, reason: str) -> None:
        """Set the reason; empty if there is no problem."""
        self._read = lambda: reason

    def set_function(self, read: Callable[[], str]) -> None:
        """Read the reason at each scrape."""
        self._read = read

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the one series."""
        reason = self._read()
        family = GaugeMetricFamily(self._name, self._text, labels=["reason"])
        family.add_metric([reason], float(bool(reason)))
        yield family


def _request_series(samples: Mapping[tuple[str, ...], float]) -> Series:
    return Series(
        f"{_NAMESPACE}_requests_failing",
        "Whether the last request of this kind to the API server failed, in the last 10 minutes.",
        ("verb", "resource", "reason"),
        samples,
    )


def _folder_series(reasons: Mapping[tuple[str, str], str]) -> Series:
    samples: dict[tuple[str, ...], float] = {
        (*each, reason): float(not reason) for each, reason in reasons.items()
    }
    text = "Whether a folder that the agent writes to exists, is writable and has space."
    return Series(f"{_NAMESPACE}_folder_writable", text, ("folder", "path", "reason"), samples)


def _edit_series(changes: Mapping[str, str]) -> Series:
    text = "Cards of which a change counts after a restart of the agent: added, or edited fields."
    samples: dict[tuple[str, ...], float] = dict.fromkeys(changes.items(), 1.0)
    return Series(f"{_NAMESPACE}_card_awaits_restart", text, ("card", "change"), samples)


def render_series(series: Iterable[Series]) -> bytes:
    """Write only *series* in the text format."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(lambda: series))
    return generate_latest(registry)


class Metrics:
    """Every metric of one agent, in a registry of its own."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:  # noqa: PLR0915 -- a statement for each metric
        """Make the metrics, all at zero."""
        self.registry = CollectorRegistry()
        self.read_series: Callable[[], Iterable[Series]] = card_series
        """Returns the series of what containers hold and use now."""
        self.registry.register(_Snapshot(lambda: self.read_series()))  # noqa: PLW0108 -- set later

        self.read_limits: Callable[[], Iterable[Series]] = limit_series
        """Returns the series of what MPS limits."""
        self.registry.register(_Snapshot(lambda: self.read_limits()))  # noqa: PLW0108 -- set later
        self.read_requests: Callable[[], Mapping[tuple[str, ...], float]] = dict
        """Returns whether each kind of request to the API server fails: verb, resource, reason."""
        self.read_folders: Callable[[], Mapping[tuple[str, str], str]] = dict
        """Returns why each folder cannot be written, by flag and path; empty if it can."""
        self.read_changes: Callable[[], Mapping[str, str]] = dict
        """Returns by UUID what of cards counts after a restart."""
        self.registry.register(_Snapshot(self._read_state))

        problem = partial(ProblemGauge, self.registry)

        def counter(name: str, text: str, labels: Iterable[str] = ()) -> Counter:
            return Counter(name, text, labels, namespace=_NAMESPACE, registry=self.registry)

        def gauge(name: str, text: str, labels: Iterable[str] = ()) -> Gauge:
            return Gauge(name, text, labels, namespace=_NAMESPACE, registry=self.registry)

        self.info = gauge(
            "info",
            "What this agent does, by its labels; always 1.",
            ["version", "enforcement", "inject"],
        )
        self.decisions = counter(
            "decisions",
            "Calls of the kubelet that were resolved, by call and evidence.",
            ["call", "evidence"],
        )
        self.refusals = counter(
            "refusals", "Calls of the kubelet that were refused.", ["call", "resource"]
        )
        for call, resource in product(("prefer", "allocate", "prestart"), Resource):
            # Prometheus' increase() sees nothing of a series that begins with its first storm.
            self.refusals.labels(call, resource.value)
        self.corrections = counter(
            "corrections", "Guesses that the kubelet's checkpoint or List contradicted."
        )
        self.unproven = counter(
            "unproven_starts", "Containers that started without proof that the devices are theirs."
        )
        self.checkpoint_readable = gauge(
            "checkpoint_readable",
            "Whether the kubelet's checkpoint can be read, which proves each start.",
        )
        self.list_readable = gauge(
            "list_readable",
            "Whether the last List of PodResources succeeded, which shows the pod being admitted.",
        )
        self.without_wishes = counter(
            "unadvised_choices",
            "Choices of cards made while the wishes of the pod's author were not known.",
        )
        self.list_failures = counter(
            "witness_failures", "Times the kubelet's List was unavailable."
        )
        self.patches = counter("patches", "Allocations written to pods, by result.", ["result"])
        self.pending = gauge("patches_pending", "Allocations that are not written yet.")
        self.events = counter(
            "events", "Kubernetes Events on refused pods and on the node, by result.", ["result"]
        )
        self.registered = gauge(
            "registered", "Whether this agent's resources are registered with the kubelet."
        )
        self.stands_in = gauge(
            "stands_in_for_proxy",
            "Whether the agent is registered with the kubelet itself, because the proxy has ended.",
        )
        self.proxy_ends = counter(
            "proxy_ends", "Ends of the proxy, at each of which the agent stood in for it."
        )
        self.unregistered = Histogram(
            "unregistered_seconds",
            "How long a kubelet.sock existed before this agent was registered with it, for each "
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
            "Containers that used more of a card than they hold for half a minute; each once.",
        )
        self.card_healthy = gauge(
            "card_healthy",
            "Whether a card has no fault. A card with one gets no new containers.",
            ["card", "index", "model"],
        )
        self.card_cordoned = gauge(
            "card_cordoned",
            "Whether an admin has cordoned a card, so that it gets no new containers.",
            ["card", "index", "model"],
        )
        self.card_events = counter(
            "card_events",
            "Events that the driver reported, by their cause: the card or an application.",
            ["card", "kind", "xid", "fault"],
        )
        self.cards = gauge(
            "cards",
            "Cards of the node: served, faulty (could not be read), mig (in MIG mode, not served), "
            "late (served after a restart of the agent).",
            ["state"],
        )
        self.cards_problem = problem(
            "cards_problem",
            "Whether the cards cannot be read: no driver, or NVML does not work.",
        )
        self.cards_file_problem = problem(
            "cards_file_problem",
            "Whether the edited cards file cannot be used, so that the one before applies.",
        )
        self.hami_core_problem = problem(
            "hami_core_problem",
            "Whether the host's HAMi-core cannot be used, so that no share starts.",
        )
        self.cdi_specs_unused = gauge(
            "cdi_specs_unused",
            "Whether the host's CDI specs do not match the cards, and the agent's own has no "
            "driver files (--inject cdi): the reason.",
            ["reason"],
        )
        self.counts_problem = gauge(
            "counts_problem",
            "Whether the node's status cannot get the counts of its cards (--mode dra): the "
            "kubelet has not forgotten the device plugin, or the write fails.",
        )
        self.cards_served_twice = gauge(
            "cards_served_twice",
            "Devices of the node's cards that NVIDIA's device plugin or DRA driver offers, too.",
        )
        self.cards_unwatched = gauge(
            "cards_unwatched",
            "Cards without events of the driver: only probes show their health.",
        )
        self.cards_age = gauge(
            "cards_look_age_seconds",
            "Time since the last probe of every card; grows while a call of NVML hangs.",
        )
        self.offer_age = gauge(
            "offer_age_seconds",
            "Time since other cards were offered because of a cordon or their health: the node's "
            "status follows within seconds.",
            ["cause"],
        )
        self.driver_files_problem = gauge(
            "driver_files_problem",
            "Whether the folder of driver files (--driver-dir auto) does not have the host's "
            "current driver.",
        )
        self.hami_core_outdated = gauge(
            "hami_core_outdated",
            "Whether the host's HAMi-core is older than 2026-02-03: it delays the start of "
            "programs.",
        )
        self.inventory = counter(
            "inventory_writes", "Inventories written to the node, by result.", ["result"]
        )

    def _read_state(self) -> Iterable[Series]:
        yield _request_series(self.read_requests())
        yield _folder_series(self.read_folders())
        yield _edit_series(self.read_changes())

    def render(self) -> bytes:
        """Write all metrics in the text format."""
        return generate_latest(self.registry)
