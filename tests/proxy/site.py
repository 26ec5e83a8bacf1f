"""A kubelet, a proxy and plugins on one node, over real sockets.

The kubelet is the simulated one, which obeys K11, K18, K19 and K26. The proxy runs in a thread of
this process, plugins in processes of their own.
"""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from proxy.program import PLUGIN, Proxy
from simulator.kubelet.node import Kubelet
from simulator.kubelet.plugins import PluginClient
from simulator.kubelet.responses import PluginResponse
from simulator.kubelet.settings import Settings
from simulator.kubelet.trace import TraceEvent

RESOURCE = "example.com/widget"
WITHIN = 20.0


def wait(what: str, condition: Callable[[], object], within: float = WITHIN) -> float:
    """Wait until a condition holds; return the seconds that it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + within, f"not within {within:g} s: {what}"
        time.sleep(0.002)
    return time.monotonic() - began


class PluginProcess:
    """A plugin of a process of its own."""

    def __init__(
        self,
        folder: Path,
        endpoint: str = "plugin.sock",
        kill_at: str = "",
        resource: str = RESOURCE,
    ) -> None:
        self.endpoint = endpoint
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.proxy.plugin_process",
                folder,
                endpoint,
                resource,
                kill_at,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_registered(self) -> Self:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "registered\n"
        return self

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self, number: int) -> None:
        self._process.send_signal(number)
        self._process.wait(WITHIN)

    def clean_up(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait(WITHIN)
        if self._process.stdout is not None:
            self._process.stdout.close()


class Site:
    """A kubelet's folder, a proxy's folder, and all that runs between them."""

    mode = PLUGIN

    def __init__(self, folder: Path, *, patience: float = 8.0) -> None:
        self.kubelet_dir, self.plugin_dir = folder / "k", folder / "p"
        for each in (self.kubelet_dir, self.plugin_dir):  # as the pod has them
            each.mkdir(exist_ok=True)
        self.patience = patience
        self.kubelet = Kubelet(
            Settings(node_name="n1", root_dir=folder / "root", plugin_dir=self.kubelet_dir)
        )
        self._plugins: list[PluginProcess] = []
        self.defect: BaseException | None = None

    def __enter__(self) -> Self:
        self.kubelet.start()
        self.start_proxy()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each in self._plugins:
            each.clean_up()
        self.stop_proxy()
        self.kubelet.kill()
        if error is None:
            assert self.defect is None

    def start_proxy(self) -> None:
        self.proxy = Proxy(
            self.kubelet_dir, self.plugin_dir, patience=self.patience, mode=self.mode
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        wait("the proxy listens", lambda: not self.proxy.readiness_problem())

    def stop_proxy(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.proxy.stop)
            self._thread.join(WITHIN)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self.proxy.run())
        except Exception as error:  # noqa: BLE001 -- told at the end
            self.defect = error
        finally:
            self._loop.close()

    def plugin(
        self, endpoint: str = "plugin.sock", kill_at: str = "", resource: str = RESOURCE
    ) -> PluginProcess:
        """Start a plugin, which registers when it can."""
        made = PluginProcess(self.plugin_dir, endpoint, kill_at, resource)
        self._plugins.append(made)
        return made

    def served(self, endpoint: str = "plugin.sock", kill_at: str = "") -> PluginProcess:
        """Start a plugin, and wait until the kubelet knows its devices."""
        lists = len(self.lists)
        made = self.plugin(endpoint, kill_at).wait_registered()
        wait("a list", lambda: len(self.lists) > lists or self.healthy)
        return made

    # --- what the kubelet knows, of all its lives ---------------------------------------

    def _events(self, event: str) -> list[TraceEvent]:
        return [each for each in self.kubelet.trace.events if each.event == event]

    @property
    def lists(self) -> list[tuple[int, int]]:
        """How many devices were on each list, and how many of them healthy."""
        return [(each.size, each.available) for each in self._events("devices")]

    @property
    def connections(self) -> int:
        return len(self._events("plugin"))

    @property
    def losses(self) -> int:
        return len(self._events("lost"))

    @property
    def options(self) -> Mapping[str, bool]:
        return self._events("plugin")[-1].detail

    @property
    def healthy(self) -> int:
        """How many devices it would give out."""
        return self.kubelet.capacity()[1].get(RESOURCE, 0)

    def client(self, resource: str = RESOURCE) -> PluginClient:
        found = self.kubelet.instance.manager.plugins.get(resource)
        assert found is not None, f"no plugin of {resource} is registered"
        return found

    def allocate(self, *ids: str) -> PluginResponse:
        response = self.client().allocate(ids)
        assert response is not None
        return response


@contextmanager
def site(folder: Path, *, patience: float = 8.0) -> Iterator[Site]:
    """Run one."""
    with Site(folder, patience=patience) as running:
        yield running
