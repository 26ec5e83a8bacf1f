"""Limits by MPS, with a stand-in for NVIDIA's daemon: bursts of unequal shares, and kills."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from agent.enforcement.mps.files import DaemonStatus, MpsFolder, Share
from agent.holdings.holding import UNKNOWN
from contract.claims import DRA_MODE, MODE_LABEL
from contract.demand import ContainerKind
from contract.resource import Resource
from contract.wishes import read_wishes
from simulator.manifests import write_yaml
from tests.deploy.kustomize import build_components
from tests.deploy.manifests import find
from tests.e2e.claimed import ClaimGround
from tests.e2e.cluster import Cluster, Json, Kubectl
from tests.e2e.ground import Seen, wait
from tests.e2e.settings import Settings
from tests.e2e.stage import Program, Stage
from tests.mps.node import install

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

PODS = 60
UNDER_WAY = 40
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
        """Draw pods that print variables and mounts: a whole card, and some shares of two.

        By their annotations, some may use more SMs than their cores, and some divide their limits.
        """
        pods, names = self.make.burst(PODS, seed=seed), self.names
        wishes: tuple[dict[str, str], ...] = (
            {},
            {names.core_limit: "100"},
            {names.gpu_processes: "2"},
            {names.core_limit: "9"},
        )
        for pod, wish in zip(pods, cycle(wishes), strict=False):
            pod["metadata"]["annotations"] = dict(wish)
        for pod in [each for each in pods if not each["spec"]["initContainers"]][::4]:
            first = pod["spec"]["containers"][0]
            first["resources"]["limits"] = {names.core: "8", names.memory: "8"}
            pod["metadata"]["annotations"][names.gpu_cards_of(first["name"])] = "2"
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

    def expected(self, each: Seen, pod: Json) -> tuple[dict[str, str], dict[str, str]]:
        demand, cards = each.container.demand, each.visible or ()
        if not demand.is_share:
            return {}, {}
        wishes, _ = read_wishes(pod["metadata"].get("annotations") or {}, self.names)
        percent, of = wishes.core_limit or demand.cores_per_card, wishes.processes
        memory = enumerate(demand.per_card(Resource.MEMORY))
        envs = {
            "CUDA_MPS_PIPE_DIRECTORY": _PIPES,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent // of),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ",".join(
                f"{at}={n * 256 // of}M" for at, n in memory
            ),
        }
        order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if len(cards) > 1 else {}
        pipe = self.files.part(Share(UNKNOWN, tuple(cards), 1).set, "pipe")
        return envs | order, {_PIPES: str(pipe), _SHM: str(self.files.shm)}


class ClaimedMpsStage(MpsStage, ClaimGround):
    """The same by claims."""

    mode = "dra"
    webhook_options = ("--claims", "on")

    def open(self) -> None:
        if why := self.missing_support():
            pytest.skip(why)
        made = find(build_components("dra"), "DeviceClass", self.driver)
        write_yaml(self._folder / "class.yaml", made)
        self.kubectl.run("create", f"--filename={self._folder}/class.yaml")
        self.kubectl.run("label", "node", self.node, f"{MODE_LABEL}={DRA_MODE}")
        flags = ["--kubeconfig", str(self.settings.kubeconfig), "--http-port", "0"]
        self.claims_program = Program(["claims", *flags], self._folder / "claims.log")
        self.claims_program.start()
        self.forget_plugin()
        self.drop_counts()
        super().open()

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.claims_program.stop()
            self.drop_counts()
            self.kubectl.run("label", "node", self.node, f"{MODE_LABEL}-")
            self.kubectl.run("delete", "deviceclass", self.driver)

    def wait_for_allocations(self, number: int) -> None:
        prepared = lambda: len(self.agent.events("claim prepared")) >= number // 3  # noqa: E731
        wait("a burst is under way", prepared)


@pytest.fixture(scope="module", params=["plugin", "claims"])
def whole_mps(
    request: pytest.FixtureRequest,
    *,
    settings: Settings,
    cluster: Cluster,
    kubectl: Kubectl,
    node: str,
    report: Callable[[str], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[MpsStage]:
    folder: Path = tmp_path_factory.mktemp("mps")
    more: dict[str, Any] = {"node": node, "folder": folder, "report": report}
    stage = (
        MpsStage(settings, cluster, **more)
        if request.param == "plugin"
        else ClaimedMpsStage(settings, cluster, kubectl=kubectl, **more)
    )
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
    what = f"MPS by {mps.mode}, {killed} killed"
    creating = mps.submit(made[: PODS // 2])
    mps.wait_for_allocations(UNDER_WAY)
    if killed == "proxy":  # pods that wait on the node when it is killed fail: none waits
        mps.settle(creating)
    before, gone = mps.instances(), ""
    if killed == "agent":
        mps.kill_agent()
    elif killed == "daemon":
        gone = min(before)
        mps.report(f"{what}: back after {mps.kill_daemon(gone):.2f} s in the burst")
    else:
        mps.proxy.stop(signal.SIGKILL)
        mps.proxy.start()
        wait("the agent is registered", mps.registered)
        mps.wait_for_cards()
    pods = mps.settle(creating + mps.submit(made[PODS // 2 :]))
    refused = mps.refused(pods)
    seen = mps.audit(what, pods, init_recorded=killed != "agent")
    compared = [(each, mps.found(each), mps.expected(each, pods[each.pod])) for each in seen]
    envs = {str(each): (found[0], own[0]) for each, found, own in compared if found[0] != own[0]}
    mounts = {
        str(each): found[1]
        for each, found, own in compared
        if found[1].keys() - own[1].keys() - {_SHM}
        or not all(at in found[1] and path.endswith(found[1][at]) for at, path in own[1].items())
    }
    mps.report(
        f"{what}: {len(pods)} pods, {len(refused)} failed, {len(seen)} containers, "
        f"{len(envs)} with wrong variables, {len(mounts)} with wrong mounts"
    )
    for message in sorted({*refused.values()}):
        mps.report(f"  {message[:300]}")
    assert (envs, mounts) == ({}, {})
    assert refused == {}
    assert {each.container.kind for each in seen} == set(ContainerKind)
    kept = {name: each for name, each in before.items() if name != gone}
    assert kept.items() <= mps.instances().items(), "a daemon has ended with another program"
