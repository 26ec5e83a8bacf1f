"""The agent stands in for a proxy that has ended, until the next one has started."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from agent.kubelet.registration import Registrar
from agent.kubelet.server import DevicePluginService
from contract.resource import Resource
from simulator.kubelet.node import Kubelet
from tests.agent.a_kubelet import client_of, registered
from tests.agent.fakes import DEADLINE_S, NAMES, FakeCalls, eventually, make_manifest, make_table
from tests.agent.threads import running

BOTH = [NAMES.core, NAMES.memory]


def _make_service(resource: Resource) -> DevicePluginService:
    return DevicePluginService(resource=resource, table=make_table(1), calls=FakeCalls())


class Site:
    """A kubelet, an agent's registrar, and a proxy between them that can be killed."""

    def __init__(self, kubelet: Kubelet, folder: Path, stack: ExitStack) -> None:
        self.kubelet = kubelet
        self.ends = 0
        self._folder = folder
        self._stack = stack
        self._proxy: subprocess.Popen[bytes] | None = None
        self.registrar = Registrar(
            plugin_dir=folder,
            kubelet_dir=kubelet.settings.plugin_dir,
            services={name: partial(_make_service, each) for name, each in NAMES.resources.items()},
            on_proxy_end=self._ended,
        )

    def _ended(self) -> None:
        self.ends += 1

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
            self._proxy.wait(DEADLINE_S)

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
        """Admit pods one after the other meanwhile; give why each failed, or an empty text."""
        ended, reasons = threading.Event(), list[str]()

        def admit() -> None:
            while not ended.wait(0.02):
                name = f"p{len(reasons)}"
                self.kubelet.add_pods(make_manifest(name, (1, 1), uid=name))
                eventually(self.kubelet.idle, f"{name} is admitted")
                status = self.kubelet.status(name) or {}
                reasons.append(status.get("message", "") if status.get("phase") == "Failed" else "")
                self.kubelet.remove_pods(make_manifest(name, (1, 1), uid=name))

        with running(admit, ended.set):
            yield reasons

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


def test_the_agent_serves_the_kubelet_from_a_killed_proxy_to_the_next_one(site: Site) -> None:
    site.begin()
    site.start_proxy()
    site.wait_served(by_proxy=True)
    assert sorted(registered(site.kubelet)) == sorted(BOTH)  # it has waited for the first proxy
    assert site.ends == 0
    for times in (1, 2):
        site.end_proxy(signal.SIGKILL)
        site.wait_served(by_proxy=False)
        assert site.ends == times
        if times == 1:
            site.kubelet.restart()
            site.wait_served(by_proxy=False)
        site.start_proxy()
        site.wait_served(by_proxy=True)


def test_no_pod_fails_while_a_proxy_ends_at_sigterm_and_the_next_one_starts(site: Site) -> None:
    """The kubelet admits no pod while it drops its newest plugin (K18): a call is held."""
    site.begin()
    site.start_proxy()
    site.wait_served(by_proxy=True)
    with site.pods() as pods:

        def wait_admitted() -> None:
            before = len(pods)
            eventually(lambda: len(pods) >= before + 3, "pods are admitted")

        for _ in range(2):
            wait_admitted()
            site.end_proxy(signal.SIGTERM)
            site.wait_served(by_proxy=False)
            wait_admitted()
            site.start_proxy()
            site.wait_served(by_proxy=True)
        wait_admitted()
    assert site.ends == 2
    assert set(pods) == {""}
