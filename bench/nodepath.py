"""What a container waits for on its node: our agent against two bare plugins, in one run.

A container costs six calls over unix sockets: for each of its two resources a preferred
call, an ``Allocate`` and a ``PreStartContainer``. The bare plugin gets the very same messages
and echoes IDs. The two take turns, container by container, so that a noisy machine is
equally noisy to both. Between the calls the kubelet's ``List`` and checkpoint change as a real
one's, and every start is proven.
"""

import re
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

from bench.kubelet import KubeletRecord, TimedPlugin, shuffled
from bench.load import ARRIVING, Load
from bench.process import WITHIN_S, running, wait
from bench.result import Cell, Result, Table, wrong
from contract.demand import CORES_PER_CARD
from contract.names import Names
from contract.resource import Resource, count_of
from placement.pods import PodInfo

NAME = "nodepath"

_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else "/tmp"  # noqa: S108 -- as /run is
_PLUGINS = ("ours", "asking", "bare")
_CALLS = ("GetPreferredAllocation", "Allocate", "PreStartContainer")
Times = dict[str, list[float]]


def run(
    *,
    cards: Sequence[int] = (1, 8, 16),
    live: Sequence[int] = (0, 100, 400),
    containers: int = 60,
    seed: int = 1,
) -> Result:
    """Measure."""
    rows: list[tuple[Cell, ...]] = []
    calls: list[tuple[Cell, ...]] = []
    reads, lists_at_start = 0.0, 0
    for count in cards:
        for living in dict.fromkeys(Load(count, living, 0).settled for living in live):
            room = count * CORES_PER_CARD - living  # each container that comes takes one core
            load = Load(count, living, min(containers + 1, room))
            found = measure(load, seed=seed)
            reads = max(reads, found.reads)
            lists_at_start += found.lists_at_start
            took = {name: 1000 * median(each["container"]) for name, each in found.times.items()}
            bare = took["bare"]
            cpu = (1000 * each for each in found.cpu.values())
            shares = took["ours"] / bare, took["asking"] / bare
            counts = found.list_kib, found.lists, found.reads
            rows.append((count, living, *took.values(), *shares, *cpu, *counts))
            calls += [
                (
                    count,
                    living,
                    call,
                    *(1000 * median(of[call]) for of in found.times.values()),
                )
                for call in _CALLS
            ]
    return Result(
        NAME,
        (
            Table(
                f"Node path: milliseconds a container (six calls), median of up to {containers}",
                (
                    *("cards", "live", "ours", "asking", "bare", "ours : bare", "asking : bare"),
                    *("ours CPU", "asking CPU", "bare CPU"),
                    *("List KiB", "Lists a container", "API reads"),
                ),
                rows,
                (
                    "A card has 100 cores: no more than 75 containers live on one here.",
                    "CPU is that of the plugin's process. An API read is answered at once here.",
                    "asking is as bare, and asks for List in preferred calls, and reads the file.",
                ),
            ),
            Table("The same by call, milliseconds", ("cards", "live", "call", *_PLUGINS), calls),
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
    """What one load took, by plugin.

    Attributes:
        times: seconds, by call.
        cpu: CPU seconds of the plugin's process for one container.
        reads: API reads for one container.
        list_kib: size of a ``List`` answer.
        lists: ``List`` calls for one container.
        lists_at_start: those at PreStart, of all containers.
    """

    times: dict[str, Times]
    cpu: dict[str, float]
    reads: float
    list_kib: int
    lists: float
    lists_at_start: int


class PluginProcess:
    """One plugin's process, and what it is asked."""

    def __init__(self, name: str, load: Load, folder: Path, stack: ExitStack) -> None:
        """Start it, until *stack* ends, and wait until it serves.

        Raises:
            ProcessFailed: it does not.
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
        wait(lambda: self._told("serving") is not None, f"{name} serves", self._process)
        self.calls = {
            resource: TimedPlugin(folder / f"{name}-{resource.value}.sock") for resource in Resource
        }

    def take(self, resource: Resource, ids: Sequence[str]) -> None:
        """Record that the kubelet has given places away."""
        gone = set(ids)
        self._free[resource] = [each for each in self._free[resource] if each not in gone]

    def prefer(self, resource: Resource, size: int) -> tuple[float, tuple[str, ...]]:
        """Ask for a preference among all that is free; return seconds and IDs."""
        return self.calls[resource].prefer(self._free[resource], size)

    def stop(self) -> tuple[int, float]:
        """End it; return how often it would have read from the API, and the CPU seconds it took."""
        for each in self.calls.values():
            each.close()
        self._process.communicate(timeout=WITHIN_S)
        reads, cpu = (self._told("served") or "").split()
        return int(reads), float(cpu)

    def _told(self, word: str) -> str | None:
        """Return what follows a word that it has written, on its line."""
        found = re.search(rf"^{word}\b(.*)\n", self._log.read_text(encoding="utf-8"), re.MULTILINE)
        return found[1] if found else None


def measure(load: Load, *, seed: int) -> LoadTimes:
    """Measure one load."""
    random = Random(seed)  # noqa: S311 -- an order is to be repeatable
    times: dict[str, Times] = {name: defaultdict(list) for name in _PLUGINS}
    with tempfile.TemporaryDirectory(prefix="gt-bench-", dir=_MEMORY) as made:
        folder = Path(made)
        with KubeletRecord(load, folder, Names()) as record, ExitStack() as stack:
            plugins = [PluginProcess(name, load, folder, stack) for name in times]
            first, *arriving = load.views()[load.settled :]
            warm: Times = defaultdict(list)
            for plugin in plugins:
                _admit(plugin, first, list(Resource), record, warm)
            lists = at_start = 0
            for view in arriving:
                order = random.sample(list(Resource), 2)
                for plugin in random.sample(plugins, len(plugins)):
                    before = record.asked
                    asked = _admit(plugin, view, order, record, times[plugin.name])
                    if plugin.name == "ours":
                        lists += record.asked - before
                        at_start += asked
            size = record.size
            ended = {plugin.name: plugin.stop() for plugin in plugins}
    served = len(arriving) + 1
    return LoadTimes(
        times,
        {name: cpu / served for name, (_, cpu) in ended.items()},
        ended["ours"][0] / served,
        size // 1024,
        lists / len(arriving),
        at_start,
    )


def _admit(
    plugin: PluginProcess,
    view: PodInfo,
    order: Sequence[Resource],
    record: KubeletRecord,
    times: Times,
) -> int:
    """Make the six calls for one container; return the ``List`` calls at its start.

    Only our plugin's answers go into the record.
    """
    shown = plugin.name == "ours"
    held: dict[Resource, Sequence[str]] = {}
    total = 0.0
    if shown:
        record.show(view, held)
    for resource in order:
        took, ids = plugin.prefer(resource, count_of(ARRIVING, resource))
        times["GetPreferredAllocation"].append(took)
        total += took
        took = plugin.calls[resource].allocate(ids)
        times["Allocate"].append(took)
        total += took
        plugin.take(resource, ids)
        held[resource] = ids
        if shown:
            record.show(view, held)
    before = record.asked
    for resource, given in held.items():
        took = plugin.calls[resource].prestart(given)
        times["PreStartContainer"].append(took)
        total += took
    times["container"].append(total)
    return record.asked - before
