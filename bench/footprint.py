"""What the agent costs its node: resident memory with many live containers, and idle CPU.

The agent is its own process, as on a node. Its pods are on a simulated API server, what they
hold is in a ``List`` that it reads, and a stand-in for the kubelet takes its registration,
keeps both device lists open and has a few more containers served, as they would be over time.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from agent.kubeletapi import deviceplugin_pb2 as api
from agent.kubeletapi import deviceplugin_pb2_grpc as rpc
from agent.podview import PodView
from agent.tickets import Resource, count_of
from bench.caller import KubeletRecord, PluginFailed, serving, shuffled
from bench.load import CARD_MEMORY, Load
from bench.result import Goal, Result, Table
from bench.servers import resident_mib
from contract.names import Names
from simulator.api.server import ApiServer, kubeconfig_for
from simulator.burst import container, pod
from simulator.client import ApiClient
from simulator.demo import cards_file
from simulator.manifests import Json, write_yaml

NAME = "footprint"

_NODE = "bench"
_GOAL_MIB = 120.0
_GOAL_CPU = 1.0
_WITHIN_S = 60.0
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What was measured.

    Attributes:
        live: containers that were there from the start.
        started: MiB resident once all of them are booked and recorded on their pods.
        served: MiB after more containers were served, one after the other.
        idle: CPU time over wall time while nothing happens, in percent.
    """

    live: int
    started: float
    served: float
    idle: float


def run(
    *, cards: int = 16, live: int = 400, arriving: int = 50, idle_seconds: float = 20.0
) -> Result:
    """Measure.

    Args:
        cards: how many cards, of 141 GiB each.
        live: how many containers live on the node.
        arriving: how many more are served before memory is measured for good.
        idle_seconds: how long CPU time is watched.

    Raises:
        PluginFailed: the agent did not come up, or died.
    """
    found = measure(Load(cards, live, arriving), idle_seconds)
    return Result(
        NAME,
        (
            Table(
                f"Footprint of the agent's process at {cards} cards of {CARD_MEMORY}",
                ("live", "MiB at the start", f"MiB after {arriving} more", "idle CPU %"),
                [(found.live, found.started, found.served, found.idle)],
            ),
        ),
        (
            Goal("MiB resident", _GOAL_MIB, max(found.started, found.served)),
            Goal("idle CPU, percent", _GOAL_CPU, found.idle),
        ),
    )


def measure(load: Load, idle_seconds: float) -> Footprint:
    """Run an agent on a loaded node and watch it.

    Raises:
        PluginFailed: the agent did not come up, or died.
    """
    names = Names()
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="gt-bench-", dir="/tmp"))
        )
        server = stack.enter_context(ApiServer())
        client = stack.enter_context(ApiClient(server.url))
        record = stack.enter_context(serving(load, folder, names))
        views = load.views()
        server.apply(*(_manifest(each, names) for each in views))
        node = stack.enter_context(_KubeletSide(folder, load))
        process = stack.enter_context(_agent(load, folder, server))
        node.wait(process)
        live = {view.id.name for view, _ in load.held()}
        _wait(lambda: live <= _assigned(client, names), process, "the live pods' records")
        started = resident_mib(process.pid)
        for view in views[load.settled :]:
            node.serve(view, record)
        served = {each.id.name for each in views}
        _wait(lambda: served <= _assigned(client, names), process, "the new pods' records")
        resident = resident_mib(process.pid)
        return Footprint(load.settled, started, resident, _cpu_percent(process.pid, idle_seconds))


def _manifest(view: PodView, names: Names) -> Json:
    demand = view.demand.containers[0].demand
    made = pod(view.id.name, [container("main", demand.cores, demand.memory, names)])
    made["spec"]["nodeName"] = _NODE
    return made


def _assigned(client: ApiClient, names: Names) -> set[str]:
    return {
        each["metadata"]["name"]
        for each in client.list("/api/v1/pods")["items"]
        if (each["metadata"].get("annotations") or {}).get(names.gpu_assigned) == "true"
    }


@contextmanager
def _agent(load: Load, folder: Path, server: ApiServer) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the agent's own command line."""
    write_yaml(folder / "cards.yaml", cards_file(load.cards, CARD_MEMORY))
    (folder / "kubeconfig").write_text(kubeconfig_for(server.url), encoding="utf-8")
    command = (
        f"-m agent --node-name {_NODE} --kubeconfig {folder}/kubeconfig --cards {folder}/cards.yaml"
        f" --plugin-dir {folder}/plugins --pod-resources-socket {folder}/r.sock"
        " --http-host 127.0.0.1 --http-port 0"
    )
    with (
        (folder / "agent.log").open("wb") as log,
        subprocess.Popen(  # noqa: S603 -- our own program
            [sys.executable, *command.split()],
            stderr=log,
            cwd=Path(__file__).parents[1],
        ) as process,
    ):
        try:
            yield process
        except PluginFailed as error:
            text = (folder / "agent.log").read_text(encoding="utf-8")
            raise PluginFailed(f"{error}: {text[-2000:]}") from error
        finally:
            process.terminate()
            process.wait(_WITHIN_S)


class _KubeletSide(rpc.RegistrationServicer):
    """The kubelet's side of the plugins: takes them, keeps their lists open, and calls them."""

    def __init__(self, folder: Path, load: Load) -> None:
        self._folder = folder / "plugins"
        self._taken: dict[Resource, set[str]] = {resource: set() for resource in Resource}
        for _, held in load.held():
            for resource, ids in held.items():
                self._taken[resource].update(ids)
        self._endpoints: dict[str, str] = {}
        self._both = threading.Event()
        self._channels: dict[Resource, grpc.Channel] = {}
        self._lists: list[Iterator[api.ListAndWatchResponse]] = []
        self._free: dict[Resource, list[str]] = {}
        self._server = grpc.server(ThreadPoolExecutor(2))

    def __enter__(self) -> Self:
        """Listen where plugins register."""
        self._folder.mkdir()
        rpc.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self._folder / 'kubelet.sock'}")
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Hang up."""
        for channel in self._channels.values():
            channel.close()
        self._server.stop(0).wait(5)

    def Register(  # noqa: N802 -- the protocol's name
        self,
        request: api.RegisterRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 -- gRPC's
    ) -> api.Empty:
        """Take a plugin."""
        self._endpoints[request.resource_name] = request.endpoint
        if len(self._endpoints) == len(Resource):
            self._both.set()
        return api.Empty()

    def wait(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait for both plugins, and keep the list of each open, as a kubelet does."""
        _wait(self._both.is_set, process, "its registration")
        names = Names()
        for resource, name in ((Resource.CORE, names.core), (Resource.MEMORY, names.memory)):
            socket = self._folder / self._endpoints[name]
            channel = grpc.insecure_channel(f"unix:{socket}", options=_OPTIONS)
            self._channels[resource] = channel
            lists = iter(rpc.DevicePluginStub(channel).ListAndWatch(api.Empty()))
            self._lists.append(lists)
            listed = {each.ID for each in next(lists).devices}
            self._free[resource] = shuffled(listed - self._taken[resource])

    def serve(self, view: PodView, record: KubeletRecord) -> None:
        """Make the calls for one new container, and show it in the record."""
        held: dict[Resource, Sequence[str]] = {}
        record.show(view, held)
        demand = view.demand.containers[0].demand
        for resource, channel in self._channels.items():
            stub = rpc.DevicePluginStub(channel)
            asked = api.ContainerPreferredAllocationRequest(
                available_deviceIDs=self._free[resource],
                allocation_size=count_of(demand, resource),
            )
            answer = stub.GetPreferredAllocation(
                api.PreferredAllocationRequest(container_requests=[asked]), timeout=_WITHIN_S
            )
            ids = tuple(answer.container_responses[0].deviceIDs)
            request = api.ContainerAllocateRequest(devices_ids=ids)
            stub.Allocate(api.AllocateRequest(container_requests=[request]), timeout=_WITHIN_S)
            self._free[resource] = [each for each in self._free[resource] if each not in ids]
            held[resource] = ids
            record.show(view, held)
        for resource, given in held.items():
            rpc.DevicePluginStub(self._channels[resource]).PreStartContainer(
                api.PreStartContainerRequest(devices_ids=given), timeout=_WITHIN_S
            )


def _cpu_percent(pid: int, seconds: float) -> float:
    """Watch how much CPU time a process uses."""
    before, began = _cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return 100 * (_cpu_seconds(pid) - before) / (time.monotonic() - began)


def _cpu_seconds(pid: int) -> float:
    # Fields 14 and 15 of proc(5), counted from behind the name, which may have spaces.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _wait(condition: Callable[[], bool], process: "subprocess.Popen[bytes]", what: str) -> None:
    deadline = time.monotonic() + _WITHIN_S
    while not condition():
        if process.poll() is not None:
            raise PluginFailed(f"the agent has died with status {process.returncode}")
        if time.monotonic() > deadline:
            raise PluginFailed(f"the agent did not come to {what} in {_WITHIN_S:g} s")
        time.sleep(0.2)
