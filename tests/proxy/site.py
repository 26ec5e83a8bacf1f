"""A kubelet (the simulated one), a proxy and plugins on one node, over real sockets."""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

from proxy.kubelet import KubeletEndpoint
from proxy.metrics import ProxyMetrics, metrics
from proxy.program import PLUGIN, Proxy
from proxy.resource import ProxiedResource
from simulator.kubelet.node import Kubelet
from simulator.kubelet.plugins import PluginClient
from simulator.kubelet.settings import Settings
from simulator.kubelet.trace import TraceEvent
from tests.proxy.plugin import RESOURCE, WITHIN, Plugin

SLOW = 0.1
"""Seconds of a clock in a second: a loaded machine does not exceed the proxy's short timeouts."""


class Clock:
    """The clock of event loops, also on other threads."""

    def __init__(self, speed: float = SLOW) -> None:
        self._speed = speed
        self._advanced = 0.0
        self._loops: list[ClockedLoop] = []

    def __call__(self) -> float:
        return time.monotonic() * self._speed + self._advanced

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass at once; return when the loops are awake."""
        self._advanced += seconds
        for each in self._loops:
            awake = threading.Event()
            with suppress(RuntimeError):  # it is closed
                each.call_soon_threadsafe(awake.set)
                awake.wait(1)

    def make_loop(self) -> asyncio.AbstractEventLoop:
        made = ClockedLoop(self)
        self._loops.append(made)
        return made


class ClockedLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own; timers, timeouts and sleeps follow it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        super().__init__()

    def time(self) -> float:
        return self._clock()


T = TypeVar("T")

PATIENCE = 10_000.0
"""It ends only if a test advances the clock by it."""


def wait(what: str, condition: Callable[[], object]) -> None:
    end = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < end, f"not within {WITHIN:g} s: {what}"
        time.sleep(0.002)


class Site:
    """A kubelet's folder, a proxy's folder, and all that runs between them."""

    mode = PLUGIN

    def __init__(self, folder: Path, *, patience: float = PATIENCE, speed: float = SLOW) -> None:
        self.kubelet_dir, self.plugin_dir = folder / "k", folder / "p"
        for each in (self.kubelet_dir, self.plugin_dir):  # as the pod has them
            each.mkdir(exist_ok=True)
        self.patience = patience
        self.clock = Clock(speed)
        self.kubelet = Kubelet(
            Settings(node_name="n1", root_dir=folder / "root", plugin_dir=self.kubelet_dir)
        )
        self.defect: BaseException | None = None
        self.terminate: Callable[[], Callable[[], None]] = lambda: lambda: None
        """Stops the newest proxy as SIGTERM does; the function waits for its end."""
        self._pool = ThreadPoolExecutor(32)
        self._plugins: list[Plugin] = []

    def __enter__(self) -> Self:
        self.kubelet.start()
        self.start_proxy()
        return self

    def __exit__(self, *raised: object) -> None:
        for each in self._plugins:
            each.end()
        self.stop_proxy()
        self.kubelet.kill()
        self._pool.shutdown()
        if not any(raised):
            assert self.defect is None

    def plugin(self, name: str = "a", *, endpoint: str = "", devices: int = 4) -> Plugin:
        self._plugins.append(Plugin(self.plugin_dir, name, endpoint=endpoint, devices=devices))
        return self._plugins[-1]

    def serve(self, name: str = "a") -> Plugin:
        """Register a plugin, and wait until the kubelet knows its devices."""
        made = self.plugin(name).register()
        self.wait_known()
        return made

    def start_proxy(self) -> None:
        self._launch()
        wait("the proxy listens", lambda: not self.proxy.readiness_problem())

    def surge(self) -> Callable[[], Callable[[], None]]:
        """Start the next proxy beside the old one; return the old one's :meth:`terminate`."""
        terminate_old = self.terminate
        self._launch()
        return terminate_old

    def stop_proxy(self) -> None:
        self.terminate()()

    def _launch(self) -> None:
        proxy = self.proxy = Proxy(
            self.kubelet_dir, self.plugin_dir, patience=self.patience, mode=self.mode
        )
        loop = self._loop = self.clock.make_loop()

        def run() -> None:
            try:
                loop.run_until_complete(proxy.run())
            except Exception as error:  # noqa: BLE001 -- asserted at the end
                self.defect = error
            finally:
                loop.close()

        def terminate() -> Callable[[], None]:
            with suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(proxy.stop)
            return lambda: self.advance_until("the proxy ends", lambda: not thread.is_alive())

        thread = self._thread = threading.Thread(target=run)
        thread.start()
        self.terminate = terminate

    def advance_until(self, what: str, condition: Callable[[], object]) -> None:
        def holds() -> bool:
            found = bool(condition())
            if not found:
                self.clock.advance(0.1)
            return found

        wait(what, holds)

    @property
    def proxy_runs(self) -> bool:
        return self._thread.is_alive()

    @property
    def endpoint(self) -> KubeletEndpoint:
        return self.proxy.endpoints[RESOURCE]

    @property
    def service(self) -> ProxiedResource:
        return self.endpoint.resource

    def metrics(self, name: str = RESOURCE) -> dict[str, float]:
        page = metrics(ProxyMetrics(self.proxy.endpoints, self.proxy.drivers.found, lambda: 0))
        found = re.findall(
            rf'^gpu_turnstile_proxy_(\w+){{resource="{name}"}} (\S+)$',
            page()[2].decode(),
            re.MULTILINE,
        )
        return {metric: float(value) for metric, value in found}

    def client(self, resource: str = RESOURCE) -> PluginClient:
        found = self.kubelet.instance.manager.plugins.get(resource)
        assert found is not None, f"no plugin of {resource} is registered"
        return found

    def allocate(self) -> str:
        """Call Allocate; return the name of the plugin that responds."""
        response = self.client().allocate(("d0",))
        assert response is not None
        return response.envs["BY"]

    def begin(self, call: Callable[[], T]) -> Future[T]:
        return self._pool.submit(call)

    def begin_allocate(self) -> Future[str]:
        return self.begin(self.allocate)

    def begin_waiting(self, calls: int = 1) -> list[Future[str]]:
        """Call Allocate so many times while no plugin serves; return when all calls wait."""
        begun = [self.begin_allocate() for _ in range(calls)]
        wait("all calls wait", lambda: self.service.waits.waiting == calls)
        return begun

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
        return self.kubelet.capacity()[1].get(RESOURCE, 0)

    def wait_known(self, devices: int = 4) -> None:
        wait(f"{devices} devices are known", lambda: self.healthy == devices)
