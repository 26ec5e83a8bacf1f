"""Cost of measuring use: the agent's CPU time with and without it, on the node of ``footprint``.

The driver is the tests' stand-in for NVML, a shared library; its CPU time is included. A folder of
files stands in for ``/proc``, and a gRPC server in this process for the container runtime.
"""

import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc

from agent.runtime import cri
from agent.runtime.api import runtime_pb2
from bench.footprint import Site, loaded_site, wait_assigned
from bench.load import Load
from bench.onenode import running_agent
from bench.process import compile_library, cpu_percent, wait
from bench.result import Result, Table
from common.grpc_services import add_service
from contract.names import Names
from simulator.cluster import read_lines

NAME = "use"

USUAL = Load(cards=8, live=100, arriving=0)
_PROCESSES = 2  # in each container
_STUB = Path(__file__).parents[1] / "tests/agent/nvml_stub/nvml_stub.c"
_FIRST_PID = 10_000


def run(*, load: Load = USUAL, seconds: float = 60.0, period: str = "5s") -> Result:
    """Measure."""
    plain = measure(load, seconds, {})
    options = {"--measure-use": "on", "--use-period": period}
    measuring = measure(load, seconds, options)
    cost = max(measuring - plain, 0.0)
    return Result(
        NAME,
        (
            Table(
                f"CPU of an idle agent: {load.cards} cards, {load.fitting} containers "
                f"of {_PROCESSES} processes, use measured every {period}",
                ("", "CPU %"),
                [("without measuring", plain), ("with measuring", measuring), ("difference", cost)],
                ["This includes the stand-in for NVML, which reads a file in every call."],
            ),
        ),
    )


def measure(load: Load, seconds: float, options: Mapping[str, str]) -> float:
    """Return the CPU time of an agent in percent of a core.

    Raises:
        ProcessFailed: the agent did not become ready, or reports no use although it should.
    """
    with loaded_site(load, Names()) as node:
        library = node.folder / "lib"
        library.mkdir()
        compile_library(_STUB, library / "libnvidia-ml.so.1")
        with (
            _runtime(node, load) as socket,
            running_agent(
                load,
                node.folder,
                node.server.url,
                options={"--cri-socket": str(socket), **options},
                environment={
                    "LD_LIBRARY_PATH": str(library),
                    "NVML_STUB": str(node.folder / "nvml"),
                },
            ) as process,
        ):
            wait(lambda: len(node.kubelet.devices) == 2, "both lists of devices", process)
            expected = f"gpu_turnstile_agent_container_cores_{'used' if options else 'held'}{{"
            wait_assigned(node, {view.id.name for view, _ in load.held()}, process)
            wait(
                lambda: _has_gauges(node.folder, expected, load.fitting),
                f"a gauge {expected} for each container",
                process,
            )
            return cpu_percent(process.pid, seconds)


def _has_gauges(folder: Path, expected: str, containers: int) -> bool:
    """Return whether the agent exports the *expected* gauge of all containers, none of them 0."""
    lines = read_lines(folder / "agent.log")
    port = next((each["http_port"] for each in lines if each["message"] == "serving"), None)
    if port is None:
        return False
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text = response.read().decode()
    lines_with = [line for line in text.splitlines() if line.startswith(expected)]
    return sum(not line.endswith(" 0.0") for line in lines_with) == containers


class _Runtime:
    """A container runtime with the load's containers."""

    def __init__(self) -> None:
        self.containers: dict[str, runtime_pb2.Container] = {}

    def ListContainers(  # noqa: N802 -- the protocol's name
        self, request: runtime_pb2.ListContainersRequest, _context: grpc.ServicerContext
    ) -> runtime_pb2.ListContainersResponse:
        """Return the requested container, if it exists."""
        found = self.containers.get(request.filter.id)
        return runtime_pb2.ListContainersResponse(containers=[found] if found else [])


@contextmanager
def _runtime(node: Site, load: Load) -> Iterator[Path]:
    """Write processes, samples and cgroups of the load, and serve its containers on a socket."""
    runtime = _Runtime()
    uids = {
        each["metadata"]["name"]: each["metadata"]["uid"]
        for each in node.client.list("/api/v1/pods")["items"]
    }
    proc = node.folder / "proc"
    _put(proc, 1, "init.scope")
    cards = load.inventory().cards
    facts = ["driver 550.54.15", f"cards {len(cards)}"]
    for card in cards:
        name = f"card {card.index}"
        facts += [f"{name} uuid {card.uuid}", f"{name} mig 0", f"{name} gpu 80"]
        facts += [f"{name} used 1073741824", f"{name} memory {card.memory}"]
    indices, pid = {card.uuid: card.index for card in cards}, _FIRST_PID
    for number, (view, held) in enumerate(load.held()):
        container_id = f"{number:064x}"
        labels = {
            cri.NAME_LABEL: "main",
            cri.UID_LABEL: uids[view.id.name],
        }
        runtime.containers[container_id] = runtime_pb2.Container(
            id=container_id, state=runtime_pb2.CONTAINER_RUNNING, labels=labels
        )
        index = indices[next(iter(held.values()))[0].rpartition("::")[0]]
        for _ in range(_PROCESSES):
            pid += 1
            _put(proc, pid, f"kubepods/{container_id}")
            facts.append(f"process {index} C {pid} 1048576")
            facts.append(f"sample {index} {pid} 3 1000")
    (node.folder / "nvml").write_text("".join(f"{each}\n" for each in facts), encoding="ascii")
    server = grpc.server(ThreadPoolExecutor(2))
    add_service(server, runtime_pb2.DESCRIPTOR, "RuntimeService", runtime)
    socket = node.folder / "cri.sock"
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield socket
    finally:
        server.stop(0).wait(5)


def _put(proc: Path, pid: int, cgroup: str) -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "cgroup").write_text(f"0::/{cgroup}\n", encoding="ascii")
