"""An agent with ``--mode dra`` behind the proxy: the kubelet's calls wait for the next agent."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.program import DRA, Proxy
from simulator.client import ApiClient
from tests.agent.dra.a_claim import DraKubelet, add
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


class AgentProcess:
    """An agent that can be stopped and killed, and is then started again."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        write_cards(folder / "cards.yaml")
        for each in ("k", "p"):
            (folder / each).mkdir()
        self._command: list[str | Path] = [
            *(sys.executable, "-m", "agent", "--mode", "dra", "--node-name", "n1"),
            *("--kubelet-dir", folder / "k", "--plugin-dir", folder / "p"),
            *("--http-host", "127.0.0.1", "--http-port", "0", "--memory-block", "256Mi"),
            *("--cards", folder / "cards.yaml", "--kubeconfig", kubeconfig),
            *("--cdi-dir", folder / "cdi"),
        ]
        self.process = subprocess.Popen(self._command)

    def kill(self) -> None:
        """Kill the agent, and start the next one, as its supervisor would."""
        self.process.kill()
        self.process.wait(DEADLINE_S)
        self.process = subprocess.Popen(self._command)


@pytest.fixture
def agent(folder: Path, kubeconfig: Path, admin: ApiClient) -> Iterator[AgentProcess]:
    admin.create("/api/v1/nodes", {"metadata": {"name": "n1"}, "status": {}})
    made = AgentProcess(folder, kubeconfig)
    yield made
    made.process.terminate()
    made.process.wait(DEADLINE_S)


def test_no_call_fails_while_the_agent_is_killed_and_the_kubelet_keeps_one_registration(
    folder: Path, agent: AgentProcess, admin: ApiClient
) -> None:
    """An agent that is killed during calls, and between them; the kubelet calls once."""
    refs = [add(admin, f"p{n}", (f"gpu-{n % 2}", 10, 1)) for n in range(8)]
    prepared: dict[str, Any] = {}
    kubelet, registry = DraKubelet(folder), folder / "plugins_registry"
    proxy = Proxy(folder / "k", folder / "p", patience=DEADLINE_S, mode=DRA)
    with proxy_running(proxy), ThreadPoolExecutor(3) as pool:
        kubelet.register()
        registered = list(registry.iterdir())
        (driver,) = proxy.drivers.found.values()
        driver.longest_call = DEADLINE_S  # in which the next agent has started on any machine
        for at in (0, 4):
            agent.process.send_signal(signal.SIGSTOP)
            calls = [pool.submit(kubelet.prepare, each) for each in refs[at : at + 3]]
            eventually(lambda: driver.under_way == 3, "the calls have begun")
            agent.kill()
            entries = [each.result() for each in calls]
            agent.kill()
            entries.append(kubelet.prepare(refs[at + 3]))  # between two agents
            for each in entries:
                prepared |= each
        assert {each.error for each in prepared.values()} == {""}
        assert prepared.keys() == {each.uid for each in refs}
        assert len(list((folder / "cdi").glob("*.json"))) == len(refs)
        assert dict(kubelet.prepare(*refs)) == prepared
        with kubelet.health() as stream:
            assert len(next(stream).devices) == 2
        assert {each.error for each in kubelet.unprepare(*refs).values()} == {""}
        assert not list((folder / "cdi").glob("*.json"))
        assert list(registry.iterdir()) == registered
