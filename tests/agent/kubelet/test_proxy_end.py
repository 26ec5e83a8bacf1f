"""The agent stands in for a proxy that has ended, until the next one is there."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from agent.kubelet.registration import Registrar
from agent.kubelet.server import DevicePluginService
from contract.resource import Resource
from simulator.kubelet.node import Kubelet
from tests.agent.a_kubelet import client_of, registered
from tests.agent.fakes import NAMES, FakeCalls, eventually, make_manifest, make_table
from tests.agent.threads import running

pytestmark = pytest.mark.slow

BOTH = [NAMES.core, NAMES.memory]


class Site:
    """A kubelet, an agent's registrar, and a proxy between them that can be killed."""

    def __init__(self, kubelet: Kubelet, folder: Path, stack: ExitStack) -> None:
        self.kubelet = kubelet
        self.ends = 0
        self.services: list[DevicePluginService] = []
        self._folder = folder
        self._stack = stack
        self._proxy: subprocess.Popen[bytes] | None = None
        self.registrar = Registrar(
            plugin_dir=folder,
            kubelet_dir=kubelet.settings.plugin_dir,
            services={name: self._maker(each) for name, each in NAMES.resources.items()},
            on_proxy_end=self._ended,
        )

    def _ended(self) -> None:
        self.ends += 1

    def _maker(self, resource: Resource):  # type: ignore[no-untyped-def]
        def make() -> DevicePluginService:
            made = DevicePluginService(resource=resource, table=make_table(1), calls=FakeCalls())
            self.services.append(made)
            return made

        return make

    def begin(self) -> None:
        self._stack.enter_context(running(self.registrar.run, self.registrar.stop))

    def start_proxy(self) -> None:
        self._proxy = subprocess.Popen(
            [sys.executable, "-m", "proxy", "--kubelet-dir", self.kubelet.settings.plugin_dir,
             "--plugin-dir", self._folder, "--http-host", "127.0.0.1", "--http-port", "0"],
        )  # fmt: skip

    def end_proxy(self, number: int = signal.SIGKILL) -> None:
        if self._proxy is not None:
            self._proxy.send_signal(number)
            self._proxy.wait(20)

    def wait_served(self, *, by_proxy: bool) -> None:
        """Wait until the kubelet knows both resources' healthy devices, from proxy or agent."""
        eventually(
            lambda: self.registrar.registered and self.registrar.stands_in is not by_proxy,
            f"registered, by the proxy: {by_proxy}",
        )
        eventually(
            lambda: all(self.kubelet.capacity()[1].get(each) for each in BOTH), "healthy devices"
        )
        for each in BOTH:
            eventually(lambda each=each: self._socket_of(each) is by_proxy, "the right socket")  # type: ignore[misc]
            client_of(self.kubelet, each).connect()

    @contextmanager
    def pods(self) -> Iterator[list[str]]:
        """Have pods admitted one after the other meanwhile; give why each failed, or nothing."""
        over, reasons = threading.Event(), list[str]()

        def come() -> None:
            while not over.wait(0.02):
                name = f"p{len(reasons)}"
                self.kubelet.add_pods(make_manifest(name, (1, 1), uid=name))
                eventually(self.kubelet.idle, f"{name} is admitted")
                status = self.kubelet.status(name) or {}
                reasons.append(status.get("message", "") if status.get("phase") == "Failed" else "")
                self.kubelet.remove_pods(make_manifest(name, (1, 1), uid=name))

        thread = threading.Thread(target=come)
        thread.start()
        try:
            yield reasons
        finally:
            over.set()
            thread.join()

    def _socket_of(self, resource: str) -> bool:
        found = self.kubelet.instance.manager.plugins.get(resource)
        return found is not None and found.socket.name.startswith("proxy-")


@pytest.fixture
def site(kubelet: Kubelet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("p")
    with ExitStack() as stack:
        kubelet.start()
        made = Site(kubelet, folder, stack)
        stack.callback(made.end_proxy)
        yield made


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_kubelet_is_served_while_there_is_no_proxy_and_then_by_the_next_one(
    site: Site, number: int
) -> None:
    site.begin()
    site.start_proxy()
    site.wait_served(by_proxy=True)
    for times in range(1, 4):
        site.end_proxy(number)
        site.wait_served(by_proxy=False)
        assert site.ends == times
        site.start_proxy()
        site.wait_served(by_proxy=True)


def test_no_pod_fails_when_a_proxy_is_asked_to_end_nor_when_the_next_one_comes(
    site: Site,
) -> None:
    """The kubelet admits no pod while its newest plugin is dropped (K18): a call is held."""
    site.begin()
    site.start_proxy()
    site.wait_served(by_proxy=True)
    with site.pods() as pods:
        for _ in range(2):
            site.end_proxy(signal.SIGTERM)
            site.wait_served(by_proxy=False)
            site.start_proxy()
            site.wait_served(by_proxy=True)
    assert len(pods) > 20
    assert set(pods) == {""}


def test_an_agent_that_no_proxy_has_registered_waits_for_one(site: Site) -> None:
    """Else the kubelet would be served around a proxy that starts a little later."""
    site.begin()
    site.start_proxy()
    site.wait_served(by_proxy=True)
    assert sorted(registered(site.kubelet)) == sorted(BOTH)
    assert site.ends == 0


def test_a_kubelet_that_restarts_meanwhile_is_served_too(site: Site) -> None:
    site.begin()
    site.start_proxy()
    site.wait_served(by_proxy=True)
    site.end_proxy()
    site.wait_served(by_proxy=False)
    site.kubelet.restart()
    site.wait_served(by_proxy=False)
    assert site.ends == 1
