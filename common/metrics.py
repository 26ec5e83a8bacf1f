"""What the programs' Prometheus metrics share: a registry, what is running, the text of all."""

import platform
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, Metric, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector


class ProcessMetrics:
    """The metrics of a process.

    Attributes:
        registry: where this process registers its metrics.
    """

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, prefix: str, shared: Path | None = None) -> None:
        """Expose what is running.

        Args:
            prefix: of the name of every metric.
            shared: the directory in which several processes write their numbers, so that each
                exposes the numbers of all; ``None`` for a process of its own.
        """
        self._prefix = prefix
        self._exposed = self.registry = CollectorRegistry()
        if shared is not None:
            self._exposed.register(_Shared(shared))
            self.registry = CollectorRegistry()
        Gauge(
            f"{prefix}build_info",
            "What is running.",
            ["version", "python"],
            registry=self.registry,
            multiprocess_mode="max",
        ).labels(_version(), platform.python_version()).set(1)

    def observe(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Export a number that is looked at when somebody asks.

        Args:
            name: without the prefix of all.
            text: what it is.
            value: returns it.
        """
        Gauge(f"{self._prefix}{name}", text, registry=self.registry).set_function(value)

    def render(self) -> bytes:
        """Write all metrics, of all processes, in the text format."""
        return generate_latest(self._exposed)


class _Shared:
    """The metrics in a directory of several processes.

    A process that starts makes its files empty, and fills them a moment later. The library's own
    collector fails on an empty file.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def collect(self) -> Iterable[Metric]:
        """Add up what all processes have written."""
        files = [str(each) for each in self._directory.glob("*.db") if each.stat().st_size]
        return MultiProcessCollector.merge(files)  # type: ignore[no-any-return,no-untyped-call]  # is not typed


def _version() -> str:
    try:
        return version("gpu-turnstile")
    except PackageNotFoundError:  # run from a copy of the source
        return "unknown"
