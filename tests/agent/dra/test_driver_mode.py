"""An agent with ``--mode dra``, alone or behind the proxy, a kubelet, and the API server."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.app.agent import Agent
from agent.settings import AgentMode
from proxy.program import DRA, Proxy
from simulator.client import ApiClient
from tests.agent import threads
from tests.agent.app.whole import events, metrics, ready, running
from tests.agent.dra.a_claim import DRIVER, PODS, SLICES, DraKubelet, add, spec_of
from tests.agent.fakes import (
    DEADLINE_S,
    NAMES,
    eventually,
    make_manifest,
    make_settings,
    write_cards,
)
from tests.agent.injection.test_cdi import schema

pytestmark = pytest.mark.slow

NODE = "/api/v1/nodes/n1"


@pytest.fixture
def node(folder: Path, admin: ApiClient) -> Path:
    """A node with two cards of 32 blocks, whose kubelet has a folder."""
    (folder / "p").mkdir()
    write_cards(folder / "cards.yaml")
    admin.create("/api/v1/nodes", {"metadata": {"name": "n1"}, "status": {}})
    return folder


@contextmanager
def agent_of(node: Path, kubeconfig: Path, **more: Any) -> Iterator[tuple[Agent, DraKubelet]]:
    settings = make_settings(
        node,
        mode=AgentMode.DRA,
        cards=node / "cards.yaml",
        kubeconfig=kubeconfig,
        cdi_dir=node / "cdi",
        state_dir=node / "state",
        **more,
    )
    kubelet = DraKubelet(node)
    with running(settings) as agent:
        kubelet.register()
        eventually(lambda: ready(agent), "the agent is ready")
        yield agent, kubelet


def slices(admin: ApiClient) -> list[Any]:
    items: list[Any] = admin.get(SLICES)["items"]
    return items


def test_a_pod_gets_each_request_as_one_cdi_device(
    node: Path, kubeconfig: Path, admin: ApiClient
) -> None:
    with agent_of(node, kubeconfig) as (agent, kubelet):
        assert list(kubelet.services) == ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
        ref = add(admin, "a", ("gpu-0", 30, 4), ("gpu-1", 100, 1))
        entry = kubelet.prepare(ref)[ref.uid]
        assert entry.error == ""
        assert [
            (*each.request_names, each.pool_name, each.device_name, *each.cdi_device_ids)
            for each in entry.devices
        ] == [
            ("c0", "n1", "gpu-0", f"{DRIVER}/claim={ref.uid}-0"),
            ("c1", "n1", "gpu-1", f"{DRIVER}/claim={ref.uid}-1"),
        ]
        assert entry.devices[0].share_id == "share-c0-gpu-0"
        schema().validate(spec_of(node / "cdi", ref))

        def annotated() -> Any:
            pod = admin.get(f"{PODS}/a")["metadata"]["annotations"]
            return json.loads(pod.get(NAMES.gpu_allocation, "{}"))

        eventually(annotated, "the allocation is written")
        assert annotated()["c0"] == {
            "cards": ["GPU-0"], "cores": 30, "memoryBlocks": 4, "evidence": "claim"
        }  # fmt: skip
        assert 'decisions_total{call="prepare",evidence="claim"} 1.0' in metrics(agent)
        twice = add(admin, "twice", ("gpu-0", 80, 4))
        assert "30 of 100 are held by default/a-gpus" in kubelet.prepare(twice)[twice.uid].error
        eventually(lambda: "GPURefused" in str(events(admin)), "the refusal is an Event")
        for _ in range(2):
            assert kubelet.unprepare(ref)[ref.uid].error == ""
        assert not list((node / "cdi").glob("*.json"))


def test_a_claim_is_refused_while_the_nodes_container_runtime_reads_no_cdi_specs(
    node: Path, kubeconfig: Path, admin: ApiClient
) -> None:
    """Else its containers would start without their cards."""

    def run(version: str) -> None:
        status = {"nodeInfo": {"containerRuntimeVersion": version}}
        admin.patch(f"{NODE}/status", {"status": status})

    run("containerd://1.6.20")
    with agent_of(node, kubeconfig) as (_, kubelet):
        ref = add(admin, "a", ("gpu-0", 30, 4))
        assert kubelet.prepare(ref)[ref.uid].error == (
            "the containers would start without their cards: containerd 1.6.20 reads no CDI "
            "specs, 1.7 and newer do"
        )
        eventually(lambda: "GPURefused" in str(events(admin)), "the refusal is an Event")
        assert not list((node / "cdi").glob("*.json"))
        run("containerd://1.7.27")
        eventually(lambda: not kubelet.prepare(ref)[ref.uid].error, "it is prepared")


def test_slices_follow_cordons_and_come_back(
    node: Path, kubeconfig: Path, admin: ApiClient
) -> None:
    with agent_of(node, kubeconfig):
        (found,) = eventually(lambda: slices(admin), "the slice is published")
        uid = admin.get(NODE)["metadata"]["uid"]
        assert found["metadata"]["ownerReferences"][0]["uid"] == uid
        assert found["spec"]["pool"] == {"name": "n1", "generation": 1, "resourceSliceCount": 1}
        assert found["spec"]["devices"][0]["attributes"]["model"] == {"string": "fake"}
        admin.patch(NODE, {"metadata": {"annotations": {NAMES.gpu_cordoned: "GPU-1"}}})
        eventually(
            lambda: "taints" in slices(admin)[0]["spec"]["devices"][1], "the card is tainted"
        )
        assert slices(admin)[0]["spec"]["pool"]["generation"] == 2
        admin.delete(f"{SLICES}/n1-{DRIVER}")
        eventually(lambda: slices(admin), "the slice is published again")
    assert slices(admin), "the agent's end leaves the slice"


def test_counts_wait_until_the_kubelet_has_forgotten_the_plugin(
    node: Path, kubeconfig: Path, admin: ApiClient
) -> None:
    checkpoint = node / "p" / "kubelet_internal_checkpoint"
    checkpoint.write_text(json.dumps({"Data": {"RegisteredDevices": {NAMES.core: []}}}))

    def counts() -> Any:
        status = admin.get(NODE).get("status") or {}
        return (status.get("allocatable") or {}).get(NAMES.core)

    def shown(value: str) -> None:
        sample = f"counts_problem {value}"
        eventually(lambda: sample in metrics(agent), sample)

    with agent_of(node, kubeconfig) as (agent, _):
        assert counts() is None
        shown("1.0")
        checkpoint.write_text(json.dumps({"Data": {"RegisteredDevices": {}}}))
        eventually(lambda: counts() == "200", "the counts are written")
        shown("0.0")
        admin.patch(f"{NODE}/status", {"status": {"allocatable": {NAMES.core: "0"}}})
        eventually(lambda: counts() == "200", "the counts are put back")


def test_missing_cards_and_pods_without_a_claim_are_events(
    node: Path, kubeconfig: Path, admin: ApiClient
) -> None:
    """As after a reboot, a claim is allocated but not prepared, and its pod counts as running."""
    with agent_of(node, kubeconfig) as (_, kubelet):
        kubelet.prepare(add(admin, "lost", ("gpu-1", 60, 4)), add(admin, "a", ("gpu-0", 60, 4)))
    write_cards(node / "cards.yaml", cards=1)
    add(admin, "after-reboot", ("gpu-0", 30, 4))
    for name in ("bare", "waits"):
        admin.create(PODS, make_manifest(name, (30, 4)))
    for name in ("after-reboot", "bare"):
        admin.patch(f"{PODS}/{name}/status", {"status": {"phase": "Running"}})
    expected = {"GPUMissing": {"lost", "n1"}, "GPUNotClaimed": {"bare"}}

    def subjects() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for each in events(admin):
            found.setdefault(each["reason"], set()).add(each["involvedObject"]["name"])
        return found

    with agent_of(node, kubeconfig):
        eventually(lambda: subjects() == expected, "the Events")


# --- behind the proxy, where calls wait for the next agent ----------------------------------


@contextmanager
def proxy_running(proxy: Proxy) -> Iterator[None]:
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        await proxy.run()

    def stop() -> None:
        eventually(lambda: loops, "the proxy runs")
        loops[0].call_soon_threadsafe(proxy.stop)

    with threads.running(lambda: asyncio.run(run()), stop):
        yield


class AgentProcess:
    """An agent that can be stopped and killed, and is then started again."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
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
def supervised(node: Path, kubeconfig: Path) -> Iterator[AgentProcess]:
    (node / "k").mkdir()
    made = AgentProcess(node, kubeconfig)
    yield made
    made.process.terminate()
    made.process.wait(DEADLINE_S)


def test_no_call_fails_while_the_agent_is_killed_and_the_kubelet_keeps_one_registration(
    folder: Path, supervised: AgentProcess, admin: ApiClient
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
            supervised.process.send_signal(signal.SIGSTOP)
            calls = [pool.submit(kubelet.prepare, each) for each in refs[at : at + 3]]
            eventually(lambda: driver.under_way == 3, "the calls have begun")
            supervised.kill()
            entries = [each.result() for each in calls]
            supervised.kill()
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
