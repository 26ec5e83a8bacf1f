"""Any order of registrations, ends and kubelets: in the end the newest plugin that is alive serves.

Kubelet, proxy and plugins speak over real sockets. What a rule does is not waited for, so the next
one meets it half done; two may begin at the same moment.
"""

import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from simulator.kubelet.errors import PluginCallFailed
from tests.proxy.plugin import Plugin
from tests.proxy.site import Site, wait

pytestmark = pytest.mark.slow

ENDPOINTS = st.sampled_from(["a.sock", "b.sock", "c.sock"])
Action = Callable[[], None]


class Machine(RuleBasedStateMachine):
    """A node; what should serve is the plugin that registered last and is alive."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(tempfile.mkdtemp(prefix="gt-proxy-", dir="/tmp"))
        self._node = Site(self._folder, patience=5)
        self._node.__enter__()
        self._pool = ThreadPoolExecutor(2)
        self._count = 0
        self._alive: list[Plugin] = []  # in the order of their registrations
        self._up = True

    # --- what happens -------------------------------------------------------------------

    def _come(self, endpoint: str) -> Action:
        """Start a plugin and register it; whoever listened there before ends."""
        before = [each for each in self._alive if each.endpoint == endpoint]
        self._count += 1
        name, devices = f"p{self._count}", self._count

        def come() -> None:
            for each in before:
                each.end()
            made = Plugin(self._node.plugin_dir, name, endpoint=endpoint, devices=devices)
            with suppress(grpc.RpcError):  # a kubelet that dies refuses; the plugin stays known
                made.register()
            self._alive = [each for each in self._alive if each not in before] + [made]

        return come

    def _again(self, number: int) -> Action:
        """Let a plugin register again, as one does that has seen a new ``kubelet.sock``."""
        made = self._alive[number % len(self._alive)]

        def again() -> None:
            with suppress(grpc.RpcError):
                made.register()
            self._alive = [each for each in self._alive if each is not made] + [made]

        return again

    def _end(self, number: int) -> Action:
        made = self._alive.pop(number % len(self._alive))
        return made.end

    def _restart(self) -> None:
        self._die()
        self._start()

    def _die(self) -> None:
        self._node.kubelet.kill()
        self._up = False

    def _start(self) -> None:
        self._node.kubelet.start()
        self._up = True

    def _remove_sockets(self) -> None:
        for each in self._node.kubelet_dir.glob("proxy-*.sock"):
            each.unlink(missing_ok=True)

    # --- rules --------------------------------------------------------------------------

    @rule(endpoint=ENDPOINTS)
    def come(self, endpoint: str) -> None:
        self._come(endpoint)()

    @precondition(lambda self: self._alive)
    @rule(number=st.integers(0, 9))
    def again(self, number: int) -> None:
        self._again(number)()

    @precondition(lambda self: self._alive)
    @rule(number=st.integers(0, 9))
    def end(self, number: int) -> None:
        self._end(number)()

    @precondition(lambda self: self._up)
    @rule()
    def kubelet_restarts(self) -> None:
        self._restart()

    @precondition(lambda self: self._up)
    @rule()
    def kubelet_dies(self) -> None:
        self._die()

    @precondition(lambda self: not self._up)
    @rule()
    def kubelet_starts(self) -> None:
        self._start()

    @precondition(lambda self: self._up)
    @rule()
    def sockets_are_removed(self) -> None:
        self._remove_sockets()

    @precondition(lambda self: self._up)
    @rule(endpoint=ENDPOINTS)
    def come_while_the_kubelet_restarts(self, endpoint: str) -> None:
        self._together(self._come(endpoint), self._restart)

    @precondition(lambda self: self._up and self._alive)
    @rule(number=st.integers(0, 9))
    def end_while_the_kubelet_restarts(self, number: int) -> None:
        self._together(self._end(number), self._restart)

    @precondition(lambda self: self._alive)
    @rule(endpoint=ENDPOINTS, number=st.integers(0, 9))
    def one_comes_while_another_ends(self, endpoint: str, number: int) -> None:
        ending = self._alive[number % len(self._alive)]
        coming = self._come(endpoint)
        if ending.endpoint != endpoint:
            self._alive.remove(ending)
            self._together(coming, ending.end)
        else:
            coming()

    def _together(self, *actions: Action) -> None:
        for each in [self._pool.submit(action) for action in actions]:
            each.result(30)

    @precondition(lambda self: self._up and self._alive)
    @rule()
    def the_newest_serves(self) -> None:
        newest = self._alive[-1]
        devices = int(newest.name[1:])
        wait(f"the devices of {newest.name}", lambda: self._node.healthy == devices)

        def asks_it() -> bool:
            with suppress(
                PluginCallFailed, AssertionError
            ):  # the kubelet is just being registered with
                return self._node.allocate("d0").envs["BY"] == newest.name
            return False

        wait(f"{newest.name} is asked", asks_it)

    def teardown(self) -> None:
        try:
            if not self._up:
                self._start()
            if self._alive:
                self.the_newest_serves()
            assert self._node.defect is None
        finally:
            for each in self._alive:
                each.end()
            self._node.__exit__(None, None, None)
            self._pool.shutdown()
            shutil.rmtree(self._folder)


TestInterleavings = Machine.TestCase
TestInterleavings.settings = settings(
    max_examples=15,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
