"""The agent's Prometheus metrics. The only importer of ``prometheus_client`` here."""

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest


class Metrics:
    """Every metric of one agent, in a registry of its own."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        """Make the metrics, all at zero."""
        self.registry = CollectorRegistry()
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
        self.events = Counter(
            f"{prefix}events",
            "Kubernetes Events on refused pods, by result.",
            ["result"],
            registry=self.registry,
        )
        self.registered = Gauge(
            f"{prefix}registered",
            "Whether the kubelet knows this agent's resources.",
            registry=self.registry,
        )

    def render(self) -> bytes:
        """Write all metrics in the text format."""
        return generate_latest(self.registry)
