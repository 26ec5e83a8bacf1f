"""An agent with ``--mode dra`` behind the proxy: the kubelet's calls wait for the next agent."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.dra.claims import ClaimRef
from common.kubelet_api import dra_pb2 as pb
from proxy.program import DRA, Proxy
from simulator.client import ApiClient
from tests.agent.dra.a_claim import DraKubelet, add, channel_to, claims_stub, message_of
from tests.agent.fakes import DEADLINE_S, eventually, write_cards
from tests.agent.threads import running

pytestmark = pytest.mark.slow


@contextmanager
def proxy_running(proxy: Proxy) -> Iterator[None]:
    """Run a proxy in this process."""
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        await proxy.run()

    def stop() -> None:
        eventually(lambda: loops, "the proxy runs")
        loops[0].call_soon_threadsafe(proxy.stop)

    with running(lambda: asyncio.run(run()), stop):
        yield


class Site:
    """An agent behind a proxy, and the kubelet's one connection to the proxy."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self.folder = folder
        self.kubelet = DraKubelet(folder)
        write_cards(folder / "cards.yaml")
        for each in ("k", "p"):
            (folder / each).mkdir()
        common: list[str | Path] = [
            *("--mode", "dra", "--kubelet-dir", folder / "k", "--plugin-dir", folder / "p"),
            *("--http-host", "127.0.0.1", "--http-port", "0"),
        ]
        self.proxy_command = [sys.executable, "-m", "proxy", *common]
        self._agent_command = [
            *(sys.executable, "-m", "agent", *common, "--node-name", "n1"),
            *("--cards", folder / "cards.yaml", "--kubeconfig", kubeconfig),
            *("--cdi-dir", folder / "cdi", "--memory-block", "256Mi"),
        ]
        self._agents: list[subprocess.Popen[bytes]] = []

    def start_agent(self) -> None:
        self._agents.append(subprocess.Popen(self._agent_command))

    def kill_agent(self) -> None:
        """Kill the agent, and start the next one, as its supervisor would."""
        self._agents[-1].kill()
        self._agents[-1].wait(DEADLINE_S)
        self.start_agent()

    def suspend_agent(self) -> None:
        self._agents[-1].send_signal(signal.SIGSTOP)

    def end(self) -> None:
        for each in self._agents[-1:]:
            each.terminate()
            each.wait(DEADLINE_S)

    def prepare(self, *refs: ClaimRef) -> Mapping[str, Any]:
        """Call once, as a kubelet that does not try again; return the entries by UID."""
        return self._call("NodePrepareResources", pb.NodePrepareResourcesRequest, refs)

    def unprepare(self, *refs: ClaimRef) -> Mapping[str, Any]:
        return self._call("NodeUnprepareResources", pb.NodeUnprepareResourcesRequest, refs)

    def _call(self, method: str, message: Any, refs: tuple[ClaimRef, ...]) -> Mapping[str, Any]:
        request = message(claims=[message_of(each) for each in refs])
        with channel_to(self.kubelet.endpoint) as channel:
            call = getattr(claims_stub(channel), method)
            found: Mapping[str, Any] = call(request, timeout=2 * DEADLINE_S).claims
            return found


@pytest.fixture
def site(folder: Path, kubeconfig: Path, admin: ApiClient) -> Iterator[Site]:
    admin.create("/api/v1/nodes", {"metadata": {"name": "n1"}, "status": {}})
    made = Site(folder, kubeconfig)
    try:
        made.start_agent()
        yield made
    finally:
        made.end()


def test_no_call_fails_while_the_agent_is_killed_and_the_kubelet_keeps_one_registration(
    site: Site, admin: ApiClient
) -> None:
    """An agent that is killed during calls, and between them."""
    refs = [add(admin, f"p{n}", (f"gpu-{n % 2}", 10, 1)) for n in range(8)]
    prepared: dict[str, Any] = {}
    proxy = Proxy(site.folder / "k", site.folder / "p", patience=DEADLINE_S, mode=DRA)
    with proxy_running(proxy), ThreadPoolExecutor(3) as pool:
        site.kubelet.register()
        registered = list((site.folder / "plugins_registry").iterdir())
        (driver,) = proxy.drivers.found.values()
        driver.longest_call = DEADLINE_S  # in which the next agent has started on any machine
        for at in (0, 4):
            site.suspend_agent()
            calls = [pool.submit(site.prepare, each) for each in refs[at : at + 3]]
            eventually(lambda: driver.under_way == 3, "the calls have begun")
            site.kill_agent()
            entries = [each.result() for each in calls]
            site.kill_agent()
            entries.append(site.prepare(refs[at + 3]))  # between two agents
            for each in entries:
                prepared |= each
        assert {each.error for each in prepared.values()} == {""}
        assert prepared.keys() == {each.uid for each in refs}
        assert len(list((site.folder / "cdi").glob("*.json"))) == len(refs)
        again = site.prepare(*refs)
        assert {uid: str(each) for uid, each in again.items()} == {
            uid: str(each) for uid, each in prepared.items()
        }
        with site.kubelet.health() as stream:
            assert len(next(stream).devices) == 2
        assert {each.error for each in site.unprepare(*refs).values()} == {""}
        assert not list((site.folder / "cdi").glob("*.json"))
        assert list((site.folder / "plugins_registry").iterdir()) == registered


def test_after_a_killed_proxy_the_next_one_finds_the_agent(site: Site, admin: ApiClient) -> None:
    ref = add(admin, "a", ("gpu-0", 30, 4))
    entries = []
    for _ in range(2):
        with subprocess.Popen(site.proxy_command) as proxy:
            try:
                site.kubelet.register()
                entries.append(str(site.prepare(ref)[ref.uid]))
                (registered,) = (site.folder / "plugins_registry").iterdir()
                assert registered.name.startswith("proxy-")
            finally:
                proxy.kill()
    assert entries[0] == entries[1]
