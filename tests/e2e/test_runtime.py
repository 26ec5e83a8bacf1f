"""The agent finds containers and their processes through the container runtime that is there."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from agent.enforcement.vcuda.config import MOUNT_PATH, decode, decode_pids
from agent.runtime.cgroups import MOUNT, Cgroups, ContainerCgroup
from agent.runtime.cri import Cri
from agent.usage.join import ProcessOwner
from agent.usage.meter import Owners
from tests.e2e.cluster import Json
from tests.e2e.ground import wait
from tests.e2e.installation import processes_of
from tests.e2e.stage import Stage

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

_REGISTER = """
import os, sys, grpc
from agent.enforcement.vcuda.api import vcuda_pb2
from common.grpc_services import make_stub
socket, pod_uid, container_id, *cgroups = sys.argv[1:]
for each in cgroups:
    with open(each, "w") as procs:
        procs.write(f"{os.getpid()}")
options = [("grpc.enable_http_proxy", 0)]
with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
    request = vcuda_pb2.VDeviceRequest(pod_uid=pod_uid, container_id=container_id)
    make_stub(channel, vcuda_pb2.DESCRIPTOR, "VCUDAService").RegisterVDevice(request, timeout=20)
"""


@pytest.fixture
def cri(stage: Stage) -> Iterator[Cri]:
    made = Cri(stage.settings.cri_socket)
    yield made
    made.close()


def test_processes_of_shares_are_found_whatever_happens_to_the_runtime(
    stage: Stage, cri: Cri
) -> None:
    """Before and after its restart; no container is restarted."""
    stage.run(*stage.make.burst(8, seed=8))
    before = _check(stage, cri, "running")
    _register_all(stage, before)
    if not stage.settings.restart_runtime:
        pytest.skip("GPU_TURNSTILE_E2E_RESTART_RUNTIME names no command")
    stage.restart_runtime()
    after = _check(stage, cri, "the runtime restarted")
    assert {each.container_id for each in after} == {each.container_id for each in before}
    _register_all(stage, after)
    stage.kill_agent()
    _register_all(stage, _check(stage, cri, "runtime and agent restarted"))
    more = stage.run(stage.make.single("later", 5, 4))
    stage.check("a pod after the runtime's restart", more)
    pods = stage.cluster.pods()
    restarts = {
        name: [each["restartCount"] for each in pod["status"]["containerStatuses"]]
        for name, pod in pods.items()
    }
    assert not any(map(sum, restarts.values())), restarts


def test_pods_are_created_while_the_runtime_restarts(stage: Stage) -> None:
    if not stage.settings.restart_runtime:
        pytest.skip("GPU_TURNSTILE_E2E_RESTART_RUNTIME names no command")
    made = stage.submit(stage.make.burst(30, seed=9))
    stage.wait_for_allocations(20)
    stage.restart_runtime()
    stage.check("runtime restarted in a burst", stage.settle(made))


def _check(stage: Stage, cri: Cri, when: str) -> dict[ContainerCgroup, set[int]]:
    """Compare the owners of all processes of the tests' pods with the pods; return the former."""
    cgroups, owners = Cgroups(), Owners(Cgroups(), cri)
    pods = stage.cluster.pods()
    by_uid = {pod["metadata"]["uid"]: pod for pod in pods.values()}
    pids = {int(each.name) for each in processes_of(*by_uid)}
    found = owners.find(pids)
    wanted = {
        ProcessOwner(uid, name)
        for uid, pod in by_uid.items()
        for name in (*_names(pod, "containers"), *_sidecars(pod))
    }
    assert set(found.values()) == wanted, when
    containers: dict[ContainerCgroup, set[int]] = {}
    for pid in found:
        container = cgroups.container_of(pid)
        assert container is not None
        assert container.pod_uid == found[pid].pod_uid
        containers.setdefault(container, set()).add(pid)
    for container, its in containers.items():
        assert its <= set(cgroups.pids_of(container))
    assert len(containers) == len(wanted)
    stage.report(
        f"{when}: {len(found)} of {len(pids)} processes found in {len(containers)} containers"
    )
    return containers


def _names(pod: Json, kind: str) -> list[str]:
    return [each["name"] for each in pod["spec"].get(kind) or ()]


def _sidecars(pod: Json) -> list[str]:
    inits = pod["spec"].get("initContainers") or ()
    return [each["name"] for each in inits if each.get("restartPolicy") == "Always"]


def _register_all(stage: Stage, containers: Mapping[ContainerCgroup, set[int]]) -> None:
    """Register each container as vcuda's library does, by a process in its cgroups."""
    for container, pids in containers.items():
        uid = container.pod_uid or ""
        folder = Path(f"/proc/{min(pids)}/root{MOUNT_PATH}")
        done = subprocess.run(
            [
                *(sys.executable, "-c", _REGISTER),
                *(str(folder / "vcuda.sock"), uid, container.container_id, *_lists(container)),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-1000:]
        own = folder / container.container_id

        def listed(own: Path = own, pids: set[int] = pids) -> bool:
            return set(decode_pids((own / "pids.config").read_bytes())) >= pids

        wait("the container's processes are listed", listed)
        assert decode((own / "vcuda.config").read_bytes()).pod_uid == uid
    stage.report(f"{len(containers)} containers registered")


def _lists(container: ContainerCgroup) -> list[str]:
    """Return the files by which a process enters a container's cgroups."""
    roots = [
        MOUNT / each.controllers.removeprefix("name=") / each.path.lstrip("/")
        for each in container.directories
    ]
    return [str(each / "cgroup.procs") for each in roots]
