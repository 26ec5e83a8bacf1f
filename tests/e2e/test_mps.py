"""Limits by MPS, with a stand-in for NVIDIA's daemon: bursts of unequal shares, and kills."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from agent.enforcement.mps.files import DaemonStatus, MpsFolder, Share
from agent.holdings.holding import UNKNOWN
from contract.demand import ContainerKind
from contract.resource import Resource
from tests.e2e.cluster import Cluster, Json
from tests.e2e.ground import Seen, wait
from tests.e2e.settings import Settings
from tests.e2e.stage import Program, Stage
from tests.mps.node import install

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

PODS = 60
UNDER_WAY = 40
BACK_SECONDS = 2.0
_PIPES, _SHM = "/tmp/nvidia-mps", "/dev/shm"  # where CUDA looks for them
_PRINT = f"env | grep ^CUDA_; grep -E ' ({_PIPES}|{_SHM}) ' /proc/self/mountinfo; "


class MpsStage(Stage):
    own_limits = False

    def enforcement(self) -> str:
        return f"--enforcement mps --mps-dir {self._folder}/mps"

    def open(self) -> None:
        driver = self._folder / "driver"
        install(driver)
        self.files = MpsFolder(self._folder / "mps")
        flags = ["--dir", str(self.files.root), "--driver-dir", str(driver), "--http-port", "0"]
        self.daemons = Program(["agent.enforcement.mps", *flags], self._folder / "mps.log")
        self.daemons.start()
        wait("the program of daemons", lambda: self.files.read_status() is not None)
        super().open()

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.daemons.stop()

    def instances(self) -> dict[str, str]:
        status: Mapping[str, DaemonStatus] = self.files.read_status() or {}
        return {name: each.instance for name, each in status.items() if each.instance}

    def kill_daemon(self, name: str) -> float:
        """Kill the daemon of a set of cards; return after how many seconds it is back."""
        before = self.instances()[name]
        os.kill(int(before.partition("-")[0]), signal.SIGKILL)
        began = time.monotonic()
        back = lambda: self.instances().get(name, before) != before  # noqa: E731
        wait("the daemon is back", back, pause=0.02)
        return time.monotonic() - began

    def burst(self, *, seed: int) -> list[Json]:
        """Draw pods that print variables and mounts: a whole card, and some shares of two."""
        pods = self.make.burst(PODS, seed=seed)
        for pod in [each for each in pods if not each["spec"]["initContainers"]][::4]:
            first = pod["spec"]["containers"][0]
            first["resources"]["limits"] = {self.names.core: "8", self.names.memory: "8"}
            pod["metadata"]["annotations"] = {self.names.gpu_cards_of(first["name"]): "2"}
        whole = self.make.single("whole", 100)
        for pod in [whole, *pods]:
            for each in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
                each["command"][-1] = _PRINT + each["command"][-1]
        return [whole, *pods]

    def found(self, each: Seen) -> tuple[dict[str, str], dict[str, str]]:
        """Return the variables and mounts that a container prints, paths in their file system."""
        lines = self.cluster.log(each.pod, each.container.name).splitlines()
        envs = dict(line.split("=", 1) for line in lines if line.startswith("CUDA_"))
        mounts = [line.split(" ") for line in lines if " - " in line]
        return envs, {words[4]: words[3] for words in mounts}

    def expected(self, each: Seen) -> tuple[dict[str, str], dict[str, str]]:
        demand, cards = each.container.demand, each.visible or ()
        if not demand.is_share:
            return {}, {}
        memory = enumerate(demand.per_card(Resource.MEMORY))
        envs = {
            "CUDA_MPS_PIPE_DIRECTORY": _PIPES,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(demand.cores_per_card),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ",".join(f"{at}={n * 256}M" for at, n in memory),
        }
        order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if len(cards) > 1 else {}
        pipe = self.files.part(Share(UNKNOWN, tuple(cards), 1).set, "pipe")
        return envs | order, {_PIPES: str(pipe), _SHM: str(self.files.shm)}


@pytest.fixture(scope="module")
def whole_mps(
    settings: Settings,
    cluster: Cluster,
    node: str,
    report: Callable[[str], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[MpsStage]:
    folder: Path = tmp_path_factory.mktemp("mps")
    stage = MpsStage(settings, cluster, node=node, folder=folder, report=report)
    try:
        stage.open()
        yield stage
    finally:
        stage.close()


@pytest.fixture
def mps(whole_mps: MpsStage) -> Iterator[MpsStage]:
    whole_mps.wait_for_cards()
    whole_mps.agent.mark()
    yield whole_mps
    whole_mps.clear()
    wait("the daemons' end", lambda: not whole_mps.instances())


@pytest.mark.parametrize("killed", ["agent", "daemon", "proxy"])
def test_each_container_of_a_burst_is_limited_as_it_requests(mps: MpsStage, killed: str) -> None:
    made = mps.burst(seed=ord(killed[0]))
    creating = mps.submit(made[: PODS // 2])
    mps.wait_for_allocations(UNDER_WAY)
    if killed == "proxy":  # pods that wait on the node when it is killed fail: none waits
        mps.settle(creating)
    before, gone = mps.instances(), ""
    if killed == "agent":
        mps.kill_agent()
    elif killed == "daemon":
        gone = min(before)
        mps.report(f"MPS, daemon killed: back after {mps.kill_daemon(gone):.2f} s in the burst")
    else:
        mps.proxy.stop(signal.SIGKILL)
        mps.proxy.start()
        wait("the agent is registered", mps.registered)
        mps.wait_for_cards()
    pods = mps.settle(creating + mps.submit(made[PODS // 2 :]))
    refused = mps.refused(pods)
    seen = mps.audit(f"MPS, {killed} killed", pods, init_recorded=killed != "agent")
    compared = [(each, mps.found(each), mps.expected(each)) for each in seen]
    envs = {str(each): found[0] for each, found, own in compared if found[0] != own[0]}
    mounts = {
        str(each): found[1]
        for each, found, own in compared
        if found[1].keys() - own[1].keys() - {_SHM}
        or not all(at in found[1] and path.endswith(found[1][at]) for at, path in own[1].items())
    }
    mps.report(
        f"MPS, {killed} killed: {len(pods)} pods, {len(refused)} failed, {len(seen)} containers, "
        f"{len(envs)} with wrong variables, {len(mounts)} with wrong mounts"
    )
    for message in sorted({*refused.values()}):
        mps.report(f"  {message[:300]}")
    assert (envs, mounts) == ({}, {})
    assert refused == {}
    assert {each.container.kind for each in seen} == set(ContainerKind)
    kept = {name: each for name, each in before.items() if name != gone}
    assert kept.items() <= mps.instances().items(), "a daemon has ended with another program"


def test_a_killed_daemon_is_back_and_each_of_its_pods_has_an_event(mps: MpsStage) -> None:
    pods = mps.run(*(mps.make.single(f"share-{each}", 5, 4) for each in range(24)))
    seen = mps.check("MPS", pods)
    before = mps.instances()
    gone = (seen[0].visible or ("",))[0]
    seconds = mps.kill_daemon(gone)
    on = [each.pod for each in seen if gone in (each.visible or ())]
    mps.report(f"MPS, a daemon killed: back after {seconds:.2f} s; Events on {len(on)} pods")
    for each in on:
        mps.wait_for_event(each, "GPUDaemonEnded")
    assert seconds < BACK_SECONDS
    after = mps.instances()
    assert {name for name in before if before[name] != after[name]} == {gone}
