"""The component ``mps``, installed, with stand-ins for NVIDIA's daemon and driver.

Each container runs a CUDA program. Agents are replaced and killed, and daemons, under it.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.enforcement.mps.files import MPS_DIR, DaemonStatus, MpsFolder
from tests.e2e.cluster import Json
from tests.e2e.ground import wait
from tests.e2e.installation import AGENTS, Deploy, Deployed, kill, run_doctor
from tests.e2e.settings import Settings
from tests.mps.node import install
from tests.runtime.image import cuda

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

BACK_SECONDS = 2.0
PODS = 24
_SMS = 108
_CORES = 5
_RUN = "env STAND_IN_CARDS=24576 /cuda/cuda 0=256 stay & sleep 3600"


@dataclass(frozen=True, slots=True)
class Mps:
    deployed: Deployed
    driver: Path

    def daemons(self) -> Mapping[str, DaemonStatus]:
        return MpsFolder(MPS_DIR).read_status() or {}

    def instances(self) -> dict[str, str]:
        return {name: each.instance for name, each in self.daemons().items() if each.instance}

    def clients(self) -> set[tuple[int, str]]:
        """Return process and pod of all programs that are connected."""
        found = (client for each in self.daemons().values() for client in each.clients)
        return {(each.pid, each.pod_uid) for each in found}

    def share(self, name: str) -> Json:
        """Make a pod with a share whose program stays connected."""
        make = self.deployed.ground.make
        container = make.container("main", _CORES, 4, run=_RUN)
        container["volumeMounts"] = [{"name": "cuda", "mountPath": "/cuda"}]
        path = {"path": str(self.driver / "cuda"), "type": "Directory"}
        return make.pod(name, [container], volumes=[{"name": "cuda", "hostPath": path}])

    def run_shares(self) -> dict[str, Json]:
        """Run pods with shares; return them once all their programs are connected."""
        ground = self.deployed.ground
        pods = ground.run(*(self.share(f"share-{at}") for at in range(PODS)))
        assert ground.refused(pods) == {}
        uids = {each["metadata"]["uid"] for each in pods.values()}
        wait("all are clients", lambda: {uid for _, uid in self.clients()} == uids)
        for name in pods:
            log = ground.cluster.log(name, "main")
            assert f"{_SMS * _CORES // 100} SMs: 0\n0=256: 0\n" in log, log
        return pods


@pytest.fixture(scope="module")
def mps(deploy: Deploy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mps]:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc)")
    driver = tmp_path_factory.mktemp("driver")
    install(driver)
    (driver / "cuda").mkdir()
    (driver / "cuda" / "cuda").write_bytes(cuda(Path(compiler)))
    (driver / "cuda" / "cuda").chmod(0o755)
    container = {
        "name": "mps",
        "env": [{"name": "GPU_TURNSTILE_MPS_DRIVER_DIR", "value": "/driver"}],
        "volumeMounts": [{"name": "driver", "mountPath": "/driver"}],
    }
    volume = {"name": "driver", "hostPath": {"path": str(driver)}}
    # The overlay's agents run on each node; those of the component look for cards.
    spec = {"affinity": None, "containers": [container], "volumes": [volume]}
    patch = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "gpu-turnstile-mps", "namespace": AGENTS},
        "spec": {"template": {"spec": spec}},
    }
    more = {"patches": [{"patch": json.dumps(patch)}]}
    with deploy(components=("mps",), more=more) as deployed:
        files = MpsFolder(MPS_DIR)
        wait("the program of daemons", lambda: files.read_status() is not None)
        yield Mps(deployed, driver)


@pytest.fixture
def shares(mps: Mps) -> Iterator[dict[str, Json]]:
    yield mps.run_shares()
    mps.deployed.ground.clear()
    wait("the daemons' end", lambda: not mps.instances())


def test_agents_are_replaced_and_killed_and_no_client_ends(
    mps: Mps, shares: dict[str, Json]
) -> None:
    instances, clients = mps.instances(), mps.clients()
    assert len(clients) == PODS
    installation = mps.deployed.installation
    installation.roll_agents()
    mps.deployed.wait_for_cards()
    for uid in installation.agent_uids():
        kill("agent", uid)
    mps.deployed.wait_for_cards()
    installation.wait_until_ready()
    time.sleep(6)  # the program looks at clients each 5 s
    assert (mps.instances(), mps.clients()) == (instances, clients)
    more = mps.deployed.ground.run(mps.share("later"))["later"]
    wait("it is a client", lambda: more["metadata"]["uid"] in {uid for _, uid in mps.clients()})
    assert clients < mps.clients()
    mps.deployed.ground.report(f"MPS, agents replaced and killed: {PODS} clients stay")


def test_a_killed_daemon_is_back_and_doctor_and_events_report_it(
    mps: Mps, settings: Settings, shares: dict[str, Json]
) -> None:
    ground, before = mps.deployed.ground, mps.instances()
    (gone, *others) = sorted(before)
    on = {each.pod_uid for each in mps.daemons()[gone].clients}
    began = time.monotonic()
    os.kill(_pid(gone), signal.SIGKILL)
    wait("it is back", lambda: mps.instances().get(gone, before[gone]) != before[gone], pause=0.02)
    seconds = time.monotonic() - began
    lost = [name for name, each in shares.items() if each["metadata"]["uid"] in on]
    for each in lost:
        ground.wait_for_event(each, "GPUDaemonEnded")
    ground.report(f"MPS, a daemon killed: back after {seconds:.2f} s; Events on {len(lost)} pods")
    assert lost
    assert {name: mps.instances()[name] for name in others} == {n: before[n] for n in others}
    assert seconds < BACK_SECONDS

    def errors() -> list[str]:
        items = run_doctor(settings).items
        found = [
            each for each in items if (each["check"], each["level"]) == ("enforcement", "error")
        ]
        return [str(each["text"]) for each in found]

    assert errors() == []
    switch = mps.driver / "switches" / "broken"  # it ends at once, whenever it is started
    switch.parent.mkdir()
    switch.touch()
    os.kill(_pid(gone), signal.SIGKILL)
    why = f"card {gone}: the MPS daemon of {gone} does not serve: status 1: Failed to initialize"
    wait("doctor says so", lambda: any(why in each for each in errors()), pause=1.0)
    switch.unlink()
    wait("doctor is content", lambda: errors() == [], pause=1.0)


def _pid(name: str) -> int:
    """Return the daemon of a set of cards; its own pod has the number of the host."""
    status = MpsFolder(MPS_DIR).read_status() or {}
    return int(status[name].instance.partition("-")[0])
