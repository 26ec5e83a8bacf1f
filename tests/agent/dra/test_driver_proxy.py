"""An agent with ``--mode dra`` behind the proxy: the kubelet's calls wait for the next agent."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.dra.claims import ClaimRef
from common.kubelet_api import dra_pb2 as pb
from simulator.client import ApiClient
from tests.agent.dra.a_claim import DraKubelet, add, channel_to, claims_stub, message_of
from tests.agent.fakes import DEADLINE_S, write_cards

pytestmark = pytest.mark.slow


class Site:
    """A proxy, an agent behind it, and the kubelet's one connection to the proxy."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self.folder = folder
        self.kubelet = DraKubelet(folder)
        write_cards(folder / "cards.yaml")
        (folder / "k").mkdir()
        folders: list[str | Path] = ["--kubelet-dir", folder / "k", "--plugin-dir", folder / "p"]
        http = ["--http-host", "127.0.0.1", "--http-port", "0"]
        self._proxy: list[str | Path] = [
            sys.executable,
            "-m",
            "proxy",
            "--mode",
            "dra",
            *folders,
            *http,
        ]
        self._agent: list[str | Path] = [
            sys.executable, "-m", "agent", *folders, *http, "--node-name", "n1",
            "--mode", "dra", "--cards", folder / "cards.yaml", "--kubeconfig", kubeconfig,
            "--cdi-dir", folder / "cdi", "--memory-block", "256Mi",
        ]  # fmt: skip
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._running.append(subprocess.Popen(self._proxy))
        self.start_agent()
        self._connect()

    def _connect(self) -> None:
        self.kubelet.register()
        self._channel = channel_to(self.kubelet.endpoint)
        self._stub = claims_stub(self._channel)

    def kill_proxy(self) -> None:
        """Kill the proxy, and start the next one, as the kubelet would; register that."""
        self._running[0].kill()
        self._running[0].wait(DEADLINE_S)
        self._channel.close()
        self._running[0] = subprocess.Popen(self._proxy)
        self._connect()

    def start_agent(self) -> None:
        self._running.append(subprocess.Popen(self._agent))

    def kill_agent(self) -> None:
        """Kill the agent, and start the next one, as its supervisor would."""
        self._running[-1].kill()
        self._running.pop().wait(DEADLINE_S)
        self.start_agent()

    def stop_agent(self) -> None:
        """Stop the agent in the middle of what it does."""
        self._running[-1].send_signal(signal.SIGSTOP)

    def end(self) -> None:
        self._channel.close()
        for each in reversed(self._running):
            each.terminate()
            each.wait(DEADLINE_S)

    def prepare(self, *refs: ClaimRef) -> Mapping[str, Any]:
        """Call once, as a kubelet that does not try again; return the entries by UID."""
        request = pb.NodePrepareResourcesRequest(claims=[message_of(each) for each in refs])
        found: Mapping[str, Any] = self._stub.NodePrepareResources(request, timeout=45).claims
        return found

    def unprepare(self, *refs: ClaimRef) -> Mapping[str, Any]:
        request = pb.NodeUnprepareResourcesRequest(claims=[message_of(each) for each in refs])
        found: Mapping[str, Any] = self._stub.NodeUnprepareResources(request, timeout=45).claims
        return found


@pytest.fixture
def site(folder: Path, kubeconfig: Path, admin: ApiClient) -> Iterator[Site]:
    admin.create("/api/v1/nodes", {"metadata": {"name": "n1"}, "status": {}})
    made = Site(folder, kubeconfig)
    try:
        made.start()
        yield made
    finally:
        made.end()


@contextmanager
def asked(site: Site, refs: Sequence[ClaimRef]) -> Iterator[list[Future[Any]]]:
    """Ask for each claim in a call of its own, at the same time."""
    with ThreadPoolExecutor(len(refs)) as pool:
        yield [pool.submit(site.prepare, each) for each in refs]


def test_three_kills_of_the_agent_fail_no_call(site: Site, admin: ApiClient) -> None:
    refs = [add(admin, f"p{n}", (f"gpu-{n % 2}", 10, 1)) for n in range(12)]
    prepared: dict[str, Any] = {}
    for at in range(3):
        site.stop_agent()  # so the calls below are open when it is killed
        with asked(site, refs[at * 4 : at * 4 + 3]) as calls:
            time.sleep(0.3)
            site.kill_agent()
            answers = [each.result() for each in calls]
        site.kill_agent()
        answers.append(site.prepare(refs[at * 4 + 3]))  # between two agents
        for entries in answers:
            assert [each.error for each in entries.values()] == [""]
            prepared |= entries
    assert prepared.keys() == {each.uid for each in refs}
    assert len(list((site.folder / "cdi").glob("*.json"))) == 12
    again = site.prepare(*refs)
    assert {uid: str(each) for uid, each in again.items()} == {
        uid: str(each) for uid, each in prepared.items()
    }
    gone = site.unprepare(*refs)
    assert {each.error for each in gone.values()} == {""}
    assert not list((site.folder / "cdi").glob("*.json"))


def test_the_kubelet_keeps_one_registration(site: Site, admin: ApiClient) -> None:
    registry = site.folder / "plugins_registry"
    before = list(registry.iterdir())
    site.kill_agent()
    ref = add(admin, "a", ("gpu-0", 30, 4))
    assert site.prepare(ref)[ref.uid].error == ""
    assert list(registry.iterdir()) == before
    with site.kubelet.health() as stream:
        assert len(next(stream).devices) == 2


def test_after_a_killed_proxy_the_next_one_finds_the_agent(site: Site, admin: ApiClient) -> None:
    ref = add(admin, "a", ("gpu-0", 30, 4))
    before = str(site.prepare(ref)[ref.uid])
    site.kill_proxy()
    assert str(site.prepare(ref)[ref.uid]) == before
    (registered,) = (site.folder / "plugins_registry").iterdir()  # none of the killed proxy
    assert registered.name.startswith("proxy-")
