"""Any order of registrations, ends and kubelets: in the end the newest plugin that runs serves."""

import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from simulator.kubelet.errors import PluginCallFailed
from tests.proxy.plugin import WITHIN, Plugin
from tests.proxy.site import Site, wait

ENDPOINTS = st.sampled_from(["a.sock", "b.sock", "c.sock"])
Action = Callable[[], None]


class Machine(RuleBasedStateMachine):
    """A node; the plugin that registered last and runs should serve."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(tempfile.mkdtemp(prefix="gt-proxy-", dir="/tmp"))
        self._node = Site(self._folder, patience=5, speed=0.5)
        self._node.__enter__()
        self._pool = ThreadPoolExecutor(2)
        self._count = 0
        self._plugins: list[Plugin] = []  # that run, in the order of their registrations
        self._up = True

    def _start_plugin(self, endpoint: str) -> Action:
        """Start a plugin and register it; the one that listened there before ends."""
        before = [each for each in self._plugins if each.endpoint == endpoint]
        self._count += 1
        name, devices = f"p{self._count}", self._count

        def start() -> None:
            for each in before:
                each.end()
            made = Plugin(self._node.plugin_dir, name, endpoint=endpoint, devices=devices)
            with suppress(grpc.RpcError):  # by a kubelet that ends; the proxy keeps the plugin
                made.register()
            self._plugins = [each for each in self._plugins if each not in before] + [made]

        return start

    def _end_plugin(self, number: int) -> Action:
        made = self._plugins.pop(number % len(self._plugins))
        return made.end

    @rule(endpoint=ENDPOINTS)
    def plugin_starts(self, endpoint: str) -> None:
        self._start_plugin(endpoint)()

    @precondition(lambda self: self._plugins)
    @rule(number=st.integers(0, 9))
    def plugin_registers_again(self, number: int) -> None:
        """As if it had found a new ``kubelet.sock``."""
        made = self._plugins[number % len(self._plugins)]
        with suppress(grpc.RpcError):
            made.register()
        self._plugins = [each for each in self._plugins if each is not made] + [made]

    @precondition(lambda self: self._plugins)
    @rule(number=st.integers(0, 9))
    def plugin_ends(self, number: int) -> None:
        self._end_plugin(number)()

    @precondition(lambda self: self._up)
    @rule()
    def kubelet_restarts(self) -> None:
        self.kubelet_is_killed()
        self.kubelet_starts()

    @precondition(lambda self: self._up)
    @rule()
    def kubelet_is_killed(self) -> None:
        self._node.kubelet.kill()
        self._up = False

    @precondition(lambda self: not self._up)
    @rule()
    def kubelet_starts(self) -> None:
        self._node.kubelet.start()
        self._up = True

    @precondition(lambda self: self._up)
    @rule()
    def sockets_are_removed(self) -> None:
        for each in self._node.kubelet_dir.glob("proxy-*.sock"):
            each.unlink(missing_ok=True)

    @precondition(lambda self: self._up)
    @rule(endpoint=ENDPOINTS)
    def plugin_starts_while_the_kubelet_restarts(self, endpoint: str) -> None:
        self._together(self._start_plugin(endpoint), self.kubelet_restarts)

    @precondition(lambda self: self._up and self._plugins)
    @rule(number=st.integers(0, 9))
    def plugin_ends_while_the_kubelet_restarts(self, number: int) -> None:
        self._together(self._end_plugin(number), self.kubelet_restarts)

    @precondition(lambda self: self._plugins)
    @rule(endpoint=ENDPOINTS, number=st.integers(0, 9))
    def plugin_starts_while_another_ends(self, endpoint: str, number: int) -> None:
        ending = self._plugins[number % len(self._plugins)]
        start = self._start_plugin(endpoint)
        if ending.endpoint != endpoint:
            self._plugins.remove(ending)
            self._together(start, ending.end)
        else:
            start()

    def _together(self, *actions: Action) -> None:
        for each in [self._pool.submit(action) for action in actions]:
            each.result(WITHIN)

    @precondition(lambda self: self._up and self._plugins)
    @rule()
    def the_newest_serves(self) -> None:
        newest = self._plugins[-1]
        devices = int(newest.name[1:])
        wait(f"the devices of {newest.name}", lambda: self._node.healthy == devices)

        def responds() -> bool:
            with suppress(PluginCallFailed, AssertionError):  # it is just being registered
                return self._node.allocate() == newest.name
            return False

        wait(f"{newest.name} responds", responds)

    def teardown(self) -> None:
        try:
            if not self._up:
                self.kubelet_starts()
            if self._plugins:
                self.the_newest_serves()
            assert self._node.defect is None
        finally:
            for each in self._plugins:
                each.end()
            self._node.__exit__(None, None, None)
            self._pool.shutdown()
            shutil.rmtree(self._folder)


class _Second(Machine):
    """The same rules, in other orders."""


class _Third(Machine):
    """As :class:`_Second`."""


_SETTINGS = settings(
    max_examples=6,  # the first of which is the shortest
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
# Three tests, so that processes can share them.
TestFirstInterleavings = Machine.TestCase
TestFirstInterleavings.settings = _SETTINGS
TestSecondInterleavings = _Second.TestCase
TestSecondInterleavings.settings = _SETTINGS
TestThirdInterleavings = _Third.TestCase
TestThirdInterleavings.settings = _SETTINGS
