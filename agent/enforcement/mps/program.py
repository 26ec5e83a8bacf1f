"""Which daemons run: one for each set of cards that containers share, as the agent's files say."""

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.enforcement.mps.control import environment
from agent.enforcement.mps.daemon import Daemon, DaemonPace
from agent.enforcement.mps.files import MPS_DIR, DaemonStatus, MpsFolder, Share, largest
from agent.errors import EnforcementError
from common.commandline import WholeNumber, setting, switch
from common.listener import EVERY_ADDRESS

log = logging.getLogger("agent.enforcement.mps")

_FOLDER = click.Path(path_type=Path, file_okay=False)
_POLL_SECONDS = 0.05
_SECOND = 1.0
_HUNG_SECONDS = 10.0
_END_SECONDS = 25.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsSettings:
    """The flags of ``python -m agent.enforcement.mps``, in the order of its help."""

    dir: Path = setting(
        default=MPS_DIR, type=_FOLDER, help="The agent's --mps-dir; the same path on the host."
    )
    driver_dir: Path | None = setting(
        default=None,
        type=_FOLDER,
        help="Folder with the driver's programs (bin) and libraries (lib64), such as "
        "/var/lib/gpu-turnstile/driver/current, which the agent makes with --driver-dir auto.  "
        "[default: they are in the image's PATH, by NVIDIA's container runtime]",
    )
    multi_user: bool = setting(
        default="on",
        parse="on".__eq__,
        type=click.Choice(["on", "off"]),
        help="Whether clients of all users share a server. Without it, a client waits until those "
        "of other users have ended.",
    )
    exclusive: bool = switch(
        "compute-mode",
        words=("keep", "exclusive"),
        help="Leave the compute mode of cards as it is, or make cards with shares exclusive, so "
        "that no program computes without the daemon; restored when a card has no share.",
    )
    http_host: str = setting(default=EVERY_ADDRESS, help="Address of the pages below.")
    http_port: int = setting(
        default=9442,
        type=WholeNumber("port, such as 9442", 0, 65535),
        help="Port of /healthz, /readyz and /metrics; 0 takes a free one.",
    )


class MpsProgram:
    """Starts and ends the daemons; :meth:`step` belongs to one thread."""

    def __init__(self, settings: MpsSettings, *, pace: DaemonPace | None = None) -> None:
        self._settings = settings
        self._pace = pace or DaemonPace()
        self._folder = MpsFolder(settings.dir)
        self._env = environment(settings.driver_dir)
        self._daemons: dict[str, Daemon] = {}
        self._refused: dict[str, DaemonStatus] = {}
        self._wanted: dict[str, Share] = {}
        self._keys: dict[str, tuple[str, ...]] = {}
        self._written: dict[str, DaemonStatus] = {}
        self._changed = 0  # when the files of shares had changed when they were read
        self._read = self._wrote = 0.0
        self._problem = ""
        self._beat = time.monotonic()

    @property
    def status(self) -> dict[str, DaemonStatus]:
        """Every daemon, by the name of its set of cards."""
        keys = self._keys
        return self._refused | {
            name: replace(each.status, keys=keys.get(name, ()))
            for name, each in self._daemons.copy().items()
        }

    def run(self, stop: threading.Event) -> None:
        """Work until *stop*, then end all daemons."""
        while not stop.wait(_POLL_SECONDS):
            self.step()
        if self._folder.lock.is_mine:
            self._folder.remove_status()
        for each in self._daemons.values():
            each.end()
        deadline = time.monotonic() + _END_SECONDS
        for each in self._daemons.values():
            each.join(max(deadline - time.monotonic(), 0))
        self._folder.lock.release()

    def step(self) -> None:
        """Start the daemons that are needed, and end the others."""
        self._beat = now = time.monotonic()
        try:
            self._settings.dir.mkdir(parents=True, exist_ok=True)
            if not self._folder.lock.try_to_take():
                raise EnforcementError("mps-dir: another program runs its daemons")
            changed = self._folder.changed()
            if changed != self._changed or now - self._read > _SECOND:
                found: dict[str, dict[str, Share]] = {}
                for key, share in self._folder.read_shares().items():
                    found.setdefault(share.set, {})[key] = share
                self._wanted = {name: largest(of.values()) for name, of in found.items()}
                self._keys = {name: tuple(of) for name, of in found.items()}
                self._changed, self._read = changed, now
            self._reconcile(self._wanted)
            if (status := self.status) != self._written or now - self._wrote > _SECOND:
                self._folder.write_status(status)
                self._written, self._wrote = status, now
            self._problem = ""
        except (EnforcementError, OSError) as error:
            if str(error) != self._problem:
                log.error("the folder cannot be used", extra={"reason": str(error)})
            self._problem = str(error)

    def _reconcile(self, wanted: dict[str, Share]) -> None:
        self._refused = {
            name: DaemonStatus(
                most.cards,
                problem="with --compute-mode exclusive a card has one daemon: no share may be of "
                "several cards",
            )
            for name, most in wanted.items()
            if self._settings.exclusive and len(most.cards) > 1
        }
        for name, each in list(self._daemons.items()):
            if name not in wanted:
                each.end()
            if not each.is_alive():
                del self._daemons[name]
        for name, most in wanted.items():
            if name in self._daemons:
                self._daemons[name].wanted = most
            elif name not in self._refused:
                self._daemons[name] = started = Daemon(
                    self._folder,
                    most,
                    self._env,
                    multi_user=self._settings.multi_user,
                    exclusive=self._settings.exclusive,
                    pace=self._pace,
                )
                started.start()

    def liveness_problem(self) -> str:
        """Return why the program hangs; empty if it does not."""
        late = time.monotonic() - self._beat > _HUNG_SECONDS
        return "the daemons are not looked after" if late else ""

    def readiness_problem(self) -> str:
        """Return which daemons do not serve; empty if all do."""
        found = (
            f"{', '.join(each.cards)}: {each.problem}"
            for each in self.status.values()
            if each.problem
        )
        return self._problem or "; ".join(sorted(found))

    def metrics(self) -> tuple[int, str, bytes]:
        """Return the page of metrics."""
        return 200, "text/plain; version=0.0.4; charset=utf-8", render(self.status.values())


def render(daemons: Iterable[DaemonStatus]) -> bytes:
    """Return the metrics of *daemons*, as Prometheus reads them."""
    registry = CollectorRegistry()
    registry.register(_Daemons(daemons))
    return generate_latest(registry)


@dataclass(frozen=True, slots=True, eq=False)  # a registry hashes it
class _Daemons(Collector):
    daemons: Iterable[DaemonStatus] = field(default_factory=list)

    def collect(self) -> Iterator[Metric]:
        prefix, labels = "gpu_turnstile_mps_", ("cards",)
        up = GaugeMetricFamily(f"{prefix}up", "Whether a control daemon serves.", labels=labels)
        clients = GaugeMetricFamily(
            f"{prefix}clients", "Processes that are connected to a daemon's servers.", labels=labels
        )
        faults = GaugeMetricFamily(
            f"{prefix}faults",
            "Servers that a client's fault blocks until its clients have ended.",
            labels=labels,
        )
        ends = CounterMetricFamily(
            f"{prefix}ends", "How often a control daemon has ended unasked.", labels=labels
        )
        for each in self.daemons:
            of = [",".join(each.cards)]
            up.add_metric(of, bool(each.instance))
            clients.add_metric(of, len(each.clients))
            faults.add_metric(of, [*each.servers.values()].count("FAULT"))
            ends.add_metric(of, each.ends)
        yield from (up, clients, faults, ends)
