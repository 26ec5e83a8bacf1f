"""Cost of the device plugin proxy: latency and CPU time of a call, memory, and idle CPU.

A plugin with fixed responses is called directly and through the proxy, with the messages of a
kubelet. The two ways take turns, so other load on the machine affects both. Proxy and plugin have
their own processes; the proxy has the environment of its DaemonSet.
"""

import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles

import yaml

from bench.echo import CHOSEN, RESOURCES, device_ids
from bench.kubelet import Registry, TimedPlugin
from bench.process import cpu_percent, cpu_us, resident_mib, running, wait
from bench.result import Result, Table
from simulator.cluster import free_port

NAME = "proxy"

DEVICES = 4560
"""Number of device IDs: eight cards of 117 GiB."""
_MANIFEST = Path(__file__).parents[1] / "deploy/base/proxy/daemonset.yaml"
_CALLS = ("GetPreferredAllocation", "Allocate", "PreStartContainer")


def _new_kubelet_ms(folder: Path) -> float:
    """Start another kubelet; return milliseconds until it has the devices of all plugins."""
    for each in folder.iterdir():
        each.unlink()
    with Registry(folder) as kubelet:
        began = time.perf_counter()
        wait(lambda: set(kubelet.devices) == set(RESOURCES), "both resources are registered")
        return 1000 * (time.perf_counter() - began)


def environment() -> dict[str, str]:
    """Return the proxy's environment from its DaemonSet."""
    manifests = yaml.safe_load_all(_MANIFEST.read_text(encoding="utf-8"))
    (manifest,) = (each for each in manifests if each["kind"] == "DaemonSet")
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"]}


def _serve(plugins: Mapping[str, TimedPlugin]) -> Iterator[tuple[str, float]]:
    """Make the six calls of one container; yield the method and the seconds of each."""
    for name, ids in zip(RESOURCES, device_ids(DEVICES), strict=True):
        took, chosen = plugins[name].prefer(ids, CHOSEN)
        yield "GetPreferredAllocation", took
        yield "Allocate", plugins[name].allocate(chosen)
        yield "PreStartContainer", plugins[name].prestart(chosen)


def run(*, containers: int = 300, idle_seconds: float = 20.0, kubelets: int = 20) -> Result:
    """Measure."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    with ExitStack() as stack:
        enter = stack.enter_context
        top = Path(enter(tempfile.TemporaryDirectory(prefix="gt-bench-", dir="/tmp")))
        folders = {name: top / name for name in ("kubelet", "plugins")}
        folders["kubelet"].mkdir()
        port = free_port()
        kubelet = enter(Registry(folders["kubelet"]))
        options = (
            f"proxy --kubelet-dir {folders['kubelet']} --plugin-dir {folders['plugins']}"
            f" --http-host 127.0.0.1 --http-port {port}"
        )
        proxy = enter(running(options.split(), top / "proxy.log", environment()))
        wait((folders["plugins"] / "kubelet.sock").exists, "the proxy listens", proxy)
        echo = ("bench.echo", str(folders["plugins"]), str(DEVICES))
        enter(running(echo, top / "echo.log"))
        wait(lambda: set(kubelet.devices) == set(RESOURCES), "both resources are registered")
        sockets = {name: f"{name.partition('/')[2]}.sock" for name in RESOURCES}
        direct = {
            name: TimedPlugin(folders["plugins"] / socket) for name, socket in sockets.items()
        }
        proxied = {name: kubelet.plugin(name) for name in RESOURCES}
        ways = {"direct": direct, "proxy": proxied}
        for plugins in ways.values():  # warms up
            for _ in range(20):
                dict(_serve(plugins))
        began = cpu_us(proxy.pid)
        for number in range(containers):
            for way in sorted(ways, reverse=bool(number % 2)):
                for method, took in _serve(ways[way]):
                    times[way, method].append(took)
        cpu_ms = (cpu_us(proxy.pid) - began) / 1000 / containers
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as scraped:
            scraped.read()
        resident = resident_mib(proxy.pid)
        idle = 10 * cpu_percent(proxy.pid, idle_seconds)
        for each in (*direct.values(), *proxied.values()):
            each.close()
        renewed = [_new_kubelet_ms(folders["kubelet"]) for _ in range(kubelets)]
    rows = [
        (method, way, *_milliseconds(times[way, method]), _ratio(times, method, way))
        for method in _CALLS
        for way in ways
    ]
    return Result(
        NAME,
        (
            Table(
                f"Calls of {containers} containers, {DEVICES} device IDs, milliseconds",
                ("call", "way", "median", "p99", "median : direct"),
                rows,
            ),
            Table(
                "The proxy's process",
                ("CPU ms a container (six calls)", "MiB resident", "idle CPU ms/s"),
                [(cpu_ms, resident, idle)],
            ),
            Table(
                f"Time from a new kubelet's socket until it has all devices, {kubelets} kubelets",
                ("shortest ms", "median ms", "longest ms"),
                [(min(renewed), median(renewed), max(renewed))],
            ),
        ),
    )


def _ratio(times: Mapping[tuple[str, str], Sequence[float]], method: str, way: str) -> float:
    return median(times[way, method]) / median(times["direct", method])


def _milliseconds(seconds: Sequence[float]) -> tuple[float, float]:
    return 1000 * median(seconds), 1000 * quantiles(seconds, n=100)[98]
