"""What the device plugin proxy costs: latency and CPU of a call, memory, CPU while nothing happens.

A plugin that only echoes is called directly and through the proxy, in turns, with the messages of
a kubelet; so a noisy machine is equally noisy to both. Proxy and plugin are processes of their own;
the proxy has the environment of its DaemonSet.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles

import grpc
import yaml

from bench.caller import PluginFailed
from bench.cpu import cpu_us
from bench.echo import CHOSEN, RESOURCES, device_ids
from bench.result import Goal, Result, Table
from bench.servers import free_port, resident_mib
from common.kubelet_api import deviceplugin_pb2 as api
from common.kubelet_api import deviceplugin_pb2_grpc as rpc

NAME = "proxy"

DEVICES = 4560
"""Device IDs on offer: eight cards of 117 GiB."""
_MANIFEST = Path(__file__).parents[1] / "deploy/base/proxy/daemonset.yaml"
_WITHIN_S = 30.0
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.use_local_subchannel_pool", 1),
)
_CALLS = ("GetPreferredAllocation", "Allocate", "PreStartContainer")

_GOAL_MIB = 45.0
_GOAL_CPU_MS = 4.0
_GOAL_ADDED_MS = 0.7
_GOAL_IDLE_MS = 1.0
_GOAL_NEW_KUBELET_MS = 50.0


class _Kubelet(rpc.RegistrationServicer):
    """Takes registrations, and keeps a stream open to each plugin."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.known: dict[str, grpc.Channel] = {}
        self._lists: list[object] = []

    def Register(  # noqa: N802 -- the protocol's name
        self,
        request: api.RegisterRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 -- gRPC's
    ) -> api.Empty:
        """Dial the plugin, and watch its devices once it is answered."""
        channel = grpc.insecure_channel(f"unix:{self._folder / request.endpoint}", _OPTIONS)
        threading.Thread(target=self._watch, args=(request.resource_name, channel)).start()
        return api.Empty()

    def _watch(self, name: str, channel: grpc.Channel) -> None:
        lists = iter(rpc.DevicePluginStub(channel).ListAndWatch(api.Empty()))
        next(lists)
        self._lists.append(lists)
        self.known[name] = channel

    def close(self) -> None:
        """Hang up."""
        for each in self.known.values():
            each.close()


def _new_kubelet_ms(folder: Path) -> float:
    """Let another kubelet start; return the time until it has the devices of all plugins."""
    for each in folder.iterdir():
        each.unlink()
    with _kubelet(folder) as kubelet:
        began = time.perf_counter()
        _wait(lambda: set(kubelet.known) == set(RESOURCES), "both resources are registered")
        return 1000 * (time.perf_counter() - began)


@contextmanager
def _kubelet(folder: Path) -> Iterator[_Kubelet]:
    kubelet = _Kubelet(folder)
    server = grpc.server(ThreadPoolExecutor(4))
    rpc.add_RegistrationServicer_to_server(kubelet, server)
    server.add_insecure_port(f"unix:{folder / 'kubelet.sock'}")
    server.start()
    try:
        yield kubelet
    finally:
        kubelet.close()
        server.stop(0).wait(5)


def environment() -> dict[str, str]:
    """Read the proxy's environment in its DaemonSet."""
    manifests = yaml.safe_load_all(_MANIFEST.read_text(encoding="utf-8"))
    (manifest,) = (each for each in manifests if each["kind"] == "DaemonSet")
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"]}


@contextmanager
def _process(*arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(  # noqa: S603 -- our own program
        [sys.executable, "-m", *arguments],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[1],
        env=os.environ | environment(),
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(_WITHIN_S)


def _requests() -> list[tuple[str, str, bytes]]:
    """Make the six calls of one container: resource, method and message of each."""
    made = []
    for name, ids in zip(RESOURCES, device_ids(DEVICES), strict=True):
        chosen = ids[:CHOSEN]
        asked = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=ids, allocation_size=CHOSEN
        )
        messages = (
            api.PreferredAllocationRequest(container_requests=[asked]),
            api.AllocateRequest(
                container_requests=[api.ContainerAllocateRequest(devices_ids=chosen)]
            ),
            api.PreStartContainerRequest(devices_ids=chosen),
        )
        made += [
            (name, method, message.SerializeToString())
            for method, message in zip(_CALLS, messages, strict=True)
        ]
    return made


def _call(channel: grpc.Channel, method: str, request: bytes) -> float:
    call = channel.unary_unary(f"/v1beta1.DevicePlugin/{method}", None, None)
    began = time.perf_counter()
    call(request, timeout=_WITHIN_S)
    return time.perf_counter() - began


def run(*, containers: int = 300, idle_seconds: float = 20.0, kubelets: int = 20) -> Result:
    """Measure.

    Args:
        containers: how many containers' calls are made, each directly and through the proxy.
        idle_seconds: how long CPU time is watched.
        kubelets: how many start, one after the other.

    Raises:
        PluginFailed: a process did not come up.
    """
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    with ExitStack() as stack:
        enter = stack.enter_context
        top = Path(enter(tempfile.TemporaryDirectory(prefix="gt-bench-", dir="/tmp")))
        folders = {name: top / name for name in ("kubelet", "plugins")}
        folders["kubelet"].mkdir()
        port = free_port()
        kubelet = enter(_kubelet(folders["kubelet"]))
        proxy = enter(
            _process(
                *("proxy", "--kubelet-dir", str(folders["kubelet"])),
                *("--plugin-dir", str(folders["plugins"]), "--http-host", "127.0.0.1"),
                *("--http-port", str(port)),
            )
        )
        _wait((folders["plugins"] / "kubelet.sock").exists, "the proxy listens")
        enter(_process("bench.echo", str(folders["plugins"]), str(DEVICES)))
        _wait(lambda: set(kubelet.known) == set(RESOURCES), "both resources are registered")
        direct = {
            name: grpc.insecure_channel(
                f"unix:{folders['plugins'] / name.partition('/')[2]}.sock", _OPTIONS
            )
            for name in RESOURCES
        }
        requests = _requests()
        port_url = f"http://127.0.0.1:{port}/metrics"
        ways = {"direct": direct, "proxy": kubelet.known}
        for channels in ways.values():  # warms up
            for name, method, request in requests * 20:
                _call(channels[name], method, request)
        began = cpu_us(proxy.pid)
        for number in range(containers):
            for way in sorted(ways, reverse=bool(number % 2)):
                for name, method, request in requests:
                    times[way, method].append(_call(ways[way][name], method, request))
        cpu_ms = (cpu_us(proxy.pid) - began) / 1000 / containers
        with urllib.request.urlopen(port_url, timeout=_WITHIN_S) as scraped:
            scraped.read()
        resident = resident_mib(proxy.pid)
        before, since = cpu_us(proxy.pid), time.monotonic()
        time.sleep(idle_seconds)
        idle = (cpu_us(proxy.pid) - before) / 1000 / (time.monotonic() - since)
        for channel in direct.values():
            channel.close()
        kubelet.close()
        renewed = [_new_kubelet_ms(folders["kubelet"]) for _ in range(kubelets)]
    added = {
        method: 1000 * (median(times["proxy", method]) - median(times["direct", method]))
        for method in _CALLS
    }
    everything = {way: [each for method in _CALLS for each in times[way, method]] for way in ways}
    overall = 1000 * (median(everything["proxy"]) - median(everything["direct"]))
    rows = [(method, way, *_milliseconds(times[way, method])) for method in _CALLS for way in ways]
    return Result(
        NAME,
        (
            Table(
                f"Calls of {containers} containers, {DEVICES} device IDs on offer, milliseconds",
                ("call", "way", "median", "p99"),
                rows,
            ),
            Table(
                "The proxy's process",
                ("CPU ms a container (six calls)", "MiB resident", "idle CPU ms/s"),
                [(cpu_ms, resident, idle)],
            ),
            Table(
                f"From the socket of a new kubelet to its having all devices, {kubelets} kubelets",
                ("shortest ms", "median ms", "longest ms"),
                [(min(renewed), median(renewed), max(renewed))],
            ),
        ),
        (
            Goal("ms added to a call, median of all", _GOAL_ADDED_MS, overall),
            Goal("CPU ms for the six calls of a container", _GOAL_CPU_MS, cpu_ms),
            Goal("MiB resident", _GOAL_MIB, resident),
            Goal("CPU ms a second while idle", _GOAL_IDLE_MS, idle),
            Goal(
                "ms until a new kubelet has all devices, longest",
                _GOAL_NEW_KUBELET_MS,
                max(renewed),
            ),
        ),
        {"added_ms": added},
    )


def _milliseconds(seconds: Sequence[float]) -> tuple[float, float]:
    return 1000 * median(seconds), 1000 * quantiles(seconds, n=100)[98]


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _WITHIN_S
    while not condition():
        if time.monotonic() > deadline:
            raise PluginFailed(f"not within {_WITHIN_S:g} s: {what}")
        time.sleep(0.001)
