"""The agent stands in for a proxy that has ended, until the next one has started."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from agent.kubelet.registration import Registrar, RegistrationSeconds
from agent.kubelet.server import DevicePluginService
from contract.resource import Resource
from tests.agent.a_kubelet import registered, responds
from tests.agent.fakes import DEADLINE_S, NAMES, FakeCalls, eventually, make_manifest, make_table
from tests.agent.threads import running
from tests.proxy.site import Site

BOTH = [NAMES.core, NAMES.memory]


def _make_service(resource: Resource) -> DevicePluginService:
    return DevicePluginService(resource=resource, table=make_table(1), calls=FakeCalls())


class AgentSite(Site):
    """A kubelet, an agent's registrar, and a proxy between them that ends."""

    def __init__(self, folder: Path, speed: float) -> None:
        super().__init__(folder, speed=speed)
        self.ends: list[None] = []
        self.registrar = Registrar(
            plugin_dir=self.plugin_dir,
            kubelet_dir=self.kubelet_dir,
            services={name: partial(_make_service, each) for name, each in NAMES.resources.items()},
            on_proxy_end=lambda: self.ends.append(None),
            seconds=RegistrationSeconds(response=DEADLINE_S, stream=10),
            clock=self.clock,
        )

    def wait_served(self, *, by_proxy: bool) -> None:
        """Wait until the kubelet knows both resources' healthy devices, from proxy or agent."""
        eventually(
            lambda: self.registrar.registered and self.registrar.stands_in is not by_proxy,
            f"registered, by the proxy: {by_proxy}",
        )
        eventually(
            lambda: all(self.kubelet.capacity()[1].get(each) for each in BOTH), "healthy devices"
        )
        eventually(
            lambda: all(self._is_proxys(each) is by_proxy for each in BOTH), "the right sockets"
        )
        eventually(lambda: all(responds(self.kubelet, each) for each in BOTH), "both respond")

    def _is_proxys(self, resource: str) -> bool:
        found = self.kubelet.instance.manager.plugins.get(resource)
        return found is not None and found.socket.name.startswith("proxy-")

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


@contextmanager
def proxy_process(site: AgentSite) -> Iterator[None]:
    """Run a proxy in a process of its own, which is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "proxy", "--kubelet-dir", site.kubelet_dir,
         "--plugin-dir", site.plugin_dir, "--http-host", "127.0.0.1", "--http-port", "0"],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        process.kill()
        process.wait(DEADLINE_S)


@pytest.fixture
def speed() -> float:
    """Seconds of the clock in a second."""
    return 1.0


@pytest.fixture
def site(folder: Path, speed: float) -> Iterator[AgentSite]:
    made = AgentSite(folder, speed)
    made.kubelet.start()
    with running(made.registrar.run, made.registrar.stop):
        yield made
    made.stop_proxy()
    made.kubelet.kill()


def test_the_agent_serves_the_kubelet_from_a_killed_proxy_to_the_next_one(site: AgentSite) -> None:
    with proxy_process(site):
        site.wait_served(by_proxy=True)
        assert sorted(registered(site.kubelet)) == sorted(BOTH)  # it has waited for the first proxy
        assert len(site.ends) == 0
    site.wait_served(by_proxy=False)
    site.kubelet.restart()
    site.wait_served(by_proxy=False)
    assert len(site.ends) == 1
    with proxy_process(site):
        site.wait_served(by_proxy=True)
    site.wait_served(by_proxy=False)
    assert len(site.ends) == 2


@pytest.mark.parametrize("speed", [0.2])  # a loaded machine does not exceed the short timeouts
def test_no_pod_fails_while_a_proxy_ends_and_the_next_one_starts(site: AgentSite) -> None:
    """The kubelet admits no pod while it drops its newest plugin (K18): a call is held."""
    site.start_proxy()
    site.wait_served(by_proxy=True)
    with site.pods() as pods:

        def wait_admitted() -> None:
            before = len(pods)
            eventually(lambda: len(pods) >= before + 3, "pods are admitted")

        wait_admitted()
        site.terminate()
        site.wait_served(by_proxy=False)
        wait_admitted()
        eventually(lambda: not site.proxy_runs, "the proxy ends")
        site.start_proxy()
        site.wait_served(by_proxy=True)
        wait_admitted()
    assert len(site.ends) == 1
    assert set(pods) == {""}
