"""The agent's cost on its node: time until it has registered, resident memory, and idle CPU.

The agent is its own process, as on a node. A simulated API server has its pods, and ``List`` shows
the devices that they hold. The simulated kubelet's sockets accept its registration and keep both
device lists open. A few more containers are served, as on a node over time.
"""

import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.kubelet import MeasuringKubelet, Registry, shuffled
from bench.load import CARD_MEMORY, Load
from bench.onenode import NODE, api_settings, running_agent
from bench.process import Process, cpu_percent, cpu_us, resident_mib, wait
from bench.result import Result, Table
from contract.names import Names
from contract.resource import Resource
from placement.pods import PodInfo
from simulator.api.server import ApiServer
from simulator.burst import container, pod
from simulator.client import ApiClient
from simulator.manifests import Json

NAME = "footprint"

USUAL = Load(cards=8, live=100, arriving=20)
LARGE = Load(cards=16, live=400, arriving=50)


@dataclass(frozen=True, slots=True)
class Footprint:
    """The measured memory and CPU.

    Attributes:
        live: number of containers from the start.
        started: MiB resident when ``List`` and the pods' annotations have all of them.
        served: MiB resident after more containers were served, one after the other.
        idle: CPU time over wall time without any call, in percent.
    """

    live: int
    started: float
    served: float
    idle: float


@dataclass(frozen=True, slots=True)
class Start:
    """One start, from the start of the process until both resources are registered.

    Attributes:
        wall: wall time in seconds.
        cpu: CPU time of all threads in seconds.
    """

    wall: float
    cpu: float


def run(
    *, usual: Load = USUAL, large: Load = LARGE, starts: int = 15, idle_seconds: float = 20.0
) -> Result:
    """Measure."""
    measured = measure_starts(usual, starts)
    found = {load: measure(load, idle_seconds) for load in (usual, large)}
    walls, cpus = [each.wall for each in measured], [each.cpu for each in measured]
    return Result(
        NAME,
        (
            Table(
                f"Start after kill -9, until registered: {usual.cards} cards, "
                f"{usual.fitting} live containers, {len(measured)} starts",
                ("", "shortest", "median", "longest"),
                [
                    (what, min(values), statistics.median(values), max(values))
                    for what, values in (("wall s", walls), ("CPU s", cpus))
                ],
            ),
            Table(
                f"Footprint of the agent's process, cards of {CARD_MEMORY}",
                ("cards", "live", "MiB at the start", "MiB after more", "idle CPU %"),
                [
                    (load.cards, each.live, each.started, each.served, each.idle)
                    for load, each in found.items()
                ],
            ),
        ),
    )


@dataclass(frozen=True, slots=True)
class Site:
    """A loaded node without an agent."""

    folder: Path
    server: ApiServer
    client: ApiClient
    state: MeasuringKubelet
    kubelet: Registry


@contextmanager
def loaded_site(load: Load, names: Names) -> Iterator[Site]:
    """Set up a node with its load, but without an agent."""
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="gt-bench-", dir="/tmp"))
        )
        server = stack.enter_context(ApiServer(api_settings(folder)))
        client = stack.enter_context(ApiClient(server.url, ca_file=str(folder / "ca.crt")))
        server.apply(*(_manifest(each, names) for each in load.views()))
        pods = [each["metadata"] for each in client.list("/api/v1/pods")["items"]]
        uids = {each["name"]: each["uid"] for each in pods}
        state = stack.enter_context(MeasuringKubelet(load, folder, names, uids))
        kubelet = stack.enter_context(Registry(folder / "plugins"))
        yield Site(folder, server, client, state, kubelet)


def measure_starts(load: Load, starts: int) -> list[Start]:
    """Start an agent and kill it, several times.

    The first start is not counted: it writes the bytecode that an image already has.
    """
    found = []
    live = {view.id.name for view, _ in load.held()}
    with loaded_site(load, Names()) as site:
        for _ in range(starts + 1):
            site.kubelet.clear_registered()
            began = time.monotonic()
            with running_agent(load, site.folder, site.server.url, end=signal.SIGKILL) as process:
                wait(lambda: len(site.kubelet.registered) == 2, "registration", process)
                found.append(Start(time.monotonic() - began, cpu_us(process.pid) / 1e6))
                wait_assigned(site, live, process)
    return found[1:]


def measure(load: Load, idle_seconds: float) -> Footprint:
    """Run an agent on a loaded node and measure its memory and CPU."""
    names = Names()
    with (
        loaded_site(load, names) as site,
        running_agent(load, site.folder, site.server.url) as process,
    ):
        wait(lambda: len(site.kubelet.devices) == 2, "both lists of devices", process)
        wait_assigned(site, {view.id.name for view, _ in load.held()}, process)
        started = resident_mib(process.pid)
        views = load.views()
        _serve(load, site, names)
        wait_assigned(site, {each.id.name for each in views}, process)
        resident = resident_mib(process.pid)
        return Footprint(load.fitting, started, resident, cpu_percent(process.pid, idle_seconds))


def _manifest(view: PodInfo, names: Names) -> Json:
    demand = view.demand.containers[0].demand
    made = pod(view.id.name, [container("main", demand.cores, demand.memory, names)])
    made["spec"]["nodeName"] = NODE
    return made


def _serve(load: Load, site: Site, names: Names) -> None:
    """Make the calls for the load's new containers, and show them in ``List``."""
    taken: dict[Resource, set[str]] = {resource: set() for resource in Resource}
    for _, devices in load.held():
        for resource, ids in devices.items():
            taken[resource].update(ids)
    resource_names = {Resource.CORE: names.core, Resource.MEMORY: names.memory}
    plugins = {name: site.kubelet.plugin(name) for name in resource_names.values()}
    for view in load.views()[load.fitting :]:
        held: dict[Resource, Sequence[str]] = {}
        site.state.show(view, held)
        for resource, name in resource_names.items():
            plugin = plugins[name]
            free = shuffled({*site.kubelet.devices[name]} - taken[resource])
            _, ids = plugin.prefer(free, resource.count_in(view.demand.containers[0].demand))
            plugin.allocate(ids)
            taken[resource].update(ids)
            held[resource] = ids
            site.state.show(view, held)
        for resource, allocated in held.items():
            plugins[resource_names[resource]].prestart(allocated)


def wait_assigned(site: Site, pods: set[str], process: Process) -> None:
    """Wait until the pods have their allocation annotations."""

    def written() -> set[str]:
        listed = site.client.list("/api/v1/pods")["items"]
        key = Names().gpu_assigned
        return {
            each["metadata"]["name"]
            for each in listed
            if (each["metadata"].get("annotations") or {}).get(key) == "true"
        }

    wait(lambda: pods <= written(), "the pods' allocation annotations", process)
