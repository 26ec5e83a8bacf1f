"""Time that a container waits for device plugins: our agent and a bare plugin, in one run.

A container needs six calls over unix sockets: for each of its two resources
``GetPreferredAllocation``, ``Allocate`` and ``PreStartContainer``. The bare plugin gets the same
messages and returns device IDs from the request. The plugins take turns, container by container, so
other load on the machine affects all of them. Between the calls ``List`` and checkpoint change as a
real kubelet's, so our agent can verify each start.
"""

import re
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

from bench.kubelet import MeasuringKubelet, TimedPlugin, shuffled
from bench.load import ARRIVING, Load
from bench.process import WITHIN_S, running, wait
from bench.result import Cell, Result, Table, wrong
from contract.demand import CORES_PER_CARD
from contract.names import Names
from contract.resource import Resource
from placement.pods import PodInfo

NAME = "nodepath"

_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else "/tmp"  # noqa: S108 -- as /run is
_PLUGINS = ("ours", "bare")


def run(
    *,
    cards: Sequence[int] = (1, 8, 16),
    live: Sequence[int] = (0, 100, 400),
    containers: int = 60,
    seed: int = 1,
) -> Result:
    """Measure."""
    rows: list[tuple[Cell, ...]] = []
    reads, lists_at_start = 0.0, 0
    for count in cards:
        for living in dict.fromkeys(Load(count, living, 0).fitting for living in live):
            free = count * CORES_PER_CARD - living  # each arriving container needs one core
            load = Load(count, living, min(containers + 1, free))
            found = measure(load, seed=seed)
            reads = max(reads, found.reads)
            lists_at_start += found.lists_at_start
            took = {name: 1000 * median(each) for name, each in found.times.items()}
            cpu = (1000 * each for each in found.cpu.values())
            ratio = took["ours"] / took["bare"]
            rows.append((count, living, *took.values(), ratio, *cpu, found.lists, found.reads))
    return Result(
        NAME,
        (
            Table(
                f"Node path: milliseconds a container (six calls), median of up to {containers}",
                (
                    *("cards", "live", "ours", "bare", "ours : bare", "ours CPU", "bare CPU"),
                    *("Lists a container", "API reads"),
                ),
                rows,
                (
                    "live: containers at the start, at most 75 on a card of 100 cores.",
                    "CPU: of the plugin's process. API reads return at once here.",
                ),
            ),
        ),
        wrong(
            {
                "List calls at PreStart": lists_at_start,
                "containers for which more than one API read was made": int(reads > 1),
            }
        ),
    )


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """The measurements of one load.

    Attributes:
        times: seconds of each container, by plugin.
        cpu: CPU seconds for one container, by plugin.
        reads: our agent's API reads for one container.
        lists: our agent's ``List`` calls for one container.
        lists_at_start: its ``List`` calls in PreStart, for all containers.
    """

    times: dict[str, list[float]]
    cpu: dict[str, float]
    reads: float
    lists: float
    lists_at_start: int


class PluginProcess:
    """One plugin's process, and the calls to it."""

    def __init__(self, name: str, load: Load, folder: Path, stack: ExitStack) -> None:
        """Start the process and wait until it serves; closing *stack* ends it.

        Raises:
            ProcessFailed: it does not serve in time.
        """
        self.name = name
        self._free = {resource: shuffled(load.table().slots(resource)) for resource in Resource}
        for _, held in load.held():
            for resource, ids in held.items():
                self.take(resource, ids)
        self._log = folder / f"{name}.log"
        counts = map(str, (load.cards, load.live, load.arriving))
        arguments = ("bench.plugins", name, *counts, str(folder))
        self._process = stack.enter_context(running(arguments, self._log))
        wait(lambda: self._find_output("serving") is not None, f"{name} serves", self._process)
        self.calls = {
            resource: TimedPlugin(folder / f"{name}-{resource.value}.sock") for resource in Resource
        }

    def take(self, resource: Resource, ids: Sequence[str]) -> None:
        """Remove device IDs from the free ones."""
        taken = set(ids)
        self._free[resource] = [each for each in self._free[resource] if each not in taken]

    def prefer(self, resource: Resource, size: int) -> tuple[float, tuple[str, ...]]:
        """Call ``GetPreferredAllocation`` with all free device IDs; return seconds and IDs."""
        return self.calls[resource].prefer(self._free[resource], size)

    def stop(self) -> tuple[int, float]:
        """End the process; return the number of its API reads, and its CPU seconds."""
        for each in self.calls.values():
            each.close()
        self._process.communicate(timeout=WITHIN_S)
        reads, cpu = (self._find_output("served") or "").split()
        return int(reads), float(cpu)

    def _find_output(self, word: str) -> str | None:
        """Return the rest of the line that begins with *word* in the process's output."""
        found = re.search(rf"^{word}\b(.*)\n", self._log.read_text(encoding="utf-8"), re.MULTILINE)
        return found[1] if found else None


def measure(load: Load, *, seed: int) -> LoadTimes:
    """Measure one load."""
    random = Random(seed)  # noqa: S311 -- an order must be repeatable
    times: dict[str, list[float]] = {name: [] for name in _PLUGINS}
    with tempfile.TemporaryDirectory(prefix="gt-bench-", dir=_MEMORY) as made:
        folder = Path(made)
        with MeasuringKubelet(load, folder, Names()) as state, ExitStack() as stack:
            plugins = [PluginProcess(name, load, folder, stack) for name in times]
            first, *arriving = load.views()[load.fitting :]
            for plugin in plugins:  # warms up
                _admit(plugin, first, list(Resource), state, [])
            lists = at_start = 0
            for view in arriving:
                order = random.sample(list(Resource), 2)
                for plugin in random.sample(plugins, len(plugins)):
                    before = state.list_calls
                    start_lists = _admit(plugin, view, order, state, times[plugin.name])
                    if plugin.name == "ours":
                        lists += state.list_calls - before
                        at_start += start_lists
            ended = {plugin.name: plugin.stop() for plugin in plugins}
    served = len(arriving) + 1
    return LoadTimes(
        times,
        {name: cpu / served for name, (_, cpu) in ended.items()},
        ended["ours"][0] / served,
        lists / len(arriving),
        at_start,
    )


def _admit(
    plugin: PluginProcess,
    view: PodInfo,
    order: Sequence[Resource],
    state: MeasuringKubelet,
    times: list[float],
) -> int:
    """Make the six calls for one container; return the ``List`` calls at its start.

    ``List`` shows only the devices from our plugin.
    """
    shown = plugin.name == "ours"
    held: dict[Resource, Sequence[str]] = {}
    total = 0.0
    if shown:
        state.show(view, held)
    for resource in order:
        took, ids = plugin.prefer(resource, resource.count_in(ARRIVING))
        total += took
        took = plugin.calls[resource].allocate(ids)
        total += took
        plugin.take(resource, ids)
        held[resource] = ids
        if shown:
            state.show(view, held)
    before = state.list_calls
    for resource, allocated in held.items():
        took = plugin.calls[resource].prestart(allocated)
        total += took
    times.append(total)
    return state.list_calls - before
